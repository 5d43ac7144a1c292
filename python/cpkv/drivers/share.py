"""Which pages of an operation this rank copies, and what they are called in its own lane."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpkv._core import CacheManager, Transaction
from cpkv.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Share:
    """The pages of one lane: logical id to physical id and back is arithmetic, nothing is stored.

    Args:
        lanes: Lanes of the cache.
        own_lane: The lane of this rank; 0 if there is one lane, of which every rank has its own bytes.
    """

    lanes: int
    own_lane: int

    @classmethod
    def of_cache(cls, cache: CacheManager) -> "Share":
        """Return the share of the rank that a cache was made for.

        Raises:
            ConfigError: It has several lanes and does not say which is its own.
        """
        if cache.lanes > 1 and cache.own_lane is None:
            message = f"own_lane is None with {cache.lanes} lanes, want the lane whose pages this rank copies"
            raise ConfigError(message)
        return cls(cache.lanes, cache.own_lane or 0)

    def pages(self, operations: Iterable[Transaction]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the device pages and host slots of operations in this lane, physical ones, shape `(n,)`."""
        plans = [operation.plan() for operation in operations]
        if not plans:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        pages = np.concatenate([np.asarray(pages) for pages, _ in plans])
        slots = np.concatenate([np.asarray(slots) for _, slots in plans])
        if self.lanes == 1:
            return pages, slots
        own = slots % self.lanes == self.own_lane
        return pages[own] // self.lanes, slots[own] // self.lanes
