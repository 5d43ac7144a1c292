"""What must not have happened in any forward of the run so far."""

from collections.abc import Iterator

from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.forwards import ASKED
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.timeline_check import first_copy_leads, forwards_of


def measure_counts(run: Run) -> Iterator[CopyFigure]:
    """Count the forwards that were not copied while they went on.

    Whether a copy came before the end of the last layer is known of the forwards of the timeline, by the clock of
    the device, and of those whose hooks were timed, as the thread waits for acks between their layers. In the
    other rounds all layers end at once, when everything is queued, so that no copy could come before.
    """
    target = 0.0 if run.targets.is_known else None
    drawn = [first_copy_leads(events) for events in forwards_of(run.timeline.as_json({})).values()]
    known = [*drawn, *run.has_led]
    hooked = run.totals["hooked_forwards"]
    if known:
        yield CopyFigure(
            name="forwards without a copy before their last layer ended",
            unit="",
            samples=(float(known.count(False)),),
            target=target,
            wanted="at most",
            note=f"of {len(known)} forwards: {len(drawn)} of the timeline, by events of the device, and "
            f"{len(run.has_led)} whose hooks were timed, by acks; the other {hooked - len(known)} of the run's "
            f"{hooked} compute no layers, or only warm up",
        )
    # Without those that are measured beside it.
    all_at_once = run.totals["all_layer_forwards"] - run.totals[f"all_layer_forwards_{ASKED}"]
    yield CopyFigure(
        name="forwards copied all layers at once",
        unit="",
        samples=(float(all_at_once),),
        target=target,
        wanted="at most",
        note=f"of {hooked + all_at_once} forwards of the run",
    )
