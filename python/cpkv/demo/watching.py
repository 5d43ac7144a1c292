"""What a process that watches the ranks sees of them while they run: a few numbers in shared memory."""

from dataclasses import dataclass
from multiprocessing import sharedctypes
from typing import Any, Final

SCENARIO, STEPS, COMMITS = range(3)
_COUNTS: Final = 3


def new_cells(ranks: int, layers: int) -> Any:  # noqa: ANN401 - an array of ctypes
    """Return the numbers of so many ranks, all 0."""
    return sharedctypes.RawArray("q", ranks * _cells(layers))


def _cells(layers: int) -> int:
    return _COUNTS + 2 * layers


@dataclass(frozen=True, slots=True)
class Seen:
    """What a rank has done so far.

    Args:
        scenario: The place of the one that it is in.
        steps: Of its scheduler.
        commits: Backups that have become visible, late ones too.
        computed: How often each layer has ended, the draft's behind the target's.
        copied: How often each layer's copies to the host have ended.
    """

    scenario: int
    steps: int
    commits: int
    computed: tuple[int, ...]
    copied: tuple[int, ...]


class Progress:
    """The numbers of one rank.

    Args:
        cells: Of all ranks.
        rank: Which one.
        layers: Of a forward, the draft's included.
    """

    def __init__(self, cells: Any, rank: int, layers: int) -> None:  # noqa: ANN401 - see `new_cells`
        self._cells = cells
        self._first = rank * _cells(layers)
        self._layers = layers

    def scenario(self, place: int) -> None:
        """A scenario begins."""
        self._cells[self._first + SCENARIO] = place

    def computed(self, layer: int) -> None:
        """A layer has ended."""
        self._cells[self._first + _COUNTS + layer] += 1

    def copied(self, layer: int) -> None:
        """A layer's copies have ended."""
        self._cells[self._first + _COUNTS + self._layers + layer] += 1

    def add(self, cell: int, count: int = 1) -> None:
        """Count steps or commits."""
        self._cells[self._first + cell] += count

    def seen(self) -> Seen:
        """Return all of them."""
        cells = self._cells[self._first : self._first + _cells(self._layers)]
        layers = cells[_COUNTS:]
        return Seen(
            scenario=cells[SCENARIO],
            steps=cells[STEPS],
            commits=cells[COMMITS],
            computed=tuple(layers[: self._layers]),
            copied=tuple(layers[self._layers :]),
        )
