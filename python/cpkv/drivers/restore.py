"""Restores: host copies come back layer by layer, and each layer of a forward waits for its own."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from cpkv._core import CacheManager, Lease, TickReport, Transaction
from cpkv.device import RESTORE, ComputeStream, CopyEngine, CopyPlan
from cpkv.drivers.counts import Counts, RateLimit
from cpkv.drivers.share import Share
from cpkv.errors import CopyError, TransactionError, UsageError
from cpkv.layout import DevicePool, HostPool


class RestoreDriver:
    """Submits the copies of restores on this rank, and lets forwards wait for them.

    Args:
        cache: Whose operations they are.
        engine: Copies.
        device: This rank's device pages.
        host: This rank's host slots.
        counts: What is done is counted there.
    """

    def __init__(
        self, cache: CacheManager, engine: CopyEngine, device: DevicePool, host: HostPool, counts: Counts
    ) -> None:
        self.device = device
        self._engine = engine
        self._host = host
        self._share = Share.of_cache(cache)
        self._counts = counts
        self._limit = RateLimit()
        self._tickets: dict[int, list[int]] = {}
        """For each restore on its way, and each layer, the sequence number that proves it."""
        self._needed: list[int] = []

    def start(self, operations: Sequence[Transaction], compute: Callable[[], ComputeStream]) -> None:
        """Submit restores: every layer of all of them, in the order in which a forward needs them.

        Args:
            operations: `Restored.operations`; an empty list is fine, and what was started before is left alone.
            compute: Returns where what is queued by now may still use the device pages.

        Raises:
            UsageError: That is being captured into a graph.
            ConfigError: The memory of the device pool has moved or was freed.

        Whatever is raised, the restores have failed.
        """
        alive = self._new(operations)
        if not alive:
            return
        failed = self._failure(alive)
        self._counts.restores += len(alive)
        plan = None
        try:
            self.device.check_alive()
            after = compute()
            plan = self._engine.plan(self.device, self._host, *self._share.pages(alive), "to_device")
            sequences = [self._submit(plan, alive, layer, after) for layer in range(plan.layout.layers)]
        except BaseException as error:
            if plan is not None and isinstance(error, CopyError):
                return  # told to each of them
            # What was submitted is not all, and lands all the same.
            failed(CopyError(repr(error)))
            if plan is not None:
                # They were told of a number, which the stream has to reach.
                self._engine.submit(RESTORE, plan, 0, 0, after=None, on_failure=failed)
            raise
        finally:
            for operation in alive:
                with suppress(TransactionError):
                    operation.submitted_all()
        for operation in alive:
            if operation.id is not None:
                self._tickets[operation.id] = sequences

    def refuse(self, operations: Sequence[Transaction]) -> None:
        """Let restores fail that will not be submitted: with the next ticks, on all ranks."""
        for operation in self._new(operations):
            with suppress(TransactionError):  # it is over
                operation.copy_failed()
                operation.submitted_all()

    def _new(self, operations: Sequence[Transaction]) -> list[Transaction]:
        """Return those that are not over and were not started before."""
        return [one for one in operations if one.status == "pending" and one.id not in self._tickets]

    def _submit(self, plan: CopyPlan, operations: Sequence[Transaction], layer: int, after: ComputeStream) -> int:
        """Submit a layer; return the number that proves it and all before it."""
        size = plan.bytes(layer, layer + 1)
        sequence = self._engine.next_sequence(RESTORE) - (not size)
        if size:
            for operation in operations:
                operation.submitted(RESTORE, sequence)
            self._engine.submit(RESTORE, plan, layer, layer + 1, after=after, on_failure=self._failure(operations))
            self._counts.restore_bytes += size
        for operation in operations:
            operation.layer_submitted(layer)
        return sequence

    def needs(self, leases: Sequence[Lease]) -> list[int]:
        """Return for each layer the number that a forward waits for; nothing if it reads nothing on its way.

        Args:
            leases: Those of its requests. Restores that others have started count as well.
        """
        waited = [
            self._tickets[restore.id]
            for lease in leases
            for restore in lease.restores()
            if restore.id is not None and restore.id in self._tickets
        ]
        return [max(numbers) for numbers in zip(*waited, strict=True)]

    def arm(self, needed: list[int]) -> None:
        """Let the layers of the coming forward wait for what it `needs`."""
        self._needed = needed

    def disarm(self) -> None:
        """Let layers begin without waiting: the forward has ended."""
        self._needed = []

    @property
    def is_waited_for(self) -> bool:
        """Whether layers of the coming forward have something to wait for."""
        return bool(self._needed)

    def layer_begins(self, layer: int, compute: ComputeStream) -> None:
        """Let a layer begin when what it reads is there, and not wait for the layers after it.

        Args:
            layer: Of the forward: those of the target come first, then those of the draft.
            compute: Where it is about to be computed.

        Raises:
            UsageError: There is no such layer.
        """
        if self._needed:
            if not 0 <= layer < len(self._needed):
                message = f"layer is {layer}, want 0 to {len(self._needed) - 1}"
                raise UsageError(message)
            self._wait(self._needed[layer], compute)

    def wait_for_all(self, compute: ComputeStream) -> None:
        """Let what follows begin when every layer is there: for a replayed graph, which has no hooks."""
        if self._needed:
            self._wait(self._needed[-1], compute)

    def _wait(self, sequence: int, compute: ComputeStream) -> None:
        if self._engine.acks.load(RESTORE) < sequence:
            self._engine.wait(compute, RESTORE, sequence)

    def forget(self, report: TickReport) -> None:
        """Drop what a tick has ended."""
        if self._tickets:
            for identity in (*report.restored, *(identity for identity, _ in report.rolled_back)):
                self._tickets.pop(identity, None)

    def _failure(self, operations: Sequence[Transaction]) -> Callable[[CopyError], None]:
        """Return what an engine calls, in whatever thread, when the copies of restores have failed."""

        def failed(error: CopyError) -> None:
            self._counts.failed_submissions += 1
            for operation in operations:
                with suppress(TransactionError):  # it is over
                    operation.copy_failed()
            self._limit.warn("copy failed", f"a restore has failed: {error}")

        return failed
