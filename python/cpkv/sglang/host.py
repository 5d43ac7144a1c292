"""The host tier in SGLang's scheduler: what its forwards compute is copied as they go, and what was copied comes back.

A forward is what `Scheduler.run_batch` does (`forwards` calls `begin` and `end` around it). Slots are reserved before
it, for exactly the pages that the next `checkpoint` of each request is going to insert; the ends of the model's layers
submit copies; and a tick, at SGLang's `check_hicache_events`, makes visible what has landed. Restores of all requests
of a batch go in one call, so that the first layer of all of them comes first.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpkv._core import CacheManager, CommitLog, Lease, PageIds, TickReport, Transaction
from cpkv.drivers import HostTier, LayerHooks
from cpkv.errors import CopyError
from cpkv.sglang.breaks import AttentionBreaks
from cpkv.sglang.pages import AskedPages
from cpkv.sglang.waits import LayerWaits
from cpkv.types import Int64s

_logger: Final = logging.getLogger("cpkv.sglang")

SILENT_TICKS: Final = 2
"""So many ticks without news have none to come: ranks hear at one tick what was told at the one before.

But the first rank of a commit log does not wait for what the others tell until it is `CommitLog.entries` ticks ahead.
"""


class Completed(NamedTuple):
    """A request that completes pages in a forward: its row, its tokens by then, and the lease that it builds on."""

    row: int
    tokens: Int64s
    lease: Lease


class Awaited(NamedTuple):
    """What is to be reserved as soon as its pages are told."""

    requests: list[Completed]
    pages: AskedPages


class Reserved(NamedTuple):
    """What was reserved for a request's forward: its slots, and the pages that they are for."""

    transaction: Transaction
    pages: NDArray[np.int64]


class HostRoom:
    """How much of the host tier is in use, in tokens, where SGLang looks for a host pool of its own.

    Args:
        manager: Decides who has the slots.
    """

    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager
        self.logical_size = manager.host_slots * manager.page_size
        """Of all slots."""

    def available_size(self) -> int:
        """Return the tokens of the slots that nobody has."""
        stats = self._manager.stats()
        taken = (
            stats.host_cached_slots
            + stats.host_reserved_slots
            + stats.host_draining_slots
            + stats.host_quarantined_slots
        )
        return self.logical_size - taken * self._manager.page_size


