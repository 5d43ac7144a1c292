"""How long after its last layer a forward's pages are visible on the host, and what happens until then.

Layers are matrix products longer than their copies. The thread queues all of them, reports each end,
inserts the prompt, and ticks in steps of a scheduler until the transaction is committed.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import Final

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.case import LONGEST_RUN, Case
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.passes import no_collection, one_round
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.timeline import Forward
from cpkv.device import BACKUP
from cpkv.errors import CopyError

TICK_NS: Final = 200_000
"""From the beginning of a scheduler's step to that of the next."""
TICKS_SHOWN: Final = 3
PATIENCE_NS: Final = 60 * 10**9
TICKS_ALLOWED: Final = 2


def measure_visibility(run: Run) -> Iterator[CopyFigure]:
    """Run forwards, and note when everything has happened."""
    pages = run.pages[-1]
    case = Case("to_host", pages, min(LONGEST_RUN, pages))
    visible = f"last layer done to visible, {case}"

    def measure() -> Sequence[CopyFigure]:
        forwards = _forwards(run, case)
        run.timeline.forwards.extend(forwards)
        delays = [(forward.ticks[-1][1] - forward.layers[-1][1]) / 1e3 for forward in forwards]
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
    with run.site(pages=case.device_pages, slots=case.slots) as site:
        copier = BackupCopier(site, case.places())
        one_round(run.platform, copier)
        for _ in range(run.repeats):
            copier.begin()
            run.platform.align()
            with no_collection():
                forwards.append(_forward(site, copier))
            copier.forget()
    return forwards


def _forward(site: Site, copier: BackupCopier) -> Forward:
    platform, tier, engine = site.platform, site.tier, site.engine
    marks = [platform.mark("compute")]
    copied, sequences = [], []
    for layer in range(site.layers):
        tier.layer_begins(layer)
        platform.layer()
        marks.append(platform.mark("compute"))
        tier.layer_ended(layer)
        sequences.append(copier.last_sequence())
        copied.append(platform.copied(engine, BACKUP, sequences[-1]))
    transaction = copier.bind()
    acked: list[int] = []
    ticks: list[tuple[int, int]] = []
    next_tick = started = perf_counter_ns()
    while transaction.status != "committed":
        while len(acked) < len(sequences) and engine.acks.load(BACKUP) >= sequences[len(acked)]:
            acked.append(perf_counter_ns())
        now = perf_counter_ns()
        if now >= next_tick:
            site.tick()
            ticks.append((now, perf_counter_ns()))
            next_tick = now + TICK_NS
        if now > started + PATIENCE_NS or transaction.status == "rolled_back":
            message = f"a backup is {transaction.status} ({transaction.reason}), want committed"
            raise CopyError(message)
    # What the last tick has seen has come by then.
    acked += [ticks[-1][0]] * (len(sequences) - len(acked))
    platform.synchronize()
    times = [platform.host_ns(mark) for mark in marks]
    return Forward(
        layers=tuple(pairwise(times)),
        copied=tuple(platform.host_ns(mark) for mark in copied),
        acked=tuple(acked),
        ticks=tuple(ticks[-TICKS_SHOWN:]),
        bytes=copier.bytes // site.layers,
    )
