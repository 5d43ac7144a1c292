"""The host tier in SGLang's scheduler: what its forwards compute is copied as they go, and what was copied comes back.

A forward is what `Scheduler.run_batch` does (`forwards` calls `begin` and `end` around it). Slots are reserved before
it, for exactly the pages that the next `checkpoint` of each request is going to insert; the ends of the model's layers
submit copies; and a tick, at SGLang's `check_hicache_events`, makes visible what has landed. Restores of all requests
of a batch go in one call, so that the first layer of all of them comes first.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cpkv._core import CacheManager, Lease, PageIds, TickReport, Transaction
from cpkv.drivers import HostTier, LayerHooks
from cpkv.sglang.breaks import AttentionBreaks
from cpkv.sglang.waits import LayerWaits

_logger: Final = logging.getLogger("cpkv.sglang")

Reservation = tuple[NDArray[np.int64], NDArray[np.int64], Lease]
"""Tokens, pages behind those of the lease, and the lease."""


class Reserved(NamedTuple):
    """What was reserved for a request's forward: its slots, and the pages that they are for."""

    transaction: Transaction
    pages: NDArray[np.int64]


class Host:
    """The host tier of one scheduler process.

    Args:
        tier: Copies.
        manager: Decides.
        layers: The target's decoder layers, in order.
        breaks: Of each model that may be replayed from a graph.
        in_stream_order: Enters what puts copies behind the forwards that are queued; nothing on a CPU.
        keeps_clean: Whether ticks begin late copies of what is about to be evicted, also when nothing is under way.
    """

    def __init__(  # noqa: PLR0913 - one for each part
        self,
        tier: HostTier,
        manager: CacheManager,
        layers: Iterable[Any],
        breaks: Sequence[AttentionBreaks] = (),
        in_stream_order: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        keeps_clean: bool = False,
    ) -> None:
        self.tier = tier
        self.waits = LayerWaits(tier)
        self._manager = manager
        self._hooks = LayerHooks(tier, layers, model="target", waits=False)
        self._breaks = breaks
        self._in_stream_order = in_stream_order
        self._keeps_clean = keeps_clean
        self._step = 0
        self._loads: list[Transaction] = []
        """Restores of requests that the next batch has."""
        self._reserved: dict[int, Reserved] = {}
        """By the row of its request: what was reserved for the forward and is not inserted yet."""

    # --- A forward ---

    def begin(self, requests: Iterable[tuple[int, Reservation]], leases: Iterable[Lease]) -> None:
        """Reserve slots for what a forward completes, and let its layers be copied.

        Args:
            requests: Of each that completes pages, its row and what it is going to insert.
            leases: Of all of its requests.
        """
        rows, batch = [], []
        for row, reservation in requests:
            self.give_up(row)
            rows.append(row)
            batch.append(reservation)
        transactions = self._manager.reserve(batch) if batch else []
        for row, transaction, (_, pages, _) in zip(rows, transactions, batch, strict=True):
            self._reserved[row] = Reserved(transaction, pages)
        self.tier.begin_forward(transactions, list(leases))
        for one in self._breaks:
            one.begin()

    def end(self, *, has_run: bool) -> None:
        """Copy what no layer end has: the last layer, if SGLang has replayed a graph in pieces; all, if in one.

        By now the scheduler has left the stream of the forward, behind which these copies have to be.
        """
        with self._in_stream_order():
            if has_run:
                for one in self._breaks:
                    one.end()
            self.tier.end_forward(target_ran=has_run, draft_ran=has_run, reason="graph replay")

    # --- Requests ---

    def take(self, row: int) -> Reserved | None:
        """Return what was reserved for the request in a row, for its insertion; `None` if nothing was."""
        return self._reserved.pop(row, None)

    def give_up(self, row: int) -> bool:
        """Abort what was reserved for the request in a row, and say whether anything was.

        Copies of it may be under way: pages of the request go back through `CacheManager.free`.
        """
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
        self.load()  # of requests that were not admitted after all
        if not self._keeps_clean and not self._manager.has_work():
            return None
        with self._in_stream_order():
            report = self.tier.tick(self._step)
        self._step += 1
        for identity, reason in report.rolled_back:
            _logger.debug("operation %d was rolled back: %s", identity, reason)
        return report

    def close(self) -> None:
        """Take the hooks off, wait for copies, and give the memory back. Idempotent."""
        self._hooks.remove()
        for one in self._breaks:
            one.remove()
        self.tier.close()
