"""KV and index rows to the host and back: the bandwidth alone and beside loads, and what that costs the loads."""

from collections.abc import Iterator, Mapping
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
    """Back prompts up through a host tier, and as the peers do."""
    return _measure(run, "to_host")


def measure_to_device(run: Run) -> Iterator[CopyFigure]:
    """Restore prompts through a host tier, and as the peers do."""
    return _measure(run, "to_device")


def _measure(run: Run, direction: Direction) -> Iterator[CopyFigure]:
    for pages in run.pages:
        peers = measure_peers(run, direction, pages, run.platform.loads)
        run.submissions[direction, pages] = peers_of(peers, lambda one: one.submit_us)
        for case in cases(direction, pages):
            names = [
                *((f"{case}, {beside_name(load)}", "GB/s") for load in (ALONE, *run.platform.loads)),
                *((f"{case}, slowdown of {load}", "%") for load in run.platform.loads),
            ]
            yield from run.figures(partial(_figures, run, case, peers), names)


def _figures(run: Run, case: Case, peers: Outcomes) -> list[CopyFigure]:
    with run.site(pages=case.device_pages, slots=case.slots) as site:
        ours = _measure_ours(run, site, case)
    to_host, loads = case.direction == "to_host", run.platform.loads
    figures = []
    for load in (ALONE, *loads):
        target = run.targets.bandwidth(to_host=to_host, pages=case.pages, run_pages=case.run_pages, load=load)
        others = peers_of(peers, partial(_bandwidth, load), load)
        figures.append(bandwidth_figure(str(case), ours, load, target, others))
    for load in loads:
        others = peers_of(peers, partial(_slowdown, load))
        figures.append(
            slowdown_figure(str(case), ours, load, run.targets.slowdown(pages=case.pages, load=load), others)
        )
    return figures


def _bandwidth(load: str, outcome: Outcome) -> tuple[float, ...]:
    return outcome.bandwidth(load)


def _slowdown(load: str, outcome: Outcome) -> tuple[float, ...]:
    return outcome.beside[load].slowdown_percent


def bandwidth_figure(
    title: str, ours: Outcome, load: str, target: float | None, peers: Mapping[str, Peer]
) -> CopyFigure:
    """Return the row of a bandwidth."""
    return CopyFigure(
        name=f"{title}, {beside_name(load)}",
        unit="GB/s",
        samples=ours.bandwidth(load),
        target=target,
        peers=peers,
        note=ours.note(load),
    )


def slowdown_figure(
    title: str, ours: Outcome, load: str, target: float | None, peers: Mapping[str, Peer]
) -> CopyFigure:
    """Return the row of what a load was slowed down by."""
    return CopyFigure(
        name=f"{title}, slowdown of {load}",
        unit="%",
        samples=ours.beside[load].slowdown_percent,
        target=target,
        wanted="at most",
        peers={SAME: Peer(samples=ours.beside[load].same_percent), **peers},
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
    return measure_copier(run, copier, platform.loads)
