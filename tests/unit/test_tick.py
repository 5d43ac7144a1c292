"""What a tick takes and refuses, and what it reports."""

import threading

import numpy as np
import pytest

import cpkv
from tracked import prompt, start, tracked


def under_way(cache, streams=2):
    """A transaction with a copy on each of the streams, inserted and released."""
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    for stream in range(streams):
        transaction.submitted(stream, 1)
    cache.forward_end([transaction])
    cache.insert(tokens, pages, lease, transaction)
    lease.release()
    return transaction


@pytest.mark.parametrize(("acks", "words"), [(cpkv.AckWords(1), 1), ([1], 1), (np.array([1, 1]), 2), (None, 0)])
def test_a_stream_without_a_word_is_refused_and_changes_nothing(acks, words):
    cache = tracked()
    transaction = under_way(cache, streams=3)
    digest = cache.digest()
    wanted = f"acks has {words} words, and a copy of operation 0.0 was submitted on stream 2: want 3 or more"
    for _ in range(2):
        with pytest.raises(cpkv.InputError, match=wanted):
            cache.tick(5, acks)
    assert (cache.digest(), transaction.status) == (digest, "pending")
    assert cache.tick(0, [1, 1, 1, 7]).committed == [transaction.id], "the refused tick was none"


@pytest.mark.parametrize("agrees", [False, True])
def test_there_is_always_a_next_step(agrees):
    cache = tracked()
    if agrees:
        cache.attach_reduction(lambda votes: votes)
    digest = cache.digest()
    for step in (2**63, 2**64 - 1):
        with pytest.raises(cpkv.InputError, match=f"the first tick is {step}, want 0 to {2**63 - 1}"):
            cache.tick(step)
    assert cache.digest() == digest
    for step in range(2**63 - 1, 2**63 + 3):
        cache.tick(step)
    with pytest.raises(cpkv.UsageError, match=f"tick 0 is out of order, want {2**63 + 3}"):
        cache.tick(0)


def test_streams_without_copies_need_no_word():
    cache = tracked()
    assert cache.tick(0).committed == []
    transaction = under_way(cache, streams=1)
    assert cache.tick(1, [1]).committed == [transaction.id]
    assert cache.tick(2).committed == []


def test_a_stream_without_a_word_is_refused_by_ranks_that_agree():
    caches, votes, meeting = [tracked() for _ in range(2)], [None, None], threading.Barrier(2, timeout=20)

    def reduction(rank):
        def reduce(mine):
            votes[rank] = np.array(mine)
            meeting.wait()
            minimum = np.minimum(*votes)
            meeting.wait()
            return minimum

        return reduce

    for rank, cache in enumerate(caches):
        cache.attach_reduction(reduction(rank))
        under_way(cache)
    committed = [[], []]

    def ticks(rank):
        with pytest.raises(cpkv.InputError, match="acks has 1 words"):
            caches[rank].tick(0, [1])
        for step in range(2):
            committed[rank] += caches[rank].tick(step, [1, 1]).committed

    threads = [threading.Thread(target=ticks, args=[rank]) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert committed == [[0], [0]]


def test_the_oldest_operation_has_an_age_since_the_first_tick_that_has_seen_it():
    cache = tracked()

    def age_at(step, now_ns, acks=(0, 0)):
        cache.tick(step, list(acks), now_ns=now_ns)
        return cache.stats().oldest_operation_ns

    assert age_at(0, 1_000) == 0
    under_way(cache)
    # Without work nobody ticks: how long that was does not count.
    assert [age_at(1, 5_000), age_at(2, 5_300)] == [0, 300]
    other = prompt(cache, 2, first=500)
    lease, pages = start(cache, other)
    (younger,) = cache.reserve([(other, pages, lease)])
    assert age_at(3, 5_400) == 400
    assert age_at(4, 5_900, acks=(1, 1)) == 500, "that of the other one"
    younger.abort()
    lease.release()
    assert age_at(5, 6_000, acks=(1, 1)) == 0
