"""Our way to the host: a transaction, a forward with hooks, an insertion, and ticks until it is visible."""

from time import perf_counter_ns, thread_time_ns
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cpkv._core import Lease, Transaction
from cpkv.bench.copy.platform import Mark
from cpkv.bench.copy.site import Site
from cpkv.device import BACKUP
from cpkv.errors import CpkvError


class BackupCopier:
    """See `Copier`.

    Args:
        site: Where.
        pages: The device pages of each prompt.
        ends: `"flushed"`: the prompt is inserted, committed, and forgotten; `"kept"`: not forgotten;
            `"aborted"`: it is not inserted, so that the host pool stays as full as it was.
    """

    def __init__(
        self, site: Site, pages: NDArray[np.int64], *, ends: Literal["flushed", "kept", "aborted"] = "flushed"
    ) -> None:
        self.site = site
        self.pages = pages
        self.layers = site.layers
        self.bytes = len(pages) * site.pools.layout.slot_bytes
        self.prepare_ns = 0
        self.prepare_cpu_ns = 0
        self.slots: NDArray[np.int64] = np.empty(0, np.int64)
        self.token_ids: NDArray[np.int64] = np.empty(0, np.int64)
        self._ends = ends
        self._request: tuple[Transaction, Lease] | None = None

    def begin(self) -> None:
        """See `Copier`."""
        site, cache = self.site, self.site.cache
        self.token_ids = site.prompt(len(self.pages))
        lease = cache.lock(cache.match(self.token_ids))
        (transaction,) = cache.reserve([(self.token_ids, self.pages, lease)])
        if transaction.status != "reserved" or transaction.pages != len(self.pages):
            message = f"a prompt of {len(self.pages)} new pages got {transaction!r}: {cache.stats()!r}"
            raise CpkvError(message)
        self._request = transaction, lease
        self.slots = np.array(transaction.plan()[1], np.int64)
        begun, begun_cpu = perf_counter_ns(), thread_time_ns()
        site.tier.begin_forward([transaction], [lease])
        self.prepare_cpu_ns = thread_time_ns() - begun_cpu
        self.prepare_ns = perf_counter_ns() - begun

    def submit(self) -> None:
        """See `Copier`."""
        layer_ended = self.site.tier.layer_ended
        for layer in range(self.layers):
            layer_ended(layer)

    def last_sequence(self) -> int:
        """Return the number of what was submitted last."""
        return self.site.engine.next_sequence(BACKUP) - 1

    def ended(self) -> Mark:
        """See `Copier`."""
        return self.site.platform.copied(self.site.engine, BACKUP, self.last_sequence())

    def bind(self, *, reason: str | None = None) -> Transaction:
        """End the forward and insert the prompt, as a scheduler does; return what is to be committed.

        Args:
            reason: Why layers are left that no hook has copied, if some are.
        """
        if self._request is None:
            message = "no forward is under way, want one that was begun"
            raise CpkvError(message)
        (transaction, lease), self._request = self._request, None
        if reason is None:
            self.site.tier.end_forward()
        else:
            self.site.tier.end_forward(reason=reason)
        if self._ends == "aborted":
            transaction.abort()
        else:
            self.site.cache.insert(self.token_ids, self.pages, lease, transaction)
        lease.release()
        return transaction

    def finish(self) -> None:
        """See `Copier`."""
        transaction = self.bind()
        wanted = "rolled_back" if self._ends == "aborted" else "committed"
        self.site.settle(lambda: transaction.status in ("committed", "rolled_back"))
        if transaction.status != wanted:
            message = f"a backup has ended as {transaction.status} ({transaction.reason}), want {wanted}"
            raise CpkvError(message)
        self.forget()

    def forget(self) -> None:
        """Leave the cache as it was, if that is how it ends."""
        if self._ends == "flushed":
            self.site.cache.flush()
