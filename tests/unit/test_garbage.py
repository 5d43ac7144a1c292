"""What holds its cache, and is held by what the cache was given, goes when nobody else has it."""

import gc
import weakref

import numpy as np
import pytest

from tracked import prompt, start, tracked


class Engine:
    """Has a cache that reduces through it, and may keep anything that the cache returns."""

    def __init__(self):
        self.cache, self.kept = tracked(), []
        self.cache.attach_reduction(self.reduce)

    def reduce(self, votes):
        votes = np.array(votes)

        def reduced():
            self.kept.append(votes)
            return votes

        return reduced


def under_way(engine):
    tokens = prompt(engine.cache, 2)
    lease, pages = start(engine.cache, tokens)
    (transaction,) = engine.cache.reserve([(tokens, pages, lease)])
    transaction.submitted(0, 1)
    engine.cache.forward_end([transaction])
    engine.cache.insert(tokens, pages, lease, transaction)
    return lease, transaction


def keep_a_hit(engine):
    engine.kept.append(engine.cache.match([1]))


def keep_leases_and_transactions(engine):
    engine.kept.extend(under_way(engine))


def keep_reports(engine):
    lease, _ = under_way(engine)
    lease.release()
    # With a reduction that has begun and was not asked for yet.
    engine.kept.append(engine.cache.tick(0, [1]))


def keep_a_restore(engine):
    lease, _ = under_way(engine)
    lease.release()
    for step in range(2):
        engine.cache.tick(step, [1])
    engine.cache.evict(0, 2)
    with engine.cache.lock(engine.cache.match(prompt(engine.cache, 2))) as lease:
        restored = engine.cache.restore(lease, engine.cache.allocate(2))
    assert len(restored.operations) > 0
    engine.kept.append(restored)


@pytest.mark.filterwarnings("ignore:a lease of:ResourceWarning")
@pytest.mark.parametrize(
    "keep", [lambda _: None, keep_a_hit, keep_leases_and_transactions, keep_reports, keep_a_restore]
)
def test_an_engine_that_reduces_for_its_cache_can_be_collected(keep):
    engine = Engine()
    keep(engine)
    gone = weakref.ref(engine)
    del engine
    gc.collect()
    assert gone() is None


def test_a_cache_in_use_keeps_its_reduction():
    calls = []

    def attached():
        cache = tracked()

        def reduce(votes):
            calls.append(cache)
            return votes

        cache.attach_reduction(reduce)
        return cache

    cache = attached()
    gc.collect()
    tokens = prompt(cache, 1)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    cache.tick(0)
    assert calls == [cache]
    transaction.abort()
    lease.release()
