"""A copy engine of a GPU that tells when it has copied what, by the clock of the host."""

import torch

from cpkv.device import STREAMS, CopyPlan
from cpkv.device.cuda import CudaEngine
from cpkv.device.cuda.clock import GpuClock
from cpkv.device.engine import ComputeStream, OnFailure


class TimedCudaEngine(CudaEngine):
    """A copy engine that knows when it has copied what.

    Args:
        device: Which GPU, as the process counts them.
    """

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.clock = GpuClock(self.mark)
        self._taken: list[tuple[int, int, torch.cuda.Event, torch.cuda.Event]] = []

    def mark(self, stream: int | None = None) -> torch.cuda.Event:
        """Make a mark in a stream, given by its handle; in the current one if not given."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(None if stream is None else torch.cuda.ExternalStream(stream, self.device))
        return event

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
        began = self.mark()
        super().submit(stream, plan, first_layer, end_layer, after=after, on_failure=on_failure)
        self._taken.append((stream, self.next_sequence(stream) - 1, began, self.mark(self.handles[stream])))

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
