"""Leases that two threads use: `python shared_leases.py CALL` makes long calls with them.

A process of its own: threads that stop each other would stop the test, too, and whatever should end it.
"""

import sys
import threading

import numpy as np

import cpkv

PAGES = 250_000
"""Far more than a call needs to let the interpreter go, and enough for the other thread to have its turn."""


def new_cache(pages=PAGES, **settings):
    return cpkv.CacheManager(page_size=1, device_pages=pages, host_slots=pages, segment_pages=1, **settings)


class Reader(threading.Thread):
    """Reads a lease over and over. It holds the interpreter while it waits for the lease."""

    def __init__(self, lease):
        super().__init__()
        self.lease, self.reads, self.is_over = lease, 0, False
        self.has_read = threading.Event()

    def run(self):
        while not self.is_over:
            assert 0 <= self.lease.device_pages <= self.lease.pages <= PAGES
            self.reads += 1
            self.has_read.set()

    def __enter__(self):
        self.start()
        self.has_read.wait()
        return self

    def __exit__(self, *_exception):
        self.is_over = True
        self.join()


def insert():
    cache, tokens = new_cache(), np.arange(PAGES)
    with cache.lock(cache.match(tokens)) as lease, Reader(lease):
        assert cache.insert(tokens, cache.allocate(PAGES), lease).new_pages == PAGES


def restore():
    cache, tokens = new_cache(), np.arange(PAGES)
    cache.insert(tokens, cache.allocate(PAGES))
    cache.evict(0, PAGES)
    with cache.lock(cache.match(tokens)) as lease, Reader(lease):
        cache.restore(lease, cache.allocate(PAGES))
        assert lease.device_pages == PAGES


def reserve():
    cache, tokens = new_cache(copies="tracked"), np.arange(PAGES)
    pages = cache.allocate(PAGES)
    with cache.lock(cache.match(tokens)) as lease, Reader(lease):
        for step in range(20):
            with cache.reserve([(tokens, pages, lease)])[0] as transaction:
                assert transaction.status == "reserved"
            cache.tick(step)


def reserve_in_two_orders():
    pages, rounds = 20_000, 100
    cache = new_cache(2 * pages, copies="tracked")
    requests = []
    for number in range(2):
        tokens = np.arange(pages) + number * pages
        requests.append((tokens, cache.allocate(pages), cache.lock(cache.match(tokens))))
    meeting, ends = threading.Barrier(2), []

    def work(batch):
        for _ in range(rounds):
            meeting.wait()
            for transaction in cache.reserve(batch):
                transaction.abort()
        ends.append(rounds)

    threads = [threading.Thread(target=work, args=(batch,)) for batch in (requests, requests[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [rounds, rounds]
    for _, _, lease in requests:
        lease.release()


if __name__ == "__main__":
    CALLS = {call.__name__: call for call in (insert, restore, reserve, reserve_in_two_orders)}
    CALLS[sys.argv[1]]()
