"""How long after its last layer a forward's pages are visible on the host, and what happens until then.

Layers are matrix products longer than their copies.
"""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.case import LONGEST_RUN, Case
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.forwards import TICK_NS, hooked_forward
from cpkv.bench.copy.layers import hooked_layers
from cpkv.bench.copy.passes import no_collection, one_round
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.timeline import Forward

TICKS_ALLOWED: Final = 2


def measure_visibility(run: Run) -> Iterator[CopyFigure]:
    """Run forwards, and note when everything has happened."""
    pages = run.pages[-1]
    case = Case("to_host", pages, min(LONGEST_RUN, pages))
    visible = f"last layer done to visible, {case}"

    def measure() -> Sequence[CopyFigure]:
        forwards = _forwards(run, case)
        run.timeline.forwards.extend(forwards)
        delays = [(forward.visible_ns - forward.end_ns) / 1e3 for forward in forwards]
        copy_us = median((end - begin) / 1e3 for forward in forwards for begin, end in forward.copies())
        return [
            CopyFigure(
                name=visible,
                unit="us",
                samples=tuple(delays),
                target=copy_us + TICKS_ALLOWED * TICK_NS / 1e3 if run.targets.is_known else None,
                wanted="at most",
                note=f"one layer's copy of {copy_us:.0f} us and {TICKS_ALLOWED} ticks of {TICK_NS / 1e3:.0f} us",
            ),
        ]

    yield from run.figures(measure, [(visible, "us")])


def _forwards(run: Run, case: Case) -> list[Forward]:
    forwards = []
    with run.site(pages=case.device_pages, slots=case.slots) as site, hooked_layers(site) as layers:
        copier = BackupCopier(site, case.places())
        one_round(run.platform, copier)
        for _ in range(run.repeats):
            copier.begin()
            run.platform.align()
            with no_collection():
                forwards.append(hooked_forward(site, copier, layers))
            copier.forget()
    return forwards
