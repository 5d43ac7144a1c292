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
SETTLE_NS: Final = 300_000
"""From the latest rank's arrival to the common begin: by then everybody knows it."""


class Stopwatch:
    """Times calls on one rank.

    Args:
        device: The rank's.
    """

    def __init__(self, device: torch.device) -> None:
        self._is_cuda = device.type == "cuda"
        self._now = torch.zeros(1, dtype=torch.int64, device=device)
        if self._is_cuda:
            self._begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def times(self, call: Callable[[], object]) -> dict[str, float]:
        """Return all readings that the device has; the call is made once for each way to begin."""
        if not self._is_cuda:
            self._begin_together()
            started = time.perf_counter_ns()
            call()
            return {CLOCK: (time.perf_counter_ns() - started) / 1e3}
        return self._from_idle(call) | self._queued(call)

    def _from_idle(self, call: Callable[[], object]) -> dict[str, float]:
        self._begin_together()
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

    def _begin_together(self) -> None:
        """Return on all ranks in the same moment, with idle GPUs.

        Those of one host have one clock. Behind a collective alone they would go on at different times, and whoever
        comes first would be timed waiting for the last.
        """
        self._now.fill_(time.perf_counter_ns())
        dist.all_reduce(self._now, op=dist.ReduceOp.MAX)
        start = int(self._now) + SETTLE_NS
        while time.perf_counter_ns() < start:
            pass

    def _meet(self) -> None:
        """Let no rank's GPU go on with what is queued before all have come here."""
        dist.all_reduce(self._now, op=dist.ReduceOp.MAX)

    def _elapsed_us(self) -> float:
        elapsed_ms: float = self._begin.elapsed_time(self._end)
        return elapsed_ms * 1e3
