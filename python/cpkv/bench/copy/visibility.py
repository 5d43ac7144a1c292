"""How long after its last layer a forward's pages are visible on the host, and what happens until then.

Layers are matrix products longer than their copies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.case import LONGEST_RUN, Case
from cpkv.bench.copy.figure import CopyFigure, Peer
from cpkv.bench.copy.forwards import TICK_NS, all_layer_forward, hooked_forward
from cpkv.bench.copy.layers import SyntheticLayer, hooked_layers, plain_layers
from cpkv.bench.copy.passes import no_collection, one_round
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.timeline import Forward

TICKS_ALLOWED: Final = 2
BEHIND: Final = "all layers behind"
"""In the place of a peer: the same forward, copied at its end."""


def measure_visibility(run: Run) -> Iterator[CopyFigure]:
    """Run forwards, and note when everything has happened."""
    pages = run.pages[-1]
    case = Case("to_host", pages, min(LONGEST_RUN, pages))
    row = CopyFigure(name=f"last layer done to visible, {case}", unit="us", wanted="at most")

    def measure() -> Sequence[CopyFigure]:
        forwards, behind = _forwards(run, case)
        run.timeline.forwards.extend(forwards)
        copy_us = median((end - begin) / 1e3 for forward in forwards for begin, end in forward.copies())
        target = copy_us + TICKS_ALLOWED * TICK_NS / 1e3 if run.targets.is_known else None
        note = f"one layer's copy of {copy_us:.0f} us and {TICKS_ALLOWED} ticks of {TICK_NS / 1e3:.0f} us"
        peers = {BEHIND: Peer(samples=_delays_us(behind))}
        return [replace(row, samples=_delays_us(forwards), target=target, peers=peers, note=note)]

    yield from run.figures(measure, [row])


def _delays_us(forwards: Sequence[Forward]) -> tuple[float, ...]:
    return tuple((forward.visible_ns - forward.end_ns) / 1e3 for forward in forwards)


def _forwards(run: Run, case: Case) -> tuple[list[Forward], list[Forward]]:
    """Return the forwards that were copied layer by layer, and those that were copied at their end."""
    hooked_ones, behind = [], []
    with run.site(pages=case.device_pages, slots=case.slots) as site, hooked_layers(site) as hooked:
        copier, plain = BackupCopier(site, case.places()), plain_layers(site)
        one_round(run.platform, copier)
        for _ in range(run.repeats):
            hooked_ones.append(_forward(site, copier, hooked_forward, hooked))
            behind.append(_forward(site, copier, all_layer_forward, plain))
    return hooked_ones, behind


def _forward(
    site: Site,
    copier: BackupCopier,
    way: Callable[[Site, BackupCopier, Sequence[SyntheticLayer]], Forward],
    layers: Sequence[SyntheticLayer],
) -> Forward:
    copier.begin()
    site.platform.align()
    with no_collection():
        forward = way(site, copier, layers)
    copier.forget()
    return forward
