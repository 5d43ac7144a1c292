"""What a process that watches the ranks sees of them while they run: a few numbers in shared memory."""

from multiprocessing import sharedctypes
from typing import Any, Final

CELLS: Final = 5
SCENARIO, LAYER, COPIES, COMMITS, STEPS = range(CELLS)


def new_cells(ranks: int) -> Any:  # noqa: ANN401 - an array of ctypes
    """Return the numbers of so many ranks, all 0."""
    return sharedctypes.RawArray("q", ranks * CELLS)


class Progress:
    """The numbers of one rank.

    Args:
        cells: Of all ranks.
        rank: Which one.
    """

    def __init__(self, cells: Any, rank: int) -> None:  # noqa: ANN401 - see `new_cells`
        self._cells = cells
        self._first = rank * CELLS

    def scenario(self, place: int) -> None:
        """A scenario begins."""
        self._cells[self._first + SCENARIO] = place

    def layer(self, layer: int) -> None:
        """A layer has ended."""
        self._cells[self._first + LAYER] = layer

    def add(self, cell: int, count: int = 1) -> None:
        """Count something."""
        self._cells[self._first + cell] += count

    def seen(self) -> tuple[int, ...]:
        """Return all of them."""
        return tuple(self._cells[self._first : self._first + CELLS])
