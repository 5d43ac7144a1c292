"""When a GPU has come to marks in its streams, by a clock of the host.

Owns how the two clocks stand to each other, which is found by waiting for marks. Needs neither torch nor a GPU to be
imported: a mark is whatever knows how much later another one was reached, such as an event of torch with its time.
"""

import time
from collections.abc import Callable
from typing import Any, Final, Protocol

TRIES: Final = 20


class Mark(Protocol):
    """A place in a stream."""

    def synchronize(self) -> None:
        """Wait until it is reached."""

    def elapsed_time(self, end: Any) -> float:  # noqa: ANN401 - another mark of the same kind
        """Return how much later `end` was reached, in milliseconds; both were."""


class GpuClock:
    """Tells the host's time of marks.

    Args:
        mark: Makes a mark in a stream that stands idle.
        now_ns: The clock of the host, in nanoseconds.
    """

    def __init__(self, mark: Callable[[], Mark], now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._mark = mark
        self._now_ns = now_ns
        self.align()

    def align(self) -> None:
        """Compare the clocks anew, as they drift apart.

        A mark is reached somewhere between its making and the end of waiting for it. The shortest of several tries
        counts: one behind work of the stream is a long one.
        """
        shortest: int | None = None
        for _ in range(TRIES):
            before = self._now_ns()
            mark = self._mark()
            mark.synchronize()
            after = self._now_ns()
            if shortest is None or after - before < shortest:
                shortest = after - before
                self._anchor, self._anchor_ns = mark, (before + after) // 2

    def nanoseconds(self, mark: Mark) -> int:
        """Return when a mark was reached, as the clock of the host counts; waits for it."""
        mark.synchronize()
        return self._anchor_ns + int(self._anchor.elapsed_time(mark) * 1e6)
