"""The host slots that come free: overwritten, so that stale bytes cannot pass for right ones.

Owns what was in use when it looked last. Writes to slots of this rank's lane that nobody has: no copy of any rank
reads or writes them. Must not write to others: a reservation has its slots from the moment it is made, an aborted
backup until its copies have ended, and a restore those that it reads.
"""

import ctypes
from collections.abc import Iterable

import numpy as np

from cpkv._core import CacheManager
from cpkv.engine.pools import SCRIBBLE
from cpkv.layout import HostPool


class FreedSlots:
    """Overwrites the slots of one rank.

    Args:
        cache: Which has the slots of all lanes.
        host: The memory of this rank's.
        rank: This one.
        cp_size: Ranks, and lanes.
    """

    def __init__(self, cache: CacheManager, host: HostPool, rank: int, cp_size: int) -> None:
        self._cache = cache
        self._host = host
        self._rank, self._cp_size = rank, cp_size
        # Memory begins as something else: at first every slot that is free is overwritten.
        self._used = frozenset(range(cache.host_slots))

    def overwrite(self) -> None:
        """Overwrite what has come free since the last call. The cache must not be used by others meanwhile.

        A slot that one page has left and another one has taken in between is not among it: the bytes of the first
        lie there until the copies of the second land.
        """
        used = used_slots(self._cache)
        self._scribble(self._used - used)
        self._used = used

    def _scribble(self, slots: Iterable[int]) -> None:
        own = np.array([slot // self._cp_size for slot in slots if slot % self._cp_size == self._rank], np.int64)
        for row, addresses in zip(self._host.layout.rows, self._host.addresses(own), strict=True):
            for address in addresses.tolist():
                ctypes.memset(address, SCRIBBLE, row.component.row_bytes)


def used_slots(cache: CacheManager) -> frozenset[int]:
    """Return the host slots that a page of the cache or an unfinished copy has; the others are free.

    Reads the whole state of the cache, which an engine that is in a hurry would not do.
    """
    state = cache.dump()
    return frozenset(slot for owner in (*state["nodes"], *state["operations"]) for slot in owner["host_slots"])
