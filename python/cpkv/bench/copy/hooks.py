"""What a hook costs the thread that runs the model: event, wait, submission and ack, and the plan's share.

A forward's layers take longer than their copies, so that few are under way at once: the next layer ends
here when all but the last copies have landed.
"""

from collections.abc import Iterator
from functools import partial
from time import perf_counter_ns
from typing import Final

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.case import Case, cases
from cpkv.bench.copy.figure import CopyFigure, Peer
from cpkv.bench.copy.formulas import layer_microseconds, preparation_microseconds
from cpkv.bench.copy.outcome import measure_peers, peers_of
from cpkv.bench.copy.passes import no_collection, one_round
from cpkv.bench.copy.run import Run
from cpkv.device import BACKUP
from cpkv.errors import CopyError

UNDER_WAY: Final = 1
"""Layers whose copies may be under way when the next one ends."""
PATIENCE_NS: Final = 20 * 10**9


def measure_hooks(run: Run) -> Iterator[CopyFigure]:
    """Let the layers of a forward end one after the other."""
    for pages in run.pages:
        peers = _submissions(run, pages)
        for case in cases("to_host", pages):
            names = [(f"hook, {case}", "us"), (f"hook, {case}, the plan's share", "us")]
            yield from run.figures(partial(_figures, run, case, peers), names)


def _submissions(run: Run, pages: int) -> dict[str, Peer]:
    """Return what the peers' submissions cost for each layer, measured unless they were before."""
    if ("to_host", pages) not in run.submissions:
        outcomes = measure_peers(run, "to_host", pages, ())
        run.submissions["to_host", pages] = peers_of(outcomes, lambda one: one.submit_us)
    return run.submissions["to_host", pages]


def _figures(run: Run, case: Case, peers: dict[str, Peer]) -> list[CopyFigure]:
    calls, shares = [], []
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
            calls.append(layer_microseconds(taken))
            shares.append(preparation_microseconds(copier.prepare_ns, copier.layers))
    return [
        CopyFigure(
            name=f"hook, {case}",
            unit="us",
            samples=tuple(call + share for call, share in zip(calls, shares, strict=True)),
            target=run.targets.hook_us(pages=case.pages, run_pages=case.run_pages),
            wanted="at most",
            peers=peers,
            note="of the peers the submission alone",
        ),
        CopyFigure(name=f"hook, {case}, the plan's share", unit="us", samples=tuple(shares)),
    ]


def _layers(copier: BackupCopier) -> list[int]:
    """Let each layer end when those before it have nearly landed; return the nanoseconds of the calls."""
    layer_ended, acks = copier.site.tier.layer_ended, copier.site.engine.acks
    taken = []
    for layer in range(copier.layers):
        wanted, deadline = copier.last_sequence() - UNDER_WAY, perf_counter_ns() + PATIENCE_NS
        while layer and acks.load(BACKUP) < wanted:
            # Where the stream does not write its word, this does.
            copier.site.engine.poll()
            if perf_counter_ns() > deadline:
                message = f"layer {layer - 1} has not landed after {PATIENCE_NS // 10**9} s"
                raise CopyError(message)
        begun = perf_counter_ns()
        layer_ended(layer)
        taken.append(perf_counter_ns() - begun)
    return taken
