"""The copy engine of machines without a GPU: a thread for each stream, and real copies."""

import os
import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from cpkv._core import AckWords
from cpkv.device.cpu_stream import CpuEvent, CpuStream
from cpkv.device.engine import STREAMS, ComputeStream, OnFailure
from cpkv.device.moving import move, pieces
from cpkv.device.plan import CopyPlan, Direction, plan_copies
from cpkv.errors import CopyError, UsageError
from cpkv.layout import DevicePool, HostPool

OnCopied = Callable[[int, int, int, int], None]


class CpuEngine:
    """Copies in threads of its own, one for each copy stream. See `CopyEngine` for the calls.

    It belongs to the process that made it: a forked child has no such threads, and may only close it.

    Args:
        delay_s: Seconds before each submission begins; a number, or a function of the stream.
        bytes_per_s: What a stream copies at most; `None` for as fast as it goes.
        fails: Which submissions fail, by stream and sequence number, for tests of what follows: the
            first half of the bytes is copied, the rest is not.
        on_copied: Told of each submission when its copies have ended: stream, sequence number, and when they
            began and ended in nanoseconds of `time.monotonic_ns`. Called by the threads.
    """

    name = "cpu"

    def __init__(
        self,
        *,
        delay_s: float | Callable[[int], float] = 0.0,
        bytes_per_s: float | None = None,
        fails: Callable[[int, int], bool] | None = None,
        on_copied: OnCopied | None = None,
    ) -> None:
        self.acks = AckWords(STREAMS)
        self._delay_s = delay_s if callable(delay_s) else lambda _: delay_s
        self._bytes_per_s = bytes_per_s
        self._fails = fails or (lambda _, __: False)
        self._on_copied = on_copied
        self._sequences = [0] * STREAMS
        self._landed = threading.Condition()
        self._streams = [CpuStream(f"copy-{stream}") for stream in range(STREAMS)]
        self._process = os.getpid()
        self._is_paused = False
        self._is_closed = False

    def plan(
        self,
        device: DevicePool,
        host: HostPool,
        pages: NDArray[np.int64],
        slots: NDArray[np.int64],
        direction: Direction,
    ) -> CopyPlan:
        """See `CopyEngine.plan`."""
        return plan_copies(device, host, pages, slots, direction=direction)

    def next_sequence(self, stream: int) -> int:
        """See `CopyEngine.next_sequence`."""
        return self._sequences[stream] + 1

    def mark(self, compute: ComputeStream) -> ComputeStream:
        """See `CopyEngine.mark`."""
        return _event(compute)

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
        self._check_open()
        event = _event(after)
        self._sequences[stream] += 1
        sequence = self._sequences[stream]

        def copy() -> None:
            try:
                if event is not None:
                    event.wait()
                began_ns = time.monotonic_ns()
                self._copy(stream, sequence, plan, first_layer, end_layer)
                if self._on_copied is not None:
                    self._on_copied(stream, sequence, began_ns, time.monotonic_ns())
            except Exception as error:  # noqa: BLE001 - whatever it is, not all bytes are there
                on_failure(error if isinstance(error, CopyError) else CopyError(repr(error)))
            finally:
                with self._landed:
                    self.acks.store(stream, sequence)
                    self._landed.notify_all()

        self._streams[stream].run(copy)

    def _copy(self, stream: int, sequence: int, plan: CopyPlan, first_layer: int, end_layer: int) -> None:
        self._rest(self._delay_s(stream))
        copies = list(pieces(plan, first_layer, end_layer))
        fails = self._fails(stream, sequence)
        for destination, source, size in copies[: len(copies) // 2] if fails else copies:
            move(destination, source, size)
            if self._bytes_per_s is not None:
                self._rest(size / self._bytes_per_s)
        if fails:
            message = f"submission {sequence} of stream {stream} was made to fail"
            raise CopyError(message)

    def _rest(self, seconds: float) -> None:
        """Wait, unless the engine is closed: then the rest is copied at once."""
        if seconds > 0:
            with self._landed:
                self._landed.wait_for(lambda: self._is_closed, seconds)

    def wait(self, compute: ComputeStream, stream: int, sequence: int) -> None:
        """See `CopyEngine.wait`."""
        if compute is None:
            self._wait(stream, sequence)
        else:
            compute.run(lambda: self._wait(stream, sequence))

    def _wait(self, stream: int, sequence: int) -> None:
        if self.acks.load(stream) >= sequence:
            return
        self._check_process()
        with self._landed:
            self._landed.wait_for(lambda: self.acks.load(stream) >= sequence)

    def poll(self) -> None:
        """See `CopyEngine.poll`: failures are told by the threads that find them."""

    def synchronize(self) -> None:
        """See `CopyEngine.synchronize`."""
        self._check_process()
        for stream in self._streams:
            stream.synchronize()

    def pause(self) -> None:
        """See `CopyEngine.pause`."""
        self._is_paused = True
        self.synchronize()

    def resume(self) -> None:
        """See `CopyEngine.resume`."""
        self._is_paused = False

    def close(self) -> None:
        """See `CopyEngine.close`."""
        if os.getpid() != self._process:
            return
        with self._landed:
            self._is_closed = True
            self._landed.notify_all()
        for stream in self._streams:
            stream.close()

    def explain(self) -> Mapping[str, str]:
        """See `CopyEngine.explain`."""
        return {"every size": "memmove in a thread for each stream: there is no GPU"}

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            message = (
                f"the copy engine is of process {self._process}, and this is {os.getpid()}: make one after the fork"
            )
            raise UsageError(message)

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed or self._is_paused:
            message = f"the copy engine is {'closed' if self._is_closed else 'paused'}: nothing can be submitted"
            raise UsageError(message)


def _event(after: ComputeStream) -> CpuEvent | None:
    """Record where a compute stream is; the calling thread itself has done what it has queued."""
    if after is None:
        return None
    event: CpuEvent = after.record()
    return event
