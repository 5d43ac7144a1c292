"""What a copy engine promises: the protocol that drivers speak, with any engine behind it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from cpkv._core import AckWords
from cpkv.device.plan import CopyPlan, Direction
from cpkv.errors import CopyError
from cpkv.layout import DevicePool, HostPool

BACKUP, LATE, RESTORE = 0, 1, 2
STREAMS = 3
"""Copy streams, each with an ack word: copies during a forward, late ones, restores."""

ComputeStream: TypeAlias = Any
"""Where a forward runs: the handle of a CUDA stream as an integer, a `CpuStream`, or `None` if the calling
thread itself computes.
"""

OnFailure: TypeAlias = Callable[[CopyError], None]


class CopyEngine(Protocol):
    """Copies between device pages and host slots, in the order of its streams.

    Engines take addresses and bytes, never tensors. One thread at a time calls them.
    """

    @property
    def name(self) -> str:
        """`"cuda"`, `"cpu"` or `"manual"`."""

    @property
    def acks(self) -> AckWords:
        """A word for each stream: the sequence number of the last submission that has ended."""

    def plan(
        self,
        device: DevicePool,
        host: HostPool,
        pages: NDArray[np.int64],
        slots: NDArray[np.int64],
        direction: Direction,
    ) -> CopyPlan:
        """Prepare the copies of pages, in the way that is fastest here.

        Raises:
            PageError: There is no such page or slot.
        """

    def next_sequence(self, stream: int) -> int:
        """Return the sequence number that the next submission on a stream will have."""

    def mark(self, compute: ComputeStream) -> ComputeStream:
        """Return what stands, as `after` of a later submission, for what is queued on `compute` by now.

        Raises:
            UsageError: `compute` is being captured into a graph.
            CopyError: The mark could not be queued.
        """

    def submit(  # noqa: PLR0913 - where, what, and between which two events
        self,
        stream: int,
        plan: CopyPlan,
        first_layer: int,
        end_layer: int,
        *,
        after: ComputeStream,
        on_failure: OnFailure,
    ) -> None:
        """Queue the copies of layers `first_layer` to before `end_layer`, and the ack behind them.

        Args:
            stream: One of the copy streams.
            plan: What this engine has prepared.
            first_layer: The first layer of the forward that is copied.
            end_layer: The one after the last; the same for an ack without copies.
            after: The copies begin when what is queued there by now has ended, or what was when a `mark` was made.
            on_failure: Called at most once, perhaps in another thread, if the copies fail; the ack word
                does not pass the submission's number before it has returned.

        Raises:
            CopyError: Something could not be queued; `on_failure` was called before, and a part of the
                copies may be under way. The ack word still reaches the number once they have ended, if
                the stream is alive.
            UsageError: The engine is paused or closed, or `after` is being captured into a graph; the
                number was not used.
        """

    def wait(self, compute: ComputeStream, stream: int, sequence: int) -> None:
        """Let what is queued on `compute` from now on begin when `stream` has reached `sequence`.

        The calling thread goes on, unless it is the one that computes (`None`).
        """

    def poll(self) -> None:
        """Look for failures of copies that were queued without one. Cheap; to be done before a tick."""

    def synchronize(self) -> None:
        """Wait until every submission has ended.

        Raises:
            CopyError: A stream has failed, and its copies are not known to end.
        """

    def pause(self) -> None:
        """Wait until every submission has ended, and refuse others until `resume`."""

    def resume(self) -> None:
        """Take submissions again."""

    def close(self) -> None:
        """Wait until every submission has ended, and let go of everything. Idempotent, also in what it raises.

        Raises:
            CopyError: A stream has failed, and its copies are not known to have ended. The engine is closed
                all the same; their memory has to be kept until the process ends.
        """

    def explain(self) -> Mapping[str, str]:
        """Return how it copies and why, by what is copied."""
