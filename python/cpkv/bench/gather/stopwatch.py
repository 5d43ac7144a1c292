"""Times one call on every rank, all of them beginning together. Needs torch.

A reading is in microseconds:

- `clock`, by the clock of the thread, from before the call to the end of what it has queued;
- `events`, between two events of the GPU around it, which stands idle before: what launching takes is in it;
- `queued`, the same behind work that lasts until everything is queued, as at the end of a forward: the GPU's part.
"""

import time
from collections.abc import Callable
from typing import Final

import torch
import torch.distributed as dist

from cpkv.bench.gather.figures import CLOCK, EVENTS, QUEUED

HOLD_CYCLES: Final = 1_000_000
"""Some half a millisecond: longer than a thread needs to queue a collective or two."""


class Stopwatch:
    """Times calls on one rank.

    Args:
        device: The rank's.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._nothing = torch.zeros(1, device=device)
        if self._is_cuda:
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    @property
    def ways_to_begin(self) -> tuple[Callable[[Callable[[], object]], dict[str, float]], ...]:
        """What times one call each, and returns the readings that it has taken."""
        return (self._from_idle, self._queued) if self._is_cuda else (self._called,)

    def _called(self, call: Callable[[], object]) -> dict[str, float]:
        self._meet()
        started = time.perf_counter_ns()
        call()
        return {CLOCK: (time.perf_counter_ns() - started) / 1e3}

    def _from_idle(self, call: Callable[[], object]) -> dict[str, float]:
        self._meet()
        torch.cuda.synchronize()
        self._begin.record()
        started = time.perf_counter_ns()
        call()
        self._end.record()
        torch.cuda.synchronize()
        ended = time.perf_counter_ns()
        return {CLOCK: (ended - started) / 1e3, EVENTS: self._elapsed_us()}

    def _queued(self, call: Callable[[], object]) -> dict[str, float]:
        torch.cuda._sleep(HOLD_CYCLES)  # noqa: SLF001 - torch has no other
        # In the queue as well: otherwise one rank would be timed waiting for the other.
        self._meet()
        self._begin.record()
        call()
        self._end.record()
        torch.cuda.synchronize()
        return {QUEUED: self._elapsed_us()}

    def _meet(self) -> None:
        """Let nobody go on, on the CPU or in the queue of the GPU, before all ranks have come here."""
        dist.all_reduce(self._nothing)

    def _elapsed_us(self) -> float:
        elapsed_ms: float = self._begin.elapsed_time(self._end)
        return elapsed_ms * 1e3