class Host:
    """The host tier of one scheduler process.

    Args:
        tier: Copies.
        manager: Decides.
        layers: The target's decoder layers, in order.
        breaks: Of each model that may be replayed from a graph.
        in_stream_order: Enters what puts copies behind the forwards that are queued; nothing on a CPU.
        draft_layers: The draft's decoder layers, in order.
        keeps_clean: Whether ticks begin late copies of what is about to be evicted, also when nothing is under way.
        drops_events: Whether nobody takes the events of this rank, which are noted since another one publishes its.
        log: By which the ranks agree, if it is closed with the host tier.
    """

    def __init__(  # noqa: PLR0913 - one for each part
        self,
        tier: HostTier,
        manager: CacheManager,
        layers: Iterable[Any],
        breaks: Sequence[AttentionBreaks] = (),
        in_stream_order: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        draft_layers: Iterable[Any] = (),
        keeps_clean: bool = False,
        drops_events: bool = False,
        log: CommitLog | None = None,
    ) -> None:
        self.tier = tier
        self.waits = LayerWaits(tier, range(tier.host.layout.target_layers))
        self.room = HostRoom(manager)
        self._manager = manager
        self._hooks = LayerHooks(tier, layers, model="target", waits=False)
        self._draft_hooks = LayerHooks(tier, draft_layers, model="draft", waits=False)
        self._breaks = breaks
        self._in_stream_order = in_stream_order
        self._keeps_clean = keeps_clean
        self._drops_events = drops_events
        self._log = log
        self._silent_ticks = SILENT_TICKS if log is None else log.entries + SILENT_TICKS + 1
        self._step = 0
        self._loads: list[Transaction] = []
        """Restores of requests that the next batch has."""
        self._awaited: Awaited | None = None
        """For the last forward, if its pages were not told when it began."""
        self._reserved: dict[int, Reserved] = {}
        """By the row of its request: what was reserved for the forward and is not inserted yet."""

    # --- A forward ---

    def begin(self, requests: list[Completed], pages: AskedPages, leases: list[Lease]) -> None:
        """Reserve slots for what a forward completes, and let its layers be copied.

        A scheduler is ahead of its GPU, which tells the pages of a forward when the one before it has ended. They
        are not waited for: the layers of this forward are queued meanwhile, and slots are reserved at a layer's end,
        or before the cache is asked for anything else (`catch_up`). It is on the GPU by then, but has not ended.

        Args:
            requests: Those that complete pages.
            pages: Of each, in their order.
            leases: Of all requests of the forward.
        """
        for request in requests:
            self.give_up(request.row)
        self._awaited = Awaited(requests, pages)
        told = self._reserve_if_told()
        if told is None:
            # Until then the requests may get tokens, for which nobody may look at the memory of those that they have.
            self._awaited = Awaited([one._replace(tokens=np.array(one.tokens)) for one in requests], pages)
        self.tier.begin_forward(self._reserve_if_told if told is None else told, leases)
        for one in self._breaks:
            one.begin()

    def _reserve_if_told(self) -> list[Transaction] | None:
        awaited = self._awaited
        return None if awaited is not None and not awaited.pages.are_there() else self._reserve()

    def _reserve(self) -> list[Transaction]:
        awaited, self._awaited = self._awaited, None
        if awaited is None or not awaited.requests:
            return []
        found = list(zip(awaited.requests, awaited.pages.get(), strict=True))
        transactions = self._manager.reserve([(request.tokens, pages, request.lease) for request, pages in found])
        for transaction, (request, pages) in zip(transactions, found, strict=True):
            self._reserved[request.row] = Reserved(transaction, pages)
        return transactions

    def catch_up(self) -> None:
        """Reserve what the last forward completes, if that has not been done, before anything else changes.

        So it is done between the same two changes on all ranks.
        """
        if self._awaited is not None:
            self.tier.forward_reserved(self._reserve())

    @property
    def is_behind(self) -> bool:
        """Whether something is to be reserved yet."""
        return self._awaited is not None

    def end(self, *, has_run: bool) -> None:
        """Copy what no layer end has: the last layer, if SGLang has replayed a graph in pieces; all, if in one.

        By now the scheduler has left the stream of the forward, behind which these copies have to be.
        """
        with self._in_stream_order():
            if has_run and self._breaks:
                self._breaks[-1].end()  # the last layers of the others were there when it began
            self.tier.end_forward(target_ran=has_run, draft_ran=has_run, reason="graph replay")

    # --- Requests ---

    def take(self, row: int) -> Reserved | None:
        """Return what was reserved for the request in a row, for its insertion; `None` if nothing was."""
        self.catch_up()
        return self._reserved.pop(row, None)

    def give_up(self, row: int) -> bool:
        """Abort what was reserved for the request in a row, and say whether anything was.

        Copies of it may be under way: pages of the request go back through `CacheManager.free`.
        """
        self.catch_up()
        reserved = self._reserved.pop(row, None)
        if reserved is None:
            return False
        reserved.transaction.abort()
        return True

    def restore(self, lease: Lease, pages: NDArray[np.int64]) -> PageIds:
        """Bring the host part of a lease back with the next batch; return what was there already."""
        restored = self._manager.restore(lease, pages)
        self._loads += restored.operations
        return restored.duplicates

    def load(self) -> None:
        """Submit the restores of the batch that is about to run."""
        loads, self._loads = self._loads, []
        if loads:
            with self._in_stream_order():
                self.tier.load(loads)

    # --- Between forwards ---

    def tick(self) -> TickReport | None:
        """Make visible what has landed; `None` if there is nothing to do, on all ranks alike."""
        self.catch_up()
        self.load()  # of requests that were not admitted after all
        if self._drops_events:
            self._manager.take_events()
        if not self._keeps_clean and not self._manager.has_work():
            return None
        with self._in_stream_order():
            report = self.tier.tick(self._step)
        self._step += 1
        for identity, reason in report.rolled_back:
            _logger.debug("operation %d was rolled back: %s", identity, reason)
        return report

    def drain(self) -> Iterator[TickReport]:
        """Wait for copies and tick, as long as something comes of it: so many times on all ranks.

        A stream that has failed is not waited for.
        """
        self.catch_up()
        silent = 0
        while self._manager.has_work() and silent < self._silent_ticks:
            with suppress(CopyError):  # the engine has logged it, and its copies may never end
                self.tier.engine.synchronize()
            report = self.tick()
            if report is not None:
                silent = 0 if _has_news(report) else silent + 1
                yield report

    def hear(self, restores: Sequence[Transaction]) -> Iterator[TickReport]:
        """Tick until all ranks know what has come of restores that have ended, or will never know."""
        for _ in range(self._silent_ticks):
            if not any(restore.status == "pending" for restore in restores):
                return
            report = self.tick()
            if report is not None:
                yield report

    def close(self) -> None:
        """Take the hooks off, wait for copies, and give the memory back. Idempotent."""
        self._awaited = None
        self._hooks.remove()
        self._draft_hooks.remove()
        for one in self._breaks:
            one.remove()
        self.tier.close()
        if self._log is not None:
            self._log.close()


def _has_news(report: TickReport) -> bool:
    ended = report.committed or report.rolled_back or report.restored
    return bool(ended or report.started or len(report.freed_pages))
