"""The host tier of one rank: a cache, its memory on both sides, and what copies between them."""

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from cpkv._core import CacheManager, Lease, TickReport, Transaction
from cpkv.device import ComputeStream, CopyEngine
from cpkv.device.cuda import CudaEngine
from cpkv.drivers.backup import BackupDriver, Reserving
from cpkv.drivers.counts import Counts
from cpkv.drivers.restore import RestoreDriver
from cpkv.errors import ConfigError, UsageError
from cpkv.host import HostMemory
from cpkv.layout import DevicePool, HostPool, check_geometry, check_memory


class HostTier:
    """Moves the bytes that a cache decides about, on one rank.

    A context manager that closes at its end. One thread at a time uses it; layer ends count, whoever
    calls them.

    Args:
        cache: With `copies="tracked"`; its lane's pages are those of the pools.
        engine: Copies; closed with the tier.
        device: This rank's device pages.
        host: This rank's host slots.
        compute_stream: Returns where the calling thread computes, such as `torch_stream()` on a GPU. Without
            it the thread itself computes.
        memory: What the slots lie in, if it is closed with the tier.

    Raises:
        ConfigError: With everything that does not fit.
    """

    def __init__(  # noqa: PLR0913 - one for each part
        self,
        cache: CacheManager,
        engine: CopyEngine,
        device: DevicePool,
        host: HostPool,
        *,
        compute_stream: Callable[[], ComputeStream] = lambda: None,
        memory: HostMemory | None = None,
    ) -> None:
        check_geometry(cache, device, host)
        check_memory(device, host)
        _check_device(engine, device)
        self.cache = cache
        self.engine = engine
        self.host = host
        self.counts = Counts()
        self._memory = memory
        self._compute = compute_stream
        self._backup = BackupDriver(cache, engine, device, host, self.counts)
        self._restore = RestoreDriver(cache, engine, device, host, self.counts)
        self._is_paused = self._is_closed = False
        self._late: list[Transaction] = []
        """Late backups that have come while the tier was paused."""

    # --- A forward ---

    def load(self, operations: Sequence[Transaction]) -> None:
        """Submit restores: the first layer of all of them, then the next. The forward of a layer waits for it only.

        Those of all requests of a forward belong into one call: copies are made in the order of the calls, and if
        one fails, the restores of its call fail. Restores that were loaded before are left alone.

        Args:
            operations: What `CacheManager.restore` has returned; an empty list is fine.

        Raises:
            UsageError: The tier is paused, or the compute stream is being captured into a graph.
            ConfigError: The memory of the device pool has moved or was freed.

        Whatever is raised, the restores have failed.
        """
        if self._is_paused:
            self._restore.refuse(operations)
        self._check_running()
        self._restore.start(operations, self._compute)

    def begin_forward(self, transactions: Sequence[Transaction] | Reserving, leases: Sequence[Lease] = ()) -> None:
        """Let the coming forward be copied as it goes, and wait for what it reads.

        An engine that queues forwards on a GPU may not know yet which pages it has given to this one. What it passes
        then is asked at the layers' ends, and at the forward's; at the latest `forward_reserved` tells.

        Args:
            transactions: What `CacheManager.reserve` has returned for its requests, or what returns it as soon as that
                can be said, and `None` before.
            leases: Of its requests.

        Raises:
            UsageError: A forward is under way or waits for what is reserved, or the tier is paused.
            ConfigError: The memory of the device pool has moved or was freed.
        """
        self._check_running()
        self._backup.device.check_alive()
        needed = self._restore.needs(leases)
        self._backup.begin(transactions)
        self._restore.arm(needed)

    def forward_reserved(self, transactions: Sequence[Transaction]) -> None:
        """Copy what a forward has queued that has begun, and perhaps ended, before anything was reserved for it.

        Args:
            transactions: What `CacheManager.reserve` has returned for its requests.

        Raises:
            UsageError: No forward waits for that.

        Whatever is raised but that no forward waits, the transactions have failed.
        """
        self._backup.reserved(transactions)

    def layer_begins(self, layer: int) -> None:
        """Let a layer wait for what it reads. To be called before it is queued.

        Args:
            layer: Of the forward: those of the target come first, then those of the draft.

        Raises:
            UsageError: The forward reads what is being restored, and there is no such layer.
        """
        if self._restore.is_waited_for:
            self._restore.layer_begins(layer, self._compute())

    def wait_for_all(self) -> None:
        """Let the forward wait for every layer at once: before a graph is replayed, which has no hooks."""
        self._restore.wait_for_all(self._compute())

    def layer_ended(self, layer: int) -> None:
        """Copy a layer that was queued. Does nothing outside a forward that was begun.

        Args:
            layer: Of the forward: those of the target come first, then those of the draft.

        Raises:
            UsageError: The forward is being captured into a graph, or there is no such layer.
        """
        if self._backup.is_armed:
            self._backup.layer_ended(layer, self._compute())

    def layer_reached(self, layer: int) -> None:
        """Copy what is queued before a layer that is queued next, as far as no layer end has copied it.

        For who learns where layers begin and not where they end: between the pieces of a graph, for example. Does
        nothing outside a forward that was begun.

        Args:
            layer: Of the forward: those of the target come first, then those of the draft; their number at its end.

        Raises:
            UsageError: The forward is being captured into a graph, or there is no such layer.
        """
        if self._backup.is_armed:
            self._backup.layer_reached(layer, self._compute)

    def end_forward(
        self, *, target_ran: bool = True, draft_ran: bool = True, reason: str = "no layer end was reported"
    ) -> None:
        """Copy what no layer end has, and end the submission: see `CacheManager.forward_end`.

        Args:
            target_ran: Whether the forward filled the target's state.
            draft_ran: Whether the draft's forward has filled its state.
            reason: Why layers may be left, such as `"graph replay"`; counted and warned about if some are.

        Raises:
            UsageError: No forward is under way.
        """
        self._restore.disarm()
        self._backup.end(self._compute, target_ran=target_ran, draft_ran=draft_ran, reason=reason)

    # --- Between forwards ---

    def tick(self, step: int, *, now_ns: int | None = None) -> TickReport:
        """Tick the cache with what this rank's copies have come to, and submit the late backups.

        Those that a paused tier is told of wait for `resume`; those of a closed one fail.

        Args:
            step: See `CacheManager.tick`, which also says what it raises.
            now_ns: See there.
        """
        self.engine.poll()
        report = self.cache.tick(step, self.engine.acks, now_ns=now_ns)
        self._restore.forget(report)
        started = report.started
        if self._is_closed:
            self._refuse_late(started)
        elif started and self._is_paused:
            self._late += started
        elif started:
            self._backup.start_late(started, self._compute)
        return report

    def pause(self) -> None:
        """Wait until every copy has ended and begin no other: device memory may be moved.

        Late backups wait for `resume`. If what the pages hold is given up, flush the cache as well.

        Raises:
            UsageError: A forward is under way.
        """
        if self._backup.is_armed or self._backup.is_awaited:
            what = "is under way: end it" if self._backup.is_armed else "waits for what is reserved for it: tell it"
            message = f"a forward {what} before device memory is moved"
            raise UsageError(message)
        self._is_paused = True
        self.engine.pause()

    def resume(self, device: DevicePool | None = None) -> None:
        """Copy again.

        Args:
            device: Where the device pages are now, if they have moved.

        Raises:
            UsageError: A forward is under way, or the tier is closed.
            ConfigError: They do not fit, or have moved and it is not said where to.
        """
        if self._is_closed or self._backup.is_armed:
            message = "the host tier is closed" if self._is_closed else "a forward is under way: it was not paused"
            raise UsageError(message)
        pool = device or self._backup.device
        check_geometry(self.cache, pool, self.host)
        check_memory(pool, self.host)
        _check_device(self.engine, pool)
        pool.check_alive()
        self._backup.device = self._restore.device = pool
        self.engine.resume()
        self._is_paused = False
        late, self._late = self._late, []
        if late:
            self._backup.start_late(late, self._compute)

    def close(self) -> None:
        """End a forward that is under way as one that did not run, wait for the copies, and close the engine.

        The host memory goes with it if the tier has it; afterwards that of the device may go. Idempotent, also in
        what it raises.

        Raises:
            CopyError: A stream has failed, and its copies are not known to end: the host memory is kept until the
                process ends.
        """
        self._is_paused = self._is_closed = True
        late, self._late = self._late, []
        self._refuse_late(late)
        try:
            if self._backup.is_armed:
                self.end_forward(target_ran=False, draft_ran=False)
            if self._backup.is_awaited:
                self._backup.reserved(())
        finally:
            self.engine.close()
        if self._memory is not None:
            self._memory.close()

    def _refuse_late(self, transactions: Sequence[Transaction]) -> None:
        """Let late backups fail that nobody will copy, so that the cache comes to rest."""
        for transaction in transactions:
            self._backup.refuse(transaction)

    def _check_running(self) -> None:
        if self._is_paused:
            message = "the host tier is paused or closed: resume it before a forward begins"
            raise UsageError(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_device(engine: CopyEngine, pool: DevicePool) -> None:
    """Refuse tensors that an engine does not reach, if they say where they are.

    Raises:
        ConfigError: With all of them.
    """
    if isinstance(engine, CudaEngine):
        wanted = f"cuda:{engine.device}"
    elif engine.name in ("cpu", "manual"):
        wanted = "cpu"
    else:
        return
    wrong = [
        f"{name} is on {device}"
        for name, buffers in pool.buffers.items()
        for device in sorted(buffers.devices() - {wanted})
    ]
    if wrong:
        message = f"{', '.join(wrong)}, want tensors on {wanted} for the engine {engine.name!r}"
        raise ConfigError(message)
