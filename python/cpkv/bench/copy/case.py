"""What one set of rows is about: which way, how many pages of a layer, and how they lie on the device."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cpkv.bench.copy.patterns import capacity_for, pattern_name, spread_pages
from cpkv.bench.copy.pools import whole_segments
from cpkv.bench.copy.targets import ALONE
from cpkv.device import Direction

RUNS: Final[dict[Direction, tuple[int, ...]]] = {"to_host": (1, 16), "to_device": (1, 4, 16)}
LONGEST_RUN: Final = 16


@dataclass(frozen=True, slots=True)
class Case:
    """See the module.

    Args:
        direction: Which way.
        pages: Of a layer.
        run_pages: Neighbours on the device; 1 for pages scattered one by one.
    """

    direction: Direction
    pages: int
    run_pages: int

    def __str__(self) -> str:
        return f"{self.direction.replace('_', ' ')}, {self.pages} pages, {pattern_name(self.run_pages)}"

    @property
    def device_pages(self) -> int:
        """Device pages that there have to be."""
        return capacity_for(self.pages, LONGEST_RUN)

    @property
    def slots(self) -> int:
        """Host slots that there have to be."""
        return whole_segments(self.pages)

    def places(self) -> NDArray[np.int64]:
        """Return the device pages."""
        return spread_pages(self.pages, self.run_pages, self.device_pages)


def cases(direction: Direction, pages: int) -> list[Case]:
    """Return the ways in which so many pages can lie."""
    return [Case(direction, pages, run_pages) for run_pages in RUNS[direction] if run_pages <= pages]


def beside_name(load: str) -> str:
    """Return a load, or none, as rows call it."""
    return load if load == ALONE else f"beside {load}"
