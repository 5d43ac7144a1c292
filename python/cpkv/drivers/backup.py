"""Backups: what a forward has computed goes to the host layer by layer, while it goes on."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

from cpkv._core import CacheManager, Transaction
from cpkv.device import BACKUP, LATE, ComputeStream, CopyEngine, CopyPlan, OnFailure
from cpkv.drivers.counts import Counts, RateLimit
from cpkv.drivers.share import Share
from cpkv.errors import ConfigError, CopyError, TransactionError, UsageError
from cpkv.layout import DevicePool, HostPool

Reserving: TypeAlias = Callable[[], Sequence[Transaction] | None]
"""Returns what is reserved for a forward that has begun, or `None` as long as that cannot be done."""


class BackupDriver:
    """Submits the copies of backups on this rank.

    Between `begin` and `end` of a forward every layer's end submits that layer, for all transactions
    in one call, or the beginning of the next one does. Outside, neither does anything: warm-up, idle
    batches and decode steps of the draft have hooks as well.

    A forward may begin before anything is reserved for it. Its layers are marked as they are queued, and their copies,
    which begin behind those marks, are submitted as soon as something is reserved: perhaps after its end.

    Args:
        cache: Whose transactions they are.
        engine: Copies.
        device: This rank's device pages.
        host: This rank's host slots.
        counts: What is done is counted there.
    """

    def __init__(
        self, cache: CacheManager, engine: CopyEngine, device: DevicePool, host: HostPool, counts: Counts
    ) -> None:
        self.device = device
        self._cache = cache
        self._engine = engine
        self._host = host
        self._share = Share.of_cache(cache)
        self._counts = counts
        self._limit = RateLimit()
        self._forward: _Forward | None = None
        self._awaited: _Forward | None = None
        """It has ended, and nothing is reserved for it yet."""

    @property
    def is_armed(self) -> bool:
        """Whether a forward is under way."""
        return self._forward is not None

    @property
    def is_awaited(self) -> bool:
        """Whether a forward has ended for which nothing is reserved yet."""
        return self._awaited is not None

    def begin(self, transactions: Sequence[Transaction] | Reserving) -> None:
        """Arm the layer ends of the coming forward with what was reserved for it, or what is going to be.

        Raises:
            UsageError: The forward before it was not ended, or nothing is reserved for it yet.
        """
        if self._forward is not None:
            message = "a forward is under way: end it before the next one begins"
            raise UsageError(message)
        if self._awaited is not None:
            message = "a forward waits for what is reserved for it: tell it before the next one begins"
            raise UsageError(message)
        forward = _Forward(self._host.layout.layers)
        if callable(transactions):
            forward.reserving = transactions
        else:
            self._take(forward, transactions)
        self._forward = forward

    def reserved(self, transactions: Sequence[Transaction]) -> None:
        """Submit what the forward has queued before anything was reserved for it. The rest goes as ever.

        Raises:
            UsageError: No forward waits for that.

        Whatever else is raised, the transactions roll back.
        """
        forward = self._awaited or self._forward
        if forward is None or forward.reserving is None:
            message = "no forward waits for what is reserved"
            raise UsageError(message)
        self._awaited = None
        try:
            self._bring(forward, transactions)
        finally:
            if forward.ending is not None:
                self._end(forward, forward.ending)

    def layer_ended(self, layer: int, compute: ComputeStream) -> None:
        """Submit a layer that the forward has computed. Does nothing if no forward is armed.

        If the layer's device memory was freed, the transactions roll back and the forward goes on.

        Args:
            layer: Of the forward: those of the target come first, then those of the draft.
            compute: Where it was computed.

        Raises:
            UsageError: The forward is being captured into a graph, which would copy these pages with
                every replay; or there is no such layer.
        """
        forward = self._forward
        if forward is None or not self._has_copies(forward):
            return
        if not 0 <= layer < len(forward.done):
            message = f"layer is {layer}, want 0 to {len(forward.done) - 1}"
            raise UsageError(message)
        self._copy_or_mark(forward, layer, layer + 1, compute)

    def layer_reached(self, layer: int, compute: Callable[[], ComputeStream]) -> None:
        """Submit the layers before one, back to the last that is submitted. Does nothing if no forward is armed.

        One that was submitted and is reached again is computed in pieces: it and those behind it are copied again.

        Args:
            layer: Of the forward, or their number: its end.
            compute: Returns where they were computed.

        Raises:
            UsageError: As `layer_ended`.
        """
        forward = self._forward
        if forward is None or not self._has_copies(forward):
            return
        if not 0 <= layer <= len(forward.done):
            message = f"layer is {layer}, want 0 to {len(forward.done)}"
            raise UsageError(message)
        first = layer
        while first and not forward.done[first - 1]:
            first -= 1
        if first < layer:
            self._copy_or_mark(forward, first, layer, compute())
        forward.done[layer:] = [False] * (len(forward.done) - layer)

    def end(self, compute: Callable[[], ComputeStream], *, target_ran: bool, draft_ran: bool, reason: str) -> None:
        """Submit the layers that no hook has, and end the submission of all transactions.

        Args:
            compute: Returns where the forward was computed.
            target_ran: Whether it filled the target's state.
            draft_ran: Whether the draft's forward has filled its state.
            reason: Why layers may be left: counted and warned about if some are.

        Raises:
            UsageError: No forward is under way, or layers are left and `compute` is being captured into a
                graph.

        Whatever is raised while layers are left, the forward has ended and its transactions roll back.
        """
        forward = self._forward
        if forward is None:
            message = "no forward is under way: begin it before it ends"
            raise UsageError(message)
        self._forward = None
        ending = _Ending(compute, target_ran, draft_ran, reason)
        try:
            is_awaited = self._has_copies(forward) and forward.reserving is not None
        except BaseException:
            self._end(forward, ending)
            raise
        if is_awaited:
            self._awaited = forward
            forward.ending = ending._replace(target_ran=False)  # unless the mark is made
            mark = self._engine.mark(compute()) if target_ran else None
            forward.ending = ending._replace(compute=lambda: mark)
        else:
            self._end(forward, ending)

    def _end(self, forward: "_Forward", ending: "_Ending") -> None:
        target_ran, draft_ran = ending.target_ran, ending.draft_ran
        try:
            if target_ran and forward.plan is not None:
                self._submit_rest(forward, ending.compute(), draft_ran=draft_ran, reason=ending.reason)
        except BaseException as error:
            # Layers are left that nobody will copy.
            forward.failed(CopyError(f"the rest of a forward was not submitted: {error!r}"))
            raise
        finally:
            try:
                self._keep_promises(BACKUP, forward.told, forward.failed)
            finally:
                self._cache.forward_end(forward.all, target_ran=target_ran, draft_ran=draft_ran)

    def _submit_rest(self, forward: "_Forward", compute: ComputeStream, *, draft_ran: bool, reason: str) -> None:
        layout = self._host.layout
        # Without its draft a transaction is rolled back: the rest of it would be copied for nothing.
        if self._cache.draft and not draft_ran:
            return
        left = [first for first, end in forward.gaps() if layout.first_rows[first] < layout.first_rows[end]]
        for first, end in forward.gaps():
            self._submit(forward, first, end, compute)
        if left:
            self._counts.all_layer_forwards[reason] += 1
            self._limit.warn(
                reason, f"layers from {left[0]} on were not submitted by hooks and go to the host all at once: {reason}"
            )
        elif not forward.has_failed:
            self._counts.hooked_forwards += 1

    def start_late(self, transactions: Sequence[Transaction], compute: Callable[[], ComputeStream]) -> None:
        """Submit late backups whole: all layers in one call. What cannot be submitted has failed.

        Args:
            transactions: What a tick has started.
            compute: Returns where what is queued by now may still fill their pages.
        """
        alive = [transaction for transaction in transactions if transaction.status in ("reserved", "pending")]
        failed = self._failure(alive)
        sequence = self._engine.next_sequence(LATE)
        size = 0
        try:
            pages, slots = self._share.pages(alive)
            plan = self._engine.plan(self.device, self._host, pages, slots, "to_host")
            size = plan.bytes(0, plan.layout.layers)
            if size:
                self.device.check_alive()
                after = compute()
                _tell(alive, LATE, sequence)
                with suppress(CopyError):  # told to each of them
                    self._engine.submit(LATE, plan, 0, plan.layout.layers, after=after, on_failure=failed)
        except Exception as error:  # noqa: BLE001 - the step is made, and what it has to say must not be lost
            failed(CopyError(repr(error)))
            if size:
                self._keep_promises(LATE, sequence, failed)
            size = 0
        for transaction in alive:
            with suppress(TransactionError):
                transaction.submitted_all()
        self._counts.late_operations += len(alive)
        self._counts.late_bytes += size

    def refuse(self, transaction: Transaction) -> None:
        """Let a late backup fail that will not be submitted: with the next ticks, on all ranks."""
        with suppress(TransactionError):  # it is over
            transaction.copy_failed()
            transaction.submitted_all()

    def _has_copies(self, forward: "_Forward") -> bool:
        """Whether layers of a forward are to be copied, as far as that is known."""
        if forward.reserving is not None:
            transactions = forward.reserving()
            if transactions is None:
                return True
            self._bring(forward, transactions)
        return forward.plan is not None

    def _bring(self, forward: "_Forward", transactions: Sequence[Transaction]) -> None:
        """Take what is reserved for a forward that has begun, and copy the layers that it has marked."""
        marked, forward.marked, forward.reserving = forward.marked, [], None
        self._take(forward, transactions)
        if forward.plan is None:
            return
        if forward.unmarked is not None:
            forward.failed(forward.unmarked)
            forward.has_failed = True
        done = list(forward.done)
        try:
            for first, end, mark in marked:
                self._copy(forward, first, end, mark)
        except BaseException as error:
            forward.failed(CopyError(f"what a forward has queued was not submitted: {error!r}"))
            forward.has_failed = True
            raise
        finally:
            forward.done = done

    def _copy_or_mark(self, forward: "_Forward", first: int, end: int, compute: ComputeStream) -> None:
        if forward.reserving is None:
            self._copy(forward, first, end, compute)
            return
        try:
            forward.marked.append((first, end, self._engine.mark(compute)))
        except CopyError as error:
            forward.unmarked = error
        forward.done[first:end] = [True] * (end - first)

    def _copy(self, forward: "_Forward", first: int, end: int, compute: ComputeStream) -> None:
        """Submit layers that have ended. Those that were written in pieces come again: the last copy counts."""
        self._submit(forward, first, end, compute)
        for layer in range(first, end):
            self._counts.repeated_layers += layer in forward.copied
            forward.copied.add(layer)
        self._counts.hooked_layers += end - first

    def _take(self, forward: "_Forward", transactions: Sequence[Transaction]) -> None:
        forward.all = list(transactions)
        self._prepare(forward, [transaction for transaction in transactions if transaction.status == "reserved"])

    def _prepare(self, forward: "_Forward", alive: list[Transaction]) -> None:
        """Plan the copies of those that are alive. If that fails the forward stays as it is."""
        pages, slots = self._share.pages(alive)
        forward.plan = self._engine.plan(self.device, self._host, pages, slots, "to_host") if len(pages) else None
        forward.failed = self._failure(alive)
        forward.alive = alive

    def _submit(self, forward: "_Forward", first: int, end: int, compute: ComputeStream) -> None:
        plan = forward.plan
        size = 0 if plan is None or forward.has_failed else plan.bytes(first, end)
        if size and not self._is_there(forward, first, end):
            size = 0
        if size:
            forward.told = sequence = self._engine.next_sequence(BACKUP)
            told = _tell(forward.alive, BACKUP, sequence)
            if len(told) < len(forward.alive):
                # Some were given up meanwhile, and their slots may be others' by the next layer.
                self._prepare(forward, told)
                plan = forward.plan
                size = 0 if plan is None else plan.bytes(first, end)
        if size and plan is not None:
            try:
                self._engine.submit(BACKUP, plan, first, end, after=compute, on_failure=forward.failed)
            except CopyError:
                # Each transaction has been told, and is rolled back; the forward and all others go on.
                forward.has_failed = True
            else:
                self._counts.backup_bytes += size
        for layer in range(first, end):
            forward.done[layer] = True

    def _is_there(self, forward: "_Forward", first: int, end: int) -> bool:
        """Whether the memory of layers was not freed meanwhile. Else their backups have failed."""
        try:
            self.device.check_alive(first, end)
        except ConfigError as error:
            forward.failed(CopyError(str(error)))
            forward.has_failed = True
            return False
        return True

    def _keep_promises(self, stream: int, told: int, failed: OnFailure) -> None:
        """Let a stream reach a number that transactions were told and whose submission was refused."""
        if told >= self._engine.next_sequence(stream):
            nothing = self._engine.plan(self.device, self._host, *self._share.pages([]), "to_host")
            with suppress(CopyError):  # told to each of them
                self._engine.submit(stream, nothing, 0, 0, after=None, on_failure=failed)

    def _failure(self, transactions: Sequence[Transaction]) -> OnFailure:
        """Return what an engine calls, in whatever thread, when the copies of transactions have failed."""

        def failed(error: CopyError) -> None:
            self._counts.failed_submissions += 1
            for transaction in transactions:
                with suppress(TransactionError):  # it is over
                    transaction.copy_failed()
            self._limit.warn("copy failed", f"a backup is rolled back: {error}")

        return failed


class _Ending(NamedTuple):
    """What was said at the end of a forward: see `BackupDriver.end`."""

    compute: Callable[[], ComputeStream]
    target_ran: bool
    draft_ran: bool
    reason: str


class _Forward:
    """A forward between its begin and its end, and longer if nothing is reserved for it by then."""

    def __init__(self, layers: int) -> None:
        self.all: list[Transaction] = []
        self.alive: list[Transaction] = []
        self.plan: CopyPlan | None = None
        self.failed: OnFailure = lambda _: None
        """Tells those that are copied: nobody yet."""
        self.done = [False] * layers
        """Which layers were submitted, or marked, since they have begun."""
        self.copied: set[int] = set()
        self.has_failed = False
        self.told = 0
        """The last number that transactions were told."""
        self.reserving: Reserving | None = None
        """As long as nothing is reserved."""
        self.marked: list[tuple[int, int, ComputeStream]] = []
        """Layers that have ended meanwhile, and where."""
        self.unmarked: CopyError | None = None
        """Why a layer has no mark."""
        self.ending: _Ending | None = None

    def gaps(self) -> Iterable[tuple[int, int]]:
        """Yield the runs of layers that were not submitted, each as its first and the one after its last."""
        first = None
        for layer, done in enumerate([*self.done, True]):
            if not done and first is None:
                first = layer
            elif done and first is not None:
                yield first, layer
                first = None


def _tell(transactions: Sequence[Transaction], stream: int, sequence: int) -> list[Transaction]:
    """Tell transactions of a submission before it is queued; return those that are not over."""
    told = []
    for transaction in transactions:
        try:
            transaction.submitted(stream, sequence)
        except TransactionError:
            continue
        told.append(transaction)
    return told
