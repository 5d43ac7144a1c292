"""Our way back to the device: a hit on the host, a restore, and ticks until it has landed."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.platform import Mark
from cpkv.bench.copy.site import Site
from cpkv.device import RESTORE
from cpkv.errors import CpkvError

if TYPE_CHECKING:
    from cpkv._core import Lease, Transaction


class RestoreCopier:
    """See `Copier`. Backs a prompt up first; each round evicts it from the device and restores it.

    Args:
        site: Where.
        pages: The device pages that it is restored to.
    """

    def __init__(self, site: Site, pages: NDArray[np.int64]) -> None:
        self.site = site
        self.pages = pages
        self.layers = site.layers
        self.bytes = len(pages) * site.pools.layout.slot_bytes
        backup = BackupCopier(site, pages, ends="kept")
        backup.begin()
        backup.submit()
        site.platform.synchronize()
        site.engine.synchronize()
        backup.finish()
        self.slots = backup.slots
        self._token_ids = backup.token_ids
        self.lease: Lease | None = None
        self.operations: list[Transaction] = []

    def begin(self) -> None:
        """See `Copier`."""
        cache, wanted = self.site.cache, len(self.pages)
        cache.evict(0, wanted)
        self.lease = lease = cache.lock(cache.match(self._token_ids))
        if lease.host_pages != wanted:
            message = f"{lease.host_pages} pages are on the host only, want {wanted}: {cache.stats()!r}"
            raise CpkvError(message)
        self.operations = cache.restore(lease, self.pages).operations

    def submit(self) -> None:
        """See `Copier`."""
        self.site.tier.load(self.operations)

    def ended(self) -> Mark:
        """See `Copier`."""
        engine = self.site.engine
        return self.site.platform.copied(engine, RESTORE, engine.next_sequence(RESTORE) - 1)

    def finish(self) -> None:
        """See `Copier`."""
        operations, self.operations = self.operations, []
        self.site.settle(lambda: all(one.status in ("committed", "rolled_back") for one in operations))
        if not all(one.status == "committed" for one in operations):
            message = f"a restore has ended as {[one.status for one in operations]}, want committed"
            raise CpkvError(message)
        if self.lease is not None:
            self.lease.release()
            self.lease = None
