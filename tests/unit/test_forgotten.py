"""Leases and transactions that Python drops without their end."""

import itertools
import random
import threading

import pytest

import cpkv
from tracked import prompt, start, tracked

pytestmark = pytest.mark.filterwarnings("ignore:a lease of:ResourceWarning", "ignore:a transaction was:ResourceWarning")


def plain(**settings):
    return cpkv.CacheManager(page_size=1, device_pages=64, **settings)


def fill(cache):
    """Prompts that share fronts, and a lease on each of them."""
    leases = []
    for front, end in [(4, 0), (4, 2), (2, 3), (3, 1), (4, 4), (1, 2)]:
        tokens = [*range(front), *range(front * 100, front * 100 + end)]
        lease, pages = start(cache, tokens)
        cache.insert(tokens, pages, lease)
        leases.append(lease)
    return leases


def test_a_forgotten_lease_is_held_until_the_next_tick():
    cache, twin = plain(), plain()
    leases, twins = fill(cache), fill(twin)
    digest = cache.digest()
    with pytest.warns(ResourceWarning, match=r"a lease of 4 pages was dropped without release\(\): the next tick"):
        del leases[0]
    cache.check_integrity()
    assert cache.digest() == digest, "the drop changes nothing"
    with pytest.raises(cpkv.InputError):
        cache.tick(0, [-1])
    assert cache.digest() == digest, "a refused tick ends nothing"
    twins[0].release()
    for one in (cache, twin):
        one.tick(7)
    assert cache.digest() == twin.digest() != digest
    for lease in leases + twins[1:]:
        lease.release()
    assert cache.stats().device_evictable_pages == cache.stats().device_cached_pages


def test_a_forgotten_transaction_is_open_until_the_next_tick():
    cache = tracked()
    tokens = prompt(cache, 3)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    name = transaction.id
    with pytest.warns(ResourceWarning, match=r"dropped without insert\(\) or abort\(\): the next tick gives it up"):
        del transaction
    assert (cache.has_work(), cache.stats().host_reserved_slots) == (True, 3)
    assert cache.tick(0).rolled_back == [(name, "aborted")]
    assert (cache.has_work(), cache.stats().host_reserved_slots) == (False, 0)
    lease.release()


def test_only_a_rank_that_is_alone_ticks_for_what_it_has_forgotten():
    for agrees in (False, True):
        cache = tracked()
        if agrees:
            cache.attach_reduction(lambda votes: votes)
        cache.lock(cache.match([1]))
        assert cache.has_work() is not agrees
        cache.tick(0)
        assert not cache.has_work()


def test_the_order_of_drops_between_two_ticks_makes_no_difference():
    digests = set()
    for seed in range(12):
        cache = tracked(device_pages=64, host_slots=64)
        leases, transactions = fill(cache), []
        for number in range(4):
            tokens = [1_000 * (number + 1), 1]
            lease, pages = start(cache, tokens)
            (transaction,) = cache.reserve([(tokens, pages, lease)])
            # What has landed is over at once, and gives its place in the table back.
            transaction.submitted(0, number + 1)
            cache.forward_end([transaction])
            transactions.append(transaction)
            leases.append(lease)
        cache.tick(0, [4])
        dropped = [*leases, *transactions]
        del lease, transaction, leases, transactions
        random.Random(seed).shuffle(dropped)
        while dropped:
            dropped.pop()
            cache.match([1, 2, 3])
        cache.tick(1, [4])
        cache.check_integrity()
        digests.add(cache.digest())
    assert len(digests) == 1


def test_pages_come_free_in_one_order_whatever_was_dropped_first():
    freed = set()
    for order in itertools.permutations(range(3)):
        cache = plain(device_pool="external")
        leases = [cache.lock(cache.match([first])) for first in range(3)]
        for first, lease in enumerate(leases):
            cache.insert([first], [first + 7], lease)
        del lease
        assert list(cache.flush()) == []
        for place in order:
            leases[place] = None
        freed.add(tuple(cache.tick(0).freed_pages))
    assert freed == {(7, 8, 9)}


def test_threads_forget_while_others_work_and_tick():
    cache, done = plain(), threading.Event()
    for lease in fill(cache):
        lease.release()

    def forget(seed):
        for turn in range(300):
            lease = cache.lock(cache.match([0, 1, 2, 3][: 1 + (turn + seed) % 4]))
            # The old one goes here, and the last one with the thread.
            del lease

    def tick():
        for step in itertools.count():
            is_last = done.is_set()
            cache.tick(step)
            cache.check_integrity()
            if is_last:
                break

    forgetting = [threading.Thread(target=forget, args=[seed]) for seed in range(3)]
    ticking = threading.Thread(target=tick)
    for thread in (*forgetting, ticking):
        thread.start()
    for thread in forgetting:
        thread.join()
    done.set()
    ticking.join()
    stats = cache.stats()
    assert (stats.leases, cache.has_work()) == (6 + 900, False)
    assert stats.device_evictable_pages == stats.device_cached_pages > 0


def test_a_lease_may_be_forgotten_by_what_a_tick_calls():
    cache = tracked()
    held = []

    def reduce(votes):
        held.clear()
        return votes

    cache.attach_reduction(reduce)
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    held.append(lease)
    del lease
    cache.tick(0)
    assert not held
    transaction.abort()
    cache.free(pages)
    cache.tick(1)
    cache.tick(2)
    assert cache.stats().device_free_pages == 16
    cache.check_integrity()
