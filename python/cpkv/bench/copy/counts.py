"""What must not have happened in any forward of the run so far."""

from collections.abc import Iterator

from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.forwards import ASKED
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.timeline_check import first_copy_leads, forwards_of


def measure_counts(run: Run) -> Iterator[CopyFigure]:
    """Count the forwards that were not copied while they went on."""
    target = 0.0 if run.targets.is_known else None
    forwards = forwards_of(run.timeline.as_json({}))
    if forwards:
        late = sum(not first_copy_leads(events) for events in forwards.values())
        yield CopyFigure(
            name="forwards without a copy before their last layer ended",
            unit="",
            samples=(float(late),),
            target=target,
            wanted="at most",
            note=f"of {len(forwards)} forwards of the timeline",
        )
    # Without those that are measured beside it.
    all_at_once = run.totals["all_layer_forwards"] - run.totals[f"all_layer_forwards_{ASKED}"]
    yield CopyFigure(
        name="forwards copied all layers at once",
        unit="",
        samples=(float(all_at_once),),
        target=target,
        wanted="at most",
        note=f"of {run.totals['hooked_forwards'] + all_at_once} forwards of the run",
    )
