"""A refused call changes nothing, whatever it is and whatever is under way."""

import numpy as np
import pytest

import cpkv
from tracked import prompt, start, tracked


class Case:
    """A cache with a backup that is open, a late one, a restore, leases of all kinds, and a stranger."""

    def __init__(self, directory):
        self.cache, self.directory = tracked(device_pages=32, host_slots=32, lanes=2), str(directory)
        self.stranger = tracked(lanes=2)
        cache = self.cache
        # On the host only, and half of it on its way back.
        self.far = prompt(cache, 4, first=100)
        self.insert(self.far)
        self.ticks = 0
        self.commit(*self.tick([]).started)
        cache.evict(0, 2)
        cache.evict(1, 2)
        self.host_lease = cache.lock(cache.match(self.far))
        with cache.lock(cache.match(self.far[:2])) as lease:
            (self.restore,) = cache.restore(lease, cache.allocate(2)).operations
        self.restore.layer_submitted(3)
        self.insert(prompt(cache, 2, first=200))
        (self.late,) = self.tick([1]).started
        self.tokens = prompt(cache, 2)
        self.lease, self.pages = start(cache, self.tokens)
        (self.open,) = cache.reserve([(self.tokens, self.pages, self.lease)])
        self.open.submitted(1, 5)
        self.bound_tokens = prompt(cache, 2, first=300)
        self.bound_lease, self.bound_pages = start(cache, self.bound_tokens)
        (self.bound,) = cache.reserve([(self.bound_tokens, self.bound_pages, self.bound_lease)])
        cache.insert(self.bound_tokens, self.bound_pages, self.bound_lease, self.bound)
        (self.nothing,) = cache.reserve([(self.bound_tokens, [], self.bound_lease)])
        self.released = cache.lock(cache.match(self.tokens))
        self.released.release()
        self.spare = cache.allocate(4)
        self.foreign_lease, self.foreign_pages = start(self.stranger, self.tokens)
        (self.foreign,) = self.stranger.reserve([(self.tokens, self.foreign_pages, self.foreign_lease)])

    def insert(self, tokens):
        lease, pages = start(self.cache, tokens)
        self.cache.insert(tokens, pages, lease)
        lease.release()

    def tick(self, acks):
        self.ticks += 1
        return self.cache.tick(self.ticks - 1, acks)

    def commit(self, *transactions):
        for transaction in transactions:
            transaction.submitted(0, 1)
            transaction.submitted_all()
        self.tick([1])

    def log(self, **settings):
        defaults = {"ranks": 1, "fingerprint": self.cache.fingerprint, "directory": self.directory}
        return cpkv.CommitLog.create("log", 1, **defaults | settings)

    def state(self):
        stats = self.cache.stats().as_dict()
        transactions = (self.restore, self.late, self.open, self.bound, self.nothing)
        return (
            self.cache.digest(),
            self.cache.dump(),
            # What was used for a while may have grown.
            {name: figure for name, figure in stats.items() if not name.endswith("metadata_bytes")},
            self.cache.has_work(),
            [(one.status, one.reason) for one in transactions],
            [(repr(lease), lease.lost) for lease in (self.lease, self.bound_lease, self.host_lease)],
        )

    def close(self):
        for lease in (self.lease, self.bound_lease, self.host_lease, self.foreign_lease):
            lease.release()
        for transaction in (self.open, self.foreign):
            transaction.abort()


@pytest.fixture
def case(tmp_path):
    case = Case(tmp_path)
    yield case
    case.close()


def closed_log(case):
    log = case.log()
    log.close()
    return log


