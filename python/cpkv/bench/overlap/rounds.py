"""Rounds of forwards without a backup, with one layer by layer, and with one of all layers behind the forward.

A forward begins behind work that is not counted: by then the clock of the device is what it is in a long
forward, and the thread that queues is ahead.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.forwards import all_layer_forward, hooked_forward, plain_forward
from cpkv.bench.copy.layers import SyntheticLayer, hooked_layers, plain_layers
from cpkv.bench.copy.passes import no_collection, one_round
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.timeline import Forward

BackedUp = Callable[[Site, BackupCopier, Sequence[SyntheticLayer]], Forward]


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapRound:
    """Each way once.

    Args:
        alone_ns: The copies of all layers, with nothing beside them.
        plain_ns: The forward that nothing is copied of.
        again_ns: The same once more, for what a comparison of the same with the same says.
        hooked: The forward whose layers are copied as they end.
        behind: The forward whose layers are copied all at once at its end, as one of a single layer.
    """

    alone_ns: int
    plain_ns: int
    again_ns: int
    hooked: Forward
    behind: Forward


def layer_ns(site: Site, units: int) -> float:
    """Return what a layer of so many units takes in a forward that nothing is copied of."""
    return _plain(site, plain_layers(site, units)) / site.layers


def measured_rounds(site: Site, copier: BackupCopier, units: int, repeats: int, title: str) -> list[OverlapRound]:
    """Run rounds, each in an order of its own, after forwards whose bytes are compared.

    Args:
        site: Where.
        copier: The pages of each forward.
        units: The work of a layer.
        repeats: How many rounds.
        title: What forwards are called.
    """
    platform, plain = site.platform, plain_layers(site, units)
    with hooked_layers(site, units) as hooked:
        ways: Mapping[str, Callable[[], Any]] = {
            "hooked": lambda: replace(_backed_up(site, copier, hooked_forward, hooked), title=title),
            "behind": lambda: _backed_up(site, copier, all_layer_forward, plain),
            "plain_ns": lambda: _plain(site, plain),
            "again_ns": lambda: _plain(site, plain),
            "alone_ns": lambda: one_round(platform, copier, hold_ms=2 * platform.hold_ms).span_ns,
        }
        for way in ("hooked", "behind"):
            platform.fill_device()
            ways[way]()
            site.pools.check_equal(copier.pages, copier.slots)
        random, names = np.random.default_rng(0), list(ways)
        return [
            OverlapRound(**{way: ways[way]() for way in random.permutation(names).tolist()}) for _ in range(repeats)
        ]


def _plain(site: Site, layers: Sequence[SyntheticLayer]) -> int:
    platform = site.platform
    platform.synchronize()
    with no_collection():
        platform.layer(platform.lead_units)
        return plain_forward(platform, layers)


def _backed_up(site: Site, copier: BackupCopier, forward: BackedUp, layers: Sequence[SyntheticLayer]) -> Forward:
    platform = site.platform
    copier.begin()
    platform.align()
    with no_collection():
        platform.layer(platform.lead_units)
        taken = forward(site, copier, layers)
    copier.forget()
    return taken
