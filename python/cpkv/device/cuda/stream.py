"""One copy stream: what was submitted, how far it has come, and what to tell whom if it fails.

Owns the stream's handle, its submissions that have not ended, and their events. The stream, or who looks
at its events, writes the ack word; numbers only grow. One thread at a time.
"""

import ctypes
from collections import deque
from contextlib import ExitStack
from typing import Any, Final

from cpkv._core import AckWords
from cpkv.device.cuda.abi import (
    NOT_READY,
    STREAM_CAPTURE_ERRORS,
    STREAM_NON_BLOCKING,
    STREAM_WRITE_WITH_FENCE,
    SUCCESS,
)
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.events import EventPool
from cpkv.device.cuda.failures import CudaStreamError, check, described, refused, release
from cpkv.device.engine import ComputeStream, OnFailure
from cpkv.errors import CopyError

NAMES: Final = ("backup", "late", "restore")


class Submission:
    """What was queued under one number, until the ack word has reached it.

    Args:
        sequence: The number.
        plan: Kept alive: the driver, or a kernel, may still read its arrays.
        on_failure: Called at most once.
    """

    __slots__ = ("event", "on_failure", "plan", "sequence")

    def __init__(self, sequence: int, plan: Any, on_failure: OnFailure) -> None:  # noqa: ANN401 - only held
        self.sequence = sequence
        self.plan = plan
        self.on_failure: OnFailure | None = on_failure
        self.event = 0
        """The point behind its copies; 0 if there is none."""

    def fail(self, error: CopyError) -> None:
        """Tell, unless it was told."""
        tell, self.on_failure = self.on_failure, None
        if tell is not None:
            tell(error)


class CopyStream:
    """A non-blocking stream, destroyed when `stack` is closed.

    Args:
        driver: The driver.
        number: Its place among the streams.
        priority: As the driver counts, lower first.
        acks: Every stream's word.
        word: Where the device sees this one's; 0 if the stream cannot write it.
        keeps_events: Whether `wait` needs a point behind each submission. Without a word there is one
            anyway.
        events: Where they come from.
        stack: Destroys the stream.

    Raises:
        CudaError: The driver refuses.
    """

    def __init__(  # noqa: PLR0913 - what a stream is made of
        self,
        driver: Driver,
        number: int,
        priority: int,
        acks: AckWords,
        *,
        word: int,
        keeps_events: bool,
        events: EventPool,
        stack: ExitStack,
    ) -> None:
        handle = ctypes.c_void_p()
        code = driver.cuStreamCreateWithPriority(ctypes.byref(handle), STREAM_NON_BLOCKING, priority)
        check(driver, "cuStreamCreateWithPriority", code)
        stack.callback(release, driver, "cuStreamDestroy", handle.value)
        self.handle = handle.value or 0
        self.number = number
        self.name = NAMES[number]
        self.last = 0
        """The number of the last submission."""
        self._driver = driver
        self._acks = acks
        self._word = word
        self._has_events = keeps_events or not word
        self._events = events
        self._open: deque[Submission] = deque()

    def __len__(self) -> int:
        """How many submissions have not ended, as far as was looked."""
        return len(self._open)

    def reached(self) -> int:
        """Return the number up to which everything has ended."""
        return self._acks.load(self.number)

    def begin(self, submission: Submission) -> None:
        """Take a number into use, once; whatever happens from now on, no other submission has it."""
        if self.last < submission.sequence:
            self.retire()
            self.last = submission.sequence
            self._open.append(submission)

    def follow(self, compute: ComputeStream, event: int) -> None:
        """Let what is queued from now on begin when what is queued on `compute` by now has ended.

        The wait is for the point that `event` has now, so it can be recorded again at once.

        Raises:
            CudaError: The driver refuses.
        """
        code = self._driver.cuEventRecord(event, compute)
        if code:
            raise refused(self._driver, f"cuEventRecord on the compute stream {compute}", code)
        self.wait_for(event)

    def wait_for(self, event: int) -> None:
        """Let what is queued from now on begin when the point that an event has now is reached.

        Raises:
            CudaError: The driver refuses.
        """
        code = self._driver.cuStreamWaitEvent(self.handle, event, 0)
        if code:
            raise refused(self._driver, "cuStreamWaitEvent", code)

    def end(self, submission: Submission) -> None:
        """Queue the event and the ack behind the copies. The ack is the last of all.

        Raises:
            CudaError: The driver refuses.
        """
        driver = self._driver
        if self._has_events:
            submission.event = submission.event or self._events.take()
            code = driver.cuEventRecord(submission.event, self.handle)
            if code:
                self._events.give(submission.event)
                submission.event = 0
                raise refused(driver, "cuEventRecord on the copy stream", code)
        if self._word:
            code = driver.cuStreamWriteValue64(self.handle, self._word, submission.sequence, STREAM_WRITE_WITH_FENCE)
            if code:
                raise refused(driver, "cuStreamWriteValue64", code)

    def event_of(self, sequence: int) -> int:
        """Return the event behind an open submission; 0 if it has none."""
        for submission in self._open:
            if submission.sequence == sequence:
                return submission.event
        return 0

    def retire(self) -> None:
        """Forget what the word has passed. Nobody waits for its events any more."""
        if self._open:
            reached = self._acks.load(self.number)
            while self._open and self._open[0].sequence <= reached:
                event = self._open.popleft().event
                if event:
                    self._events.give(event)

    def advance(self, sequence: int) -> None:
        """Write the word from here, as everything up to `sequence` is known to have ended."""
        self._acks.store(self.number, sequence)
        self.retire()

    def poll(self) -> CudaStreamError | None:
        """Look how far the stream has come; return how it has failed, if it has.

        An idle stream has ended everything, also what has no ack behind it because that was refused.
        """
        code = self._driver.cuStreamQuery(self.handle)
        if code == SUCCESS:
            self.advance(self.last)
            return None
        if code == NOT_READY:
            return None if self._word else self._look_at_events()
        if code in STREAM_CAPTURE_ERRORS:
            return None
        return self._fail("cuStreamQuery", code)

    def _look_at_events(self) -> CudaStreamError | None:
        reached = 0
        for submission in self._open:
            if not submission.event:
                continue  # a later one is behind it as well
            code = self._driver.cuEventQuery(submission.event)
            if code == NOT_READY or code in STREAM_CAPTURE_ERRORS:
                break
            if code:
                return self._fail("cuEventQuery", code)
            reached = submission.sequence
        if reached:
            self.advance(reached)
        return None

    def synchronize(self) -> CudaStreamError | None:
        """Wait for the end of everything; return how the stream has failed, if it has."""
        code = self._driver.cuStreamSynchronize(self.handle)
        if code:
            return self._fail("cuStreamSynchronize", code)
        self.advance(self.last)
        return None

    def _fail(self, call: str, code: int) -> CudaStreamError:
        """Tell everyone. The word stays: what is under way is not known to end."""
        lost = [submission.sequence for submission in self._open]
        numbers = f"submissions {lost[0]} to {lost[-1]} are" if lost else "nothing of it is"
        message = f"copy stream {self.name} has failed: {call} returned {described(self._driver, code)}; {numbers} lost"
        error = CudaStreamError(message, code)
        while self._open:
            self._open.popleft().fail(error)
        return error
