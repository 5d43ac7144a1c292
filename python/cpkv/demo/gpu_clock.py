"""When something was on a GPU, by the clock of the host."""

import time
from typing import Final

import torch

from cpkv.device import STREAMS, CopyPlan
from cpkv.device.cuda import CudaEngine
from cpkv.device.engine import ComputeStream, OnFailure

TRIES: Final = 20


class GpuClock:
    """Marks in streams, and when they were reached.

    Args:
        device: Which GPU, as the process counts them.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._anchor = self._aligned()

    def mark(self, stream: int | None = None) -> torch.cuda.Event:
        """Record a mark in a stream, given by its handle; in the current one if not given."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(None if stream is None else torch.cuda.ExternalStream(stream, self._device))
        return event

    def nanoseconds(self, mark: torch.cuda.Event) -> int:
        """Return when it was reached, as `time.monotonic_ns` counts; waits for it."""
        mark.synchronize()
        event, at = self._anchor
        return at + int(event.elapsed_time(mark) * 1e6)

    def _aligned(self) -> tuple[torch.cuda.Event, int]:
        """The mark lies somewhere between before and after: the shortest of several tries."""
        tries = []
        for _ in range(TRIES):
            before = time.monotonic_ns()
            event = self.mark()
            event.synchronize()
            after = time.monotonic_ns()
            tries.append((after - before, event, (before + after) // 2))
        _, event, at = min(tries, key=lambda taken: taken[0])
        return event, at


class TimedCudaEngine(CudaEngine):
    """A copy engine that knows when it has copied what.

    Args:
        device: Which GPU, as the process counts them.
    """

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.clock = GpuClock(device)
        self._taken: list[tuple[int, int, torch.cuda.Event, torch.cuda.Event]] = []

    def submit(  # noqa: PLR0913 - as the protocol has it
        self,
        stream: int,
        plan: CopyPlan,
        first_layer: int,
        end_layer: int,
        *,
        after: ComputeStream,
        on_failure: OnFailure,
    ) -> None:
        """See `CopyEngine.submit`."""
        began = self.clock.mark()
        super().submit(stream, plan, first_layer, end_layer, after=after, on_failure=on_failure)
        self._taken.append((stream, self.next_sequence(stream) - 1, began, self.clock.mark(self.handles[stream])))

    def copies(self) -> list[tuple[int, int, int, int]]:
        """Return stream, number, begin and end of all submissions; waits for them.

        A submission begins when what it waits for and the one before it have ended.
        """
        ends = dict.fromkeys(range(STREAMS), 0)
        told = []
        for stream, sequence, began, ended in self._taken:
            end = self.clock.nanoseconds(ended)
            told.append((stream, sequence, max(self.clock.nanoseconds(began), ends[stream]), end))
            ends[stream] = end
        return told
