"""Which way a plan is copied: the one that ends first by the machine's figures.

A submission ends when both the link and the calling thread are through with it. Costs are measured on an
idle GPU, and a kernel keeps its rate only there: beside a forward's matrix products it copied 24 GB/s where
batches kept 53, and beside memory traffic 29 where they kept 48, slowing them by 7 % (one H200, 512 scattered
pages, 2026-11-30). So it has to be more than twice as fast as anything else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cpkv.device.cuda.arrays import Path
from cpkv.device.cuda.figures import DIRECTIONS, Figure, Figures
from cpkv.device.plan import Direction

KERNEL_HANDICAP: Final = 2.2
NEARLY_AS_FAST: Final = 0.97
"""Of the rate of single runs: what blocks have to keep, as they are made to save calls."""
LEAST_BLOCK: Final = 2


class CostModel:
    """Chooses among the paths that there are.

    Args:
        figures: Of this machine.
        paths: Those that can be used here.
    """

    def __init__(self, figures: Figures, paths: tuple[Path, ...]) -> None:
        self.figures = figures
        self.paths = paths
        self._curves = {
            (direction, path): _Curve.of(known)
            for direction, by_path in figures.runs.items()
            for path, known in by_path.items()
            if known
        }

    def path(self, direction: Direction, sizes: NDArray[np.int64], counts: NDArray[np.int64]) -> Path:
        """Choose a path.

        Args:
            direction: Where to.
            sizes: Bytes of runs, shape `(n,)`.
            counts: How often each is copied, shape `(n,)`.
        """
        return min(self.paths, key=lambda path: self.microseconds(direction, path, sizes, counts))

    def microseconds(
        self, direction: Direction, path: Path, sizes: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> float:
        """Return how long copies take, with the handicap of the kernel; infinite if that is not known."""
        curve = self._curves.get((direction, path))
        if curve is None:
            return math.inf
        # What is shorter than all that was measured takes as long; what is longer, longer in proportion.
        link = np.interp(sizes, curve.sizes, curve.link_us)
        beyond = sizes > curve.sizes[-1]
        if beyond.any():
            link[beyond] = sizes[beyond] * (curve.link_us[-1] / curve.sizes[-1])
        submit = np.interp(sizes, curve.sizes, curve.submit_us)
        longer = max(float(link @ counts), float(submit @ counts))
        return longer * KERNEL_HANDICAP if path == "kernel" else longer

    def least_block(self, direction: Direction) -> int | None:
        """Return from how many segments on a block is the better call; `None` if never."""
        block = self.figures.blocks.get(direction)
        runs = self.figures.runs[direction].get("batch") or self.figures.runs[direction].get("each")
        if block is None or not runs:
            return None
        run = min(runs, key=lambda figure: abs(figure.size - block.size))
        if block.gb_per_s < NEARLY_AS_FAST * run.gb_per_s:
            return None
        return max(math.ceil(block.submit_us / run.submit_us), LEAST_BLOCK)

    def explain(self) -> Mapping[str, str]:
        """Return what is chosen for runs of the measured sizes, with the figures of every path."""
        said = {"figures": self.figures.source}
        for direction in DIRECTIONS:
            by_path = self.figures.runs[direction]
            for size in sorted({figure.size for figures in by_path.values() for figure in figures}):
                chosen = self.path(direction, np.array([size]), np.array([1]))
                figures = {path: _find(by_path.get(path, ()), size) for path in self.paths}
                told = ", ".join(f"{path} {_told(figure)}" for path, figure in figures.items() if figure)
                said[f"{direction}, runs of {size} bytes"] = f"{chosen}: {told}" if told else chosen
            least = self.least_block(direction)
            block = self.figures.blocks.get(direction)
            if block is not None:
                use = f"from {least} on" if least else "never"
                said[f"{direction}, whole segments in a row"] = (
                    f"one block {use}: {block.gb_per_s:.1f} GB/s, {block.submit_us:.1f} us a call"
                )
        return said


@dataclass(frozen=True, slots=True)
class _Curve:
    """The figures of a path as arrays, ascending by size."""

    sizes: NDArray[np.float64]
    link_us: NDArray[np.float64]
    submit_us: NDArray[np.float64]

    @classmethod
    def of(cls, figures: tuple[Figure, ...]) -> "_Curve":
        return cls(
            np.array([figure.size for figure in figures], np.float64),
            np.array([figure.link_us for figure in figures]),
            np.array([figure.submit_us for figure in figures]),
        )


def _find(figures: tuple[Figure, ...], size: int) -> Figure | None:
    return next((figure for figure in figures if figure.size == size), None)


def _told(figure: Figure) -> str:
    return f"{figure.gb_per_s:.1f} GB/s and {figure.submit_us:.2f} us of CPU"
