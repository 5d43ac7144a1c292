"""Ranks on one commit log."""

import cpkv

TOKENS = [1, 2]


class Rank:
    """A cache with its place in a log, and one transaction that is open."""

    def __init__(self, directory, nonce, rank, **settings):
        self.cache = cpkv.CacheManager(
            page_size=1, device_pages=8, host_slots=8, segment_pages=1, copies="tracked", **settings
        )
        shared = {"ranks": 2, "fingerprint": self.cache.fingerprint, "directory": str(directory)}
        if rank == 0:
            self.log = cpkv.CommitLog.create("test", nonce, **shared)
        else:
            self.log = cpkv.CommitLog.join("test", nonce, rank, **shared)

    def start(self):
        self.cache.attach_log(self.log)
        lease = self.cache.lock(self.cache.match(TOKENS))
        pages = self.cache.allocate(2)
        (self.transaction,) = self.cache.reserve([(TOKENS, pages, lease)])
        self.transaction.submitted(0, 1)
        self.cache.forward_end([self.transaction])
        self.cache.insert(TOKENS, pages, lease, self.transaction)
        lease.release()
