"""KV and index rows to the host and back: the bandwidth alone and beside loads, and what that costs the loads.

Of the most pages of a layer first, since that is what targets are set for; of fewer pages in measurements
of their own.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.case import Case, beside_name, cases
from cpkv.bench.copy.figure import CopyFigure, Peer
from cpkv.bench.copy.outcome import Outcome, Outcomes, measure_copier, measure_peers, peers_of
from cpkv.bench.copy.passes import one_round
from cpkv.bench.copy.restore_copier import RestoreCopier
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.targets import ALONE
from cpkv.device import Direction

SAME: Final = "A/A"
"""In the place of a peer: what the slowdown's formula says if nothing is copied."""


def measure_to_host(run: Run) -> Iterator[CopyFigure]:
    """Back prompts of the most pages up through a host tier, and as the peers do."""
    return _measure(run, "to_host", run.pages[-1:])


def measure_to_device(run: Run) -> Iterator[CopyFigure]:
    """Restore prompts of the most pages through a host tier, and as the peers do."""
    return _measure(run, "to_device", run.pages[-1:])


def measure_fewer_to_host(run: Run) -> Iterator[CopyFigure]:
    """Back shorter prompts up."""
    return _measure(run, "to_host", run.pages[:-1])


def measure_fewer_to_device(run: Run) -> Iterator[CopyFigure]:
    """Restore shorter prompts."""
    return _measure(run, "to_device", run.pages[:-1])


def _measure(run: Run, direction: Direction, pages_of_sets: Sequence[int]) -> Iterator[CopyFigure]:
    for pages in pages_of_sets:
        peers = measure_peers(run, direction, pages, run.platform.loads)
        for case in cases(direction, pages):
            yield from run.figures(partial(_figures, run, case, peers), _rows(run, case, peers, None))


def _figures(run: Run, case: Case, peers: Outcomes) -> list[CopyFigure]:
    with run.site(pages=case.device_pages, slots=case.slots) as site:
        ours = _measure_ours(run, site, case)
    return _rows(run, case, peers, ours)


def _rows(run: Run, case: Case, peers: Outcomes, ours: Outcome | None) -> list[CopyFigure]:
    def bandwidth(load: str) -> float | None:
        return run.targets.bandwidth(
            to_host=case.direction == "to_host", pages=case.pages, run_pages=case.run_pages, load=load
        )

    return outcome_rows(
        str(case),
        ours,
        peers,
        bandwidths={load: bandwidth(load) for load in (ALONE, *run.platform.loads)},
        slowdowns={load: run.targets.slowdown(pages=case.pages, load=load) for load in run.platform.loads},
    )


def outcome_rows(
    title: str,
    ours: Outcome | None,
    peers: Outcomes,
    *,
    bandwidths: Mapping[str, float | None],
    slowdowns: Mapping[str, float | None],
) -> list[CopyFigure]:
    """Return a row for each bandwidth, and for each load that was slowed down.

    Args:
        title: What all of them are about.
        ours: What we did; `None` for the rows without it.
        peers: What they did.
        bandwidths: What is wanted of each.
        slowdowns: The same for the loads.
    """
    return [
        *(_bandwidth_row(title, ours, load, target, peers) for load, target in bandwidths.items()),
        *(_slowdown_row(title, ours, load, target, peers) for load, target in slowdowns.items()),
    ]


def _bandwidth_row(title: str, ours: Outcome | None, load: str, target: float | None, peers: Outcomes) -> CopyFigure:
    return CopyFigure(
        name=f"{title}, {beside_name(load)}",
        unit="GB/s",
        samples=ours.bandwidth(load) if ours else (),
        target=target,
        peers=peers_of(peers, lambda one: one.bandwidth(load), load),
        note=ours.note(load) if ours else "",
    )


def _slowdown_row(title: str, ours: Outcome | None, load: str, target: float | None, peers: Outcomes) -> CopyFigure:
    same = {SAME: Peer(samples=ours.beside[load].same_percent)} if ours else {}
    return CopyFigure(
        name=f"{title}, slowdown of {load}",
        unit="%",
        samples=ours.slowdown(load) if ours else (),
        target=target,
        wanted="at most",
        peers={**same, **peers_of(peers, lambda one: one.slowdown(load))},
    )


def _measure_ours(run: Run, site: Site, case: Case) -> Outcome:
    places, platform = case.places(), run.platform
    platform.fill_device()
    copier: BackupCopier | RestoreCopier
    if case.direction == "to_host":
        copier = BackupCopier(site, places)
    else:
        copier = RestoreCopier(site, places)
        platform.clear_device()
    one_round(platform, copier)
    site.pools.check_equal(places, copier.slots)
    return measure_copier(run, copier, platform.loads, is_wanted=run.is_wanted(case.pages))