CALLS = {
    "attach_log, open": lambda case: case.cache.attach_log(case.log()),
    "attach_log, of others": lambda case: case.cache.attach_log(case.log(fingerprint=1)),
    "attach_log, closed": lambda case: case.cache.attach_log(closed_log(case)),
    "attach_log, none": lambda case: case.cache.attach_log(None),
    "attach_reduction, open": lambda case: case.cache.attach_reduction(np.array),
    "attach_reduction, none": lambda case: case.cache.attach_reduction(None),
    "match, type": lambda case: case.cache.match("abc"),
    "match, limit": lambda case: case.cache.match(case.tokens, limit=-1),
    "match, namespace": lambda case: case.cache.match(case.tokens, namespace=3),
    "lock, of others": lambda case: case.cache.lock(case.stranger.match(case.tokens)),
    "lock, priority": lambda case: case.cache.lock(case.cache.match(case.far), priority=2**31),
    "allocate, count": lambda case: case.cache.allocate(-1),
    "allocate, lane": lambda case: case.cache.allocate(1, 2),
    "allocate, lanes": lambda case: case.cache.allocate(lanes=[0, 1, 2]),
    "allocate, both": lambda case: case.cache.allocate(1, lanes=[0]),
    "evict, lane": lambda case: case.cache.evict(2, 1),
    "evict, count": lambda case: case.cache.evict(0, -1),
    "evict_for, lane": lambda case: case.cache.evict_for(1, 2),
    "free, repeated": lambda case: case.cache.free([*case.spare, case.spare[0]]),
    "free, of the cache": lambda case: case.cache.free([*case.spare, case.bound_pages[0]]),
    "free, free": lambda case: case.cache.free([*case.spare, 31]),
    "free, out of range": lambda case: case.cache.free([*case.spare, 32]),
    "free_pages, lane": lambda case: case.cache.free_pages(2),
    "evictable_pages, lane": lambda case: case.cache.evictable_pages(-1),
    "restore, count": lambda case: case.cache.restore(case.host_lease, []),
    "restore, lane": lambda case: case.cache.restore(case.host_lease, case.spare[::-1]),
    "restore, parts": lambda case: case.cache.restore(case.host_lease, case.spare, part_pages=0),
    "restore, released": lambda case: case.cache.restore(case.released, []),
    "restore, of others": lambda case: case.cache.restore(case.foreign_lease, []),
    "insert, count": lambda case: case.cache.insert(case.tokens, [], case.lease, case.open),
    "insert, repeated": lambda case: case.cache.insert(case.tokens, [case.pages[0]] * 2, case.lease, case.open),
    "insert, other pages": lambda case: case.cache.insert(case.tokens, case.spare[:2], case.lease, case.open),
    "insert, of the cache": lambda case: case.cache.insert(case.tokens, case.bound_pages, case.lease),
    "insert, left out": lambda case: case.cache.insert(case.tokens, case.pages, case.lease),
    "insert, twice": lambda case: case.cache.insert(case.bound_tokens, [], case.bound_lease, case.bound),
    "insert, late": lambda case: case.cache.insert(case.tokens, case.pages, case.lease, case.late),
    "insert, tokens": lambda case: case.cache.insert(case.tokens, [], case.bound_lease),
    "insert, namespace": lambda case: case.cache.insert(case.tokens, case.pages, case.lease, namespace="x"),
    "insert, released": lambda case: case.cache.insert(case.tokens, case.spare[:2], case.released),
    "insert, lease of others": lambda case: case.cache.insert(case.tokens, case.spare[:2], case.foreign_lease),
    "insert, of others": lambda case: case.cache.insert(case.tokens, case.pages, case.lease, case.foreign),
    "insert, no lease": lambda case: case.cache.insert(case.tokens, case.pages, None, case.open),
    "insert, new namespace": lambda case: case.cache.insert(case.tokens, [31, 30], namespace="new"),
    "reserve, twice": lambda case: case.cache.reserve([(case.tokens, case.pages, case.lease)] * 2),
    "reserve, released": lambda case: case.cache.reserve([(case.tokens, case.spare[:2], case.released)]),
    "reserve, of others": lambda case: case.cache.reserve([(case.tokens, case.spare[:2], case.foreign_lease)]),
    "reserve, second is wrong": lambda case: case.cache.reserve(
        [([*case.bound_tokens, 7], case.spare[:1], case.bound_lease), (case.tokens, case.pages[:1], case.lease)]
    ),
    "reserve, type": lambda case: case.cache.reserve([(case.tokens, case.pages, None)]),
    "forward_end, late": lambda case: case.cache.forward_end([case.open, case.late]),
    "forward_end, restore": lambda case: case.cache.forward_end([case.open, case.restore], target_ran=False),
    "forward_end, of others": lambda case: case.cache.forward_end([case.open, case.foreign], draft_ran=False),
    "forward_end, type": lambda case: case.cache.forward_end([case.open, None]),
    "tick, order": lambda case: case.cache.tick(case.ticks + 1),
    "tick, negative": lambda case: case.cache.tick(-1),
    "tick, acks": lambda case: case.cache.tick(case.ticks, [1]),
    "tick, a negative word": lambda case: case.cache.tick(case.ticks, [1, -1]),
    "tick, time": lambda case: case.cache.tick(case.ticks, [1, 1], now_ns=-1),
    "page_hashes, type": lambda case: case.cache.page_hashes([0.5]),
    "release, twice": lambda case: case.released.release(),
    "page_ids, page": lambda case: case.lease.page_ids(-1),
    "host_slots, released": lambda case: case.released.host_slots(),
    "restores, released": lambda case: case.released.restores(),
    "layer_has_landed, layer": lambda case: case.host_lease.layer_has_landed(-1),
    "layer_has_landed, acks": lambda case: case.host_lease.layer_has_landed(0, [-1]),
    "abort, reason": lambda case: case.open.abort("bored"),
    "abort, type": lambda case: case.open.abort(None),
    "submitted, stream": lambda case: case.open.submitted(1_024, 1),
    "submitted, sequence": lambda case: case.open.submitted(0, 0),
    "submitted, none": lambda case: case.nothing.submitted(0, 1),
    "layer_submitted, order": lambda case: case.restore.layer_submitted(3),
    "layer_submitted, layer": lambda case: case.restore.layer_submitted(2**32),
    "submitted_all, none": lambda case: case.nothing.submitted_all(),
    "copy_failed, none": lambda case: case.nothing.copy_failed(),
    "first_page, none": lambda case: case.nothing.first_page,
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_refused_call_changes_nothing(case, call):
    before = case.state()
    case.cache.check_integrity()
    for _ in range(2):
        with pytest.raises(cpkv.CpkvError):
            call(case)
        assert case.state() == before
    case.cache.check_integrity()
