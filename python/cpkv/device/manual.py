"""A copy engine that does what a test tells it, with real bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpkv._core import AckWords
from cpkv.device.engine import STREAMS, ComputeStream, OnFailure
from cpkv.device.moving import move, pieces
from cpkv.device.plan import CopyPlan, Direction, plan_copies
from cpkv.errors import CopyError, UsageError
from cpkv.layout import DevicePool, HostPool


@dataclass
class Submission:
    """Copies that were queued, and what has become of them."""

    sequence: int
    plan: CopyPlan
    first_layer: int
    end_layer: int
    on_failure: OnFailure
    has_ended: bool = field(default=False, init=False)


class ManualEngine:
    """Nothing lands, and no ack is written, before a test says so. See `CopyEngine` for the calls.

    Copies of one stream may land out of order; an ack word only says what has ended up to its number.

    Args:
        least_block: As for `plan_copies`.
    """

    name = "manual"

    def __init__(self, *, least_block: int | None = None) -> None:
        self.acks = AckWords(STREAMS)
        self.queues: list[list[Submission]] = [[] for _ in range(STREAMS)]
        """What was submitted on each stream and is not acknowledged."""
        self.waits: list[tuple[int, int]] = []
        """Each stream and number that a forward was made to wait for."""
        self._least_block = least_block
        self._sequences = [0] * STREAMS
        self._refusal: int | None = None
        self._is_capturing = False
        self._refuses = ""

    # --- What a test does ---

    def land(self, stream: int, *, place: int = 0, acknowledge: bool = True) -> bool:
        """Let a submission end: the first of those on their way, or another one.

        Args:
            stream: Where.
            place: How many of those on their way are passed over.
            acknowledge: Whether the ack word is written, too.

        Returns:
            Whether there was one.
        """
        submission = self._on_its_way(stream, place)
        if submission is None:
            return False
        for destination, source, size in pieces(submission.plan, submission.first_layer, submission.end_layer):
            move(destination, source, size)
        submission.has_ended = True
        if acknowledge:
            self.acknowledge(stream)
        return True

    def fail(self, stream: int, *, copies: int = 0, acknowledge: bool = True) -> bool:
        """Let the first submission on its way fail after so many contiguous copies."""
        submission = self._on_its_way(stream, 0)
        if submission is None:
            return False
        every = list(pieces(submission.plan, submission.first_layer, submission.end_layer))
        for destination, source, size in every[:copies]:
            move(destination, source, size)
        submission.has_ended = True
        submission.on_failure(CopyError(f"copy {copies} of submission {submission.sequence} failed"))
        if acknowledge:
            self.acknowledge(stream)
        return True

    def acknowledge(self, stream: int) -> None:
        """Write the ack word for everything that has ended without a gap in front."""
        queue = self.queues[stream]
        while queue and queue[0].has_ended:
            self.acks.store(stream, queue.pop(0).sequence)

    def repeat(self, stream: int, sequence: int) -> None:
        """Write an ack word again that was written before: late, or twice."""
        self.acks.store(stream, min(sequence, self.acks.load(stream)))

    def land_all(self) -> None:
        """Let everything end."""
        for stream in range(STREAMS):
            while self.land(stream):
                pass
            self.acknowledge(stream)

    def refuse(self, *, copies: int = 0) -> None:
        """Let the next submission fail while it is queued, when so many of its copies are under way."""
        self._refusal = copies

    def capture(self, *, begin: bool) -> None:
        """Let compute streams be captured into a graph from now on, or not any more. Without a stream nothing is."""
        self._is_capturing = begin

    def _on_its_way(self, stream: int, place: int) -> Submission | None:
        on_its_way = [one for one in self.queues[stream] if not one.has_ended]
        return on_its_way[place] if place < len(on_its_way) else None

    # --- What a driver does ---

    def plan(
        self,
        device: DevicePool,
        host: HostPool,
        pages: NDArray[np.int64],
        slots: NDArray[np.int64],
        direction: Direction,
    ) -> CopyPlan:
        """See `CopyEngine.plan`."""
        return plan_copies(device, host, pages, slots, direction=direction, least_block=self._least_block)

    def next_sequence(self, stream: int) -> int:
        """See `CopyEngine.next_sequence`."""
        return self._sequences[stream] + 1

    def mark(self, compute: ComputeStream) -> ComputeStream:
        """See `CopyEngine.mark`: copies are made when a test says so, which is late enough."""
        self._check_capture(compute)
        return compute

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
        if self._refuses:
            message = f"the copy engine is {self._refuses}: nothing can be submitted"
            raise UsageError(message)
        self._check_capture(after)
        self._sequences[stream] += 1
        submission = Submission(self._sequences[stream], plan, first_layer, end_layer, on_failure)
        self.queues[stream].append(submission)
        if self._refusal is not None:
            copies, self._refusal = self._refusal, None
            every = list(pieces(plan, first_layer, end_layer))
            for destination, source, size in every[:copies]:
                move(destination, source, size)
            submission.has_ended = True
            error = CopyError(f"submission {submission.sequence} of stream {stream} was refused")
            on_failure(error)
            raise error

    def _check_capture(self, compute: ComputeStream) -> None:
        if self._is_capturing and compute is not None:
            message = f"stream {compute} is being captured into a graph"
            raise UsageError(message)

    def wait(self, compute: ComputeStream, stream: int, sequence: int) -> None:  # noqa: ARG002 - as the protocol has it
        """See `CopyEngine.wait`: everything up to there lands now, as the forward cannot begin before."""
        self.waits.append((stream, sequence))
        while self.acks.load(stream) < sequence and self.land(stream):
            pass
        self.acknowledge(stream)

    def poll(self) -> None:
        """See `CopyEngine.poll`."""

    def synchronize(self) -> None:
        """See `CopyEngine.synchronize`."""
        self.land_all()

    def pause(self) -> None:
        """See `CopyEngine.pause`."""
        self.synchronize()
        self._refuses = "paused"

    def resume(self) -> None:
        """See `CopyEngine.resume`."""
        if self._refuses == "paused":
            self._refuses = ""

    def close(self) -> None:
        """See `CopyEngine.close`."""
        self.synchronize()
        self._refuses = "closed"

    def explain(self) -> Mapping[str, str]:
        """See `CopyEngine.explain`."""
        return {"every size": "when a test says so"}
