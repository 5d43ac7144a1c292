"""What a hook costs the thread that runs the model: event, wait, submission and ack, and the plan's share.

By the thread's CPU, and by the clock. A forward's layers take longer than their copies, so that few are under
way at once: the next layer ends here when all but the last copies have landed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns, thread_time_ns
from typing import Final

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.case import Case, cases
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.formulas import layer_microseconds, preparation_microseconds
from cpkv.bench.copy.outcome import Outcomes, known_peers, peers_of
from cpkv.bench.copy.passes import no_collection, one_round
from cpkv.bench.copy.run import Run
from cpkv.device import BACKUP
from cpkv.errors import CopyError

UNDER_WAY: Final = 1
"""Layers whose copies may be under way when the next one ends."""
PATIENCE_NS: Final = 20 * 10**9


@dataclass(frozen=True, slots=True)
class _Calls:
    """What the hooks of one forward took, a number for each layer, in nanoseconds."""

    clock_ns: list[int]
    cpu_ns: list[int]
    has_led: bool
    """Whether the first copy had landed when the last layer ended."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """Microseconds for each layer, one number for each forward; the plan's share is in the first two."""

    cpu: list[float] = field(default_factory=list)
    clock: list[float] = field(default_factory=list)
    share: list[float] = field(default_factory=list)


def measure_hooks(run: Run) -> Iterator[CopyFigure]:
    """Let the layers of a forward end one after the other."""
    for pages in run.pages:
        peers = known_peers(run, "to_host", pages)
        for case in cases("to_host", pages):
            yield from run.figures(partial(_figures, run, case, peers), _rows(run, case, peers, _Costs()))


def _rows(run: Run, case: Case, peers: Outcomes, costs: _Costs) -> list[CopyFigure]:
    return [
        CopyFigure(
            name=f"hook, {case}",
            unit="us",
            samples=tuple(costs.cpu),
            target=run.targets.hook_us(pages=case.pages, run_pages=case.run_pages),
            wanted="at most",
            peers=peers_of(peers, lambda one: one.submit_cpu_us),
        ),
        CopyFigure(
            name=f"hook, {case}, by the clock",
            unit="us",
            samples=tuple(costs.clock),
            peers=peers_of(peers, lambda one: one.submit_us),
        ),
        CopyFigure(name=f"hook, {case}, the plan's share", unit="us", samples=tuple(costs.share)),
    ]


def _figures(run: Run, case: Case, peers: Outcomes) -> list[CopyFigure]:
    costs = _Costs()
    with run.site(pages=case.device_pages, slots=case.slots) as site:
        copier = BackupCopier(site, case.places())
        one_round(run.platform, copier)
        for _ in range(run.repeats):
            copier.begin()
            with no_collection():
                taken = _layers(copier)
            run.platform.synchronize()
            site.engine.synchronize()
            copier.finish()
            share = preparation_microseconds(copier.prepare_cpu_ns, copier.layers)
            costs.share.append(share)
            costs.cpu.append(layer_microseconds(taken.cpu_ns) + share)
            clock_share = preparation_microseconds(copier.prepare_ns, copier.layers)
            costs.clock.append(layer_microseconds(taken.clock_ns) + clock_share)
            run.has_led.append(taken.has_led)
    return _rows(run, case, peers, costs)


def _layers(copier: BackupCopier) -> _Calls:
    """Let each layer end when those before it have nearly landed."""
    layer_ended, acks = copier.site.tier.layer_ended, copier.site.engine.acks
    clock_ns, cpu_ns = [], []
    first, has_led = copier.last_sequence() + 1, False
    for layer in range(copier.layers):
        wanted, deadline = copier.last_sequence() - UNDER_WAY, perf_counter_ns() + PATIENCE_NS
        while layer and acks.load(BACKUP) < wanted:
            # Where the stream does not write its word, this does.
            copier.site.engine.poll()
            if perf_counter_ns() > deadline:
                message = f"layer {layer - 1} has not landed after {PATIENCE_NS // 10**9} s"
                raise CopyError(message)
        has_led = layer > 0 and acks.load(BACKUP) >= first
        begun_cpu, begun = thread_time_ns(), perf_counter_ns()
        layer_ended(layer)
        clock_ns.append(perf_counter_ns() - begun)
        cpu_ns.append(thread_time_ns() - begun_cpu)
    return _Calls(clock_ns, cpu_ns, has_led)
