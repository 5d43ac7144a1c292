"""What copies cost on a machine: the figures that a path is chosen by."""

from dataclasses import dataclass, field
from typing import Final

from cpkv.device.cuda.arrays import Path
from cpkv.device.plan import Direction

DIRECTIONS: Final[tuple[Direction, ...]] = ("to_host", "to_device")


@dataclass(frozen=True, slots=True)
class Figure:
    """The cost of one contiguous copy among many of its size.

    Args:
        size: Bytes.
        link_us: Microseconds that it takes of the link.
        submit_us: Microseconds of the calling thread; of the whole call for a block.
    """

    size: int
    link_us: float
    submit_us: float

    @property
    def gb_per_s(self) -> float:
        """Bytes over time, in 10⁹ a second."""
        return self.size / self.link_us / 1e3


@dataclass(frozen=True)
class Figures:
    """What was measured on a machine, or is taken for it.

    Args:
        source: Where and when, for people.
        runs: By direction and path, ascending by size.
        blocks: By direction: a segment as a line of a block, and the call that copies the block.
    """

    source: str
    runs: dict[Direction, dict[Path, tuple[Figure, ...]]]
    blocks: dict[Direction, Figure] = field(default_factory=dict)


def _at(size: int, gb_per_s: float, submit_us: float) -> Figure:
    return Figure(size, size / gb_per_s / 1e3, submit_us)


_TO_HOST: Final[dict[Path, tuple[Figure, ...]]] = {
    "batch": (_at(8_448, 15.9, 0.49), _at(73_728, 44.0, 0.39), _at(294_912, 53.0, 0.41), _at(2_359_296, 54.7, 0.6)),
    "kernel": (_at(73_728, 51.0, 0.002), _at(2_359_296, 52.0, 0.03)),
    "each": (_at(8_448, 1.7, 5.3), _at(73_728, 14.5, 5.1), _at(294_912, 36.6, 6.3), _at(2_359_296, 50.0, 6.5)),
}

ON_H200: Final = Figures(
    source="one H200, PCIe Gen5 x16, driver 580, 2026-11-29: nothing was measured here",
    runs={"to_host": _TO_HOST, "to_device": _TO_HOST},
    blocks={"to_host": _at(2_359_296, 54.2, 7.0), "to_device": _at(2_359_296, 54.2, 7.0)},
)
"""For machines where nothing could be measured."""
