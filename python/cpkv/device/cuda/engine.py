"""The copy engine of NVIDIA GPUs, over the driver alone: no torch, no package of NVIDIA's.

A submission is a few calls: an event on the compute stream, a wait for it on the copy stream, the
copies, and behind them the ack word, which the copy stream itself writes. The copy streams are
non-blocking ones and nothing on them is ever captured. Who may block: `wait` without a compute stream,
`synchronize`, `pause` and `close`; nothing else waits for the GPU.
"""

import ctypes
import logging
import os
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from cpkv._core import AckWords
from cpkv.device.cuda.abi import DEINITIALIZED, EVENT_DISABLE_TIMING, STREAM_CAPTURE_ERRORS
from cpkv.device.cuda.arrays import PreparedPlan
from cpkv.device.cuda.choice import Choice, CopyPath, wanted_path
from cpkv.device.cuda.context import Context
from cpkv.device.cuda.driver import Driver, load_driver
from cpkv.device.cuda.events import EventPool, Mark, new_event
from cpkv.device.cuda.failures import CudaError, CudaStreamError, check, refused, release
from cpkv.device.cuda.stream import CopyStream, Submission
from cpkv.device.cuda.words import register_words
from cpkv.device.engine import RESTORE, STREAMS, ComputeStream, OnFailure
from cpkv.device.plan import CopyPlan, Direction, plan_copies
from cpkv.errors import UsageError
from cpkv.layout import DevicePool, HostPool

KERNEL_QUOTA: Final = 2
_logger: Final = logging.getLogger("cpkv.device")


