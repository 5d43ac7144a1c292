"""Others' ways to copy the same pages, behind one small interface.

Each copies once before it is measured, and what it has copied is compared where that is one look. A peer
that is not there, or fails, says so in its place of the table.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cpkv.bench.copy.platform import Mark, Platform
from cpkv.bench.copy.pools import Pools
from cpkv.device import Direction


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be copied.

    Args:
        pools: Between what.
        pages: Device pages.
        slots: The host slot of each.
        direction: Where to.
    """

    pools: Pools
    pages: NDArray[np.int64]
    slots: NDArray[np.int64]
    direction: Direction

    @property
    def bytes(self) -> int:
        """Of all pages in all layers."""
        return len(self.pages) * self.pools.layout.slot_bytes


class PeerCopies(Protocol):
    """A way to copy."""

    @property
    def name(self) -> str:
        """What it is called in the table."""

    def prepare(self, work: Work) -> Callable[[], None]:
        """Return what queues all copies on the place `copy`.

        Raises:
            Exception: Whatever somebody else's code raises: then there are no figures of it.
        """


class PeerCopier:
    """See `Copier`."""

    def __init__(self, platform: Platform, work: Work, queue: Callable[[], None]) -> None:
        self.bytes = work.bytes
        self.layers = work.pools.layout.layers
        self._platform = platform
        self._queue = queue

    def begin(self) -> None:
        """See `Copier`: it was prepared before."""

    def submit(self) -> None:
        """See `Copier`."""
        self._platform.follow("copy", "compute")
        self._queue()

    def ended(self) -> Mark:
        """See `Copier`."""
        return self._platform.mark("copy")

    def finish(self) -> None:
        """See `Copier`: nothing is left."""


class Contiguous:
    """As many bytes in one copy: what the link can do."""

    name = "contiguous"

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def prepare(self, work: Work) -> Callable[[], None]:
        """See `PeerCopies`."""
        sides = self._platform.host_address, self._platform.device_address()
        destination, source = sides if work.direction == "to_host" else reversed(sides)
        size = min(work.bytes, self._platform.host_bytes, self._platform.device_bytes)
        return lambda: self._platform.copy(destination, source, size)


class EachPage:
    """One copy for each row of each page, to the places where ours go."""

    name = "each page"

    def __init__(self, platform: Platform) -> None:
        self._platform = platform

    def prepare(self, work: Work) -> Callable[[], None]:
        """See `PeerCopies`."""
        device, host = work.pools.device.addresses(work.pages), work.pools.host.addresses(work.slots)
        destinations, sources = (host, device) if work.direction == "to_host" else (device, host)
        sizes = np.broadcast_to(work.pools.layout.row_bytes[:, None], device.shape)
        copies = list(zip(destinations.ravel().tolist(), sources.ravel().tolist(), sizes.ravel().tolist(), strict=True))
        copy = self._platform.copy

        def queue() -> None:
            for destination, source, size in copies:
                copy(destination, source, size)

        return queue


def plain_peers(platform: Platform) -> Sequence[PeerCopies]:
    """Return the peers that every platform has."""
    return Contiguous(platform), EachPage(platform)