class CudaEngine:
    """Copies between pages of a GPU and pinned host memory. See `CopyEngine` for the calls.

    Args:
        device: Which GPU, as the process counts them; `None` for that of the current context, or the
            first.
        copy_path: How runs are copied: `"auto"` by what was measured on this machine, `"batch"`,
            `"blocks"` (two-pitched copies where whole segments follow each other, else as `"batch"`),
            `"kernel"`, or `"each"` one by one. `None` for what `CPKV_COPY_PATH` says, or `"auto"`.
        quota: Multiprocessors that the copy kernel may use.
        driver: What to call instead of the process's driver.

    Raises:
        ConfigError: There is no driver or GPU, or no such path here.
        CudaError: The driver refuses.
    """

    name = "cuda"

    def __init__(
        self,
        device: int | None = None,
        *,
        copy_path: CopyPath | None = None,
        quota: int = KERNEL_QUOTA,
        driver: Driver | None = None,
    ) -> None:
        wanted = wanted_path(copy_path)
        self._driver = driver = driver or load_driver()
        self.acks = AckWords(STREAMS)
        self._refusal = ""
        self._lost: CudaError | None = None
        """Why copies are not known to have ended when the engine was closed."""
        self._status = ctypes.c_int()
        self._status_at = ctypes.byref(self._status)
        stack = ExitStack()
        self._context = Context(driver, device, stack)
        try:
            with self._context.current():
                self._make_parts(wanted, quota, stack)
        except BaseException:
            _tear_down(os.getpid(), driver, self._context, (), stack)
            raise
        self._queue_blocks = self._choice.queue_blocks
        # Also when nobody closes the engine: the driver must not write into words that are freed. This runs
        # before the engine lets go of them.
        handles = tuple(stream.handle for stream in self._streams)
        self._tear_down = weakref.finalize(self, _tear_down, os.getpid(), driver, self._context, handles, stack)

    def _make_parts(self, wanted: CopyPath, quota: int, stack: ExitStack) -> None:
        driver, context = self._driver, self._context
        self._words = register_words(driver, context, self.acks, stack)
        self._events = events = EventPool(driver, stack)
        self._after = new_event(driver, EVENT_DISABLE_TIMING, stack)
        self._tail = new_event(driver, EVENT_DISABLE_TIMING, stack)
        least, greatest = _priorities(driver)
        self._streams = tuple(
            CopyStream(
                driver,
                number,
                greatest if number == RESTORE else least,
                self.acks,
                word=self._words.addresses[number] if self._words.addresses else 0,
                keeps_events=number == RESTORE,
                events=events,
                stack=stack,
            )
            for number in range(STREAMS)
        )
        self._choice = Choice(driver, context, wanted=wanted, quota=quota, streams=self._streams, stack=stack)

    def plan(
        self,
        device: DevicePool,
        host: HostPool,
        pages: NDArray[np.int64],
        slots: NDArray[np.int64],
        direction: Direction,
    ) -> PreparedPlan:
        """See `CopyEngine.plan`. The first one measures what copies cost, if no file tells.

        Raises:
            PageError: There is no such page or slot.
            UsageError: The engine is closed.
        """
        if not self._tear_down.alive:
            self._refuse("the copy engine is closed")
        least_block = self._choice.least_block(host, direction)
        return self._choice.prepare(
            plan_copies(device, host, pages, slots, direction=direction, least_block=least_block)
        )

    def next_sequence(self, stream: int) -> int:
        """See `CopyEngine.next_sequence`."""
        return self._streams[stream].last + 1

    def mark(self, compute: ComputeStream) -> Mark | None:
        """See `CopyEngine.mark`. Without `compute` there is nothing to wait for."""
        if compute is None:
            return None
        was_other = self._context.enter()
        try:
            self._check_capture(compute)
            mark = Mark(self._events)
            mark.record(self._driver, compute)
        finally:
            if was_other:
                self._context.leave()
        return mark

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
        """See `CopyEngine.submit`. Without `after` there is nothing to wait for."""
        if self._refusal:
            self._refuse(f"the copy engine is {self._refusal}")
        if not isinstance(plan, PreparedPlan):
            message = f"the plan is a {type(plan).__name__}, want one that this engine has prepared"
            raise UsageError(message)
        firsts = plan.layout.first_rows
        if not 0 <= first_layer <= end_layer < len(firsts):
            message = f"layers are {first_layer} to {end_layer}, want 0 to {len(firsts) - 1}"
            raise UsageError(message)
        first_row, end_row = firsts[first_layer], firsts[end_layer]
        copies = self._streams[stream]
        submission = Submission(copies.last + 1, plan, on_failure)
        was_other = False
        try:
            was_other = self._context.enter()
            self._check_capture(after)
            copies.begin(submission)
            if isinstance(after, Mark):
                copies.wait_for(after.event)
            elif after is not None:
                copies.follow(after, self._after)
            plan.queue(plan.arrays, first_row, end_row, copies)
            if plan.lines is not None:
                self._queue_blocks(plan.lines, first_row, end_row, copies)
            copies.end(submission)
        except UsageError:
            raise  # the number was not used
        except BaseException as error:
            what = f"layers {first_layer} to {end_layer - 1}, submission {submission.sequence} of {copies.name}"
            self._drain(copies, submission, what, error)
            raise
        finally:
            if was_other:
                self._context.leave()

    def _drain(self, copies: CopyStream, submission: Submission, what: str, error: BaseException) -> None:
        """Tell of a failure first, and then let the word pass it behind whatever was queued.

        Raises:
            CudaError: If it was one, with what it has happened to.
        """
        failure = CudaError(f"{what}: {error!s}", error.code if isinstance(error, CudaError) else 0)
        submission.fail(failure)
        try:
            copies.begin(submission)
            copies.end(submission)
        except CudaError as lost:
            _logger.warning("%s: no ack behind submission %d: %s", copies.name, submission.sequence, lost)
        if isinstance(error, CudaError):
            raise failure from error

    def wait(self, compute: ComputeStream, stream: int, sequence: int) -> None:
        """See `CopyEngine.wait`. Made for restores; on other streams it waits for all that is submitted.

        Raises:
            UsageError: There is no such submission, or `compute` is being captured.
            CudaError: The driver refuses, or the stream has failed.
        """
        copies = self._streams[stream]
        if copies.reached() >= sequence:
            return
        if sequence > copies.last:
            message = f"submission is {sequence} of {copies.name}, want at most {copies.last}"
            raise UsageError(message)
        driver = self._driver
        was_other = self._context.enter()
        try:
            if compute is not None and self._is_capturing(compute):
                message = f"stream {compute} is being captured into a graph: it cannot wait for a copy"
                raise UsageError(message)
            event = copies.event_of(sequence)
            if not event:
                event = self._tail
                check(driver, "cuEventRecord on the copy stream", driver.cuEventRecord(event, copies.handle))
            if compute is not None:
                code = driver.cuStreamWaitEvent(compute, event, 0)
                if code:
                    raise refused(driver, f"cuStreamWaitEvent on the compute stream {compute}", code)
            else:
                code = driver.cuEventSynchronize(event)
                if code:
                    raise refused(driver, f"{copies.name}, submission {sequence}: cuEventSynchronize", code)
                copies.advance(sequence)
        finally:
            if was_other:
                self._context.leave()

    def _check_capture(self, compute: ComputeStream) -> None:
        if compute is not None and not isinstance(compute, Mark) and self._is_capturing(compute):
            self._refuse(f"stream {compute} is being captured into a graph")

    def _is_capturing(self, compute: ComputeStream) -> bool:
        try:
            code = self._driver.cuStreamIsCapturing(compute, self._status_at)
        except ctypes.ArgumentError as error:
            message = f"the compute stream is {compute!r}, want its handle as an integer"
            raise UsageError(message) from error
        if code in STREAM_CAPTURE_ERRORS:
            return True  # asked of the legacy stream, while another one is captured
        if code:
            raise refused(self._driver, f"cuStreamIsCapturing of stream {compute}", code)
        return self._status.value != 0

    def poll(self) -> None:
        """See `CopyEngine.poll`. Without words that streams write, it is what writes them."""
        busy = False
        for stream in self._streams:
            stream.retire()
            busy = busy or len(stream) > 0
        if busy:
            with self._context.current():
                for stream in self._streams:
                    if len(stream):
                        self._report(stream.poll())

    def synchronize(self) -> None:
        """See `CopyEngine.synchronize`."""
        if not self._tear_down.alive:
            self._tell_lost()
            return
        with self._context.current():
            errors = [error for stream in self._streams if (error := stream.synchronize()) is not None]
        for error in errors:
            self._report(error)
        if errors:
            raise CudaStreamError("; ".join(map(str, errors)), errors[0].code)

    def _report(self, error: CudaStreamError | None) -> None:
        if error is not None:
            _logger.error("%s", error)

    def pause(self) -> None:
        """See `CopyEngine.pause`."""
        self._refusal = self._refusal or "paused"
        self.synchronize()

    def resume(self) -> None:
        """See `CopyEngine.resume`."""
        if self._tear_down.alive:
            self._refusal = ""

    def close(self) -> None:
        """See `CopyEngine.close`."""
        if not self._tear_down.alive:
            self._tell_lost()
            return
        self._refusal = "closed"
        try:
            self.synchronize()
        except CudaError as error:
            self._lost = error
            raise
        finally:
            code = self._tear_down()
            if code and self._lost is None:
                self._lost = refused(self._driver, "cuStreamSynchronize", code)

    def _tell_lost(self) -> None:
        """Raise as often as somebody asks: whoever believes that all copies have ended unmaps their memory."""
        if self._lost is not None:
            raise CudaStreamError(str(self._lost), self._lost.code)

    @property
    def device(self) -> int:
        """Which GPU, as the process counts them."""
        return self._context.device

    @property
    def handles(self) -> tuple[int, ...]:
        """The CUDA handles of the copy streams, for events of the caller's own behind what is submitted."""
        return tuple(stream.handle for stream in self._streams)

    def calibrate(self) -> None:
        """Measure what copies cost here, unless a file tells; otherwise the first plan does it.

        Raises:
            UsageError: The engine is closed.
        """
        if not self._tear_down.alive:
            self._refuse("the copy engine is closed")
        self._choice.measured()

    def link_peak(self, direction: Direction) -> float:
        """Return the best rate of large copies that was measured, in GB/s (10⁹ bytes a second)."""
        figures = self._choice.measured().figures
        runs = [figure for path in figures.runs[direction].values() for figure in path]
        return max(figure.gb_per_s for figure in (*runs, *filter(None, [figures.blocks.get(direction)])))

    def explain(self) -> Mapping[str, str]:
        """See `CopyEngine.explain`."""
        return {**self._choice.explain(), "acks": self._words.reason}

    def _refuse(self, reason: str) -> NoReturn:
        message = f"{reason}: nothing can be submitted"
        raise UsageError(message)


def _priorities(driver: Driver) -> tuple[int, int]:
    """Return the least and the greatest priority of a stream. Forwards wait for restores alone."""
    least, greatest = ctypes.c_int(), ctypes.c_int()
    code = driver.cuCtxGetStreamPriorityRange(ctypes.byref(least), ctypes.byref(greatest))
    check(driver, "cuCtxGetStreamPriorityRange", code)
    return least.value, greatest.value


def _tear_down(pid: int, driver: Driver, context: Context, streams: tuple[int, ...], stack: ExitStack) -> int:
    """Let go of everything, when all copies have ended. In a child process nothing is ours.

    Returns:
        Why copies are not known to have ended, as the driver puts it; 0 if they have.
    """
    if os.getpid() != pid:
        return 0
    try:
        was_other = context.enter()
    except CudaError as error:
        _logger.debug("nothing is given back, the driver has gone: %s", error)
        return 0 if error.code == DEINITIALIZED else error.code
    codes = [release(driver, "cuStreamSynchronize", stream) for stream in streams]
    stack.close()
    if was_other:
        context.leave()
    return max(codes, default=0)
