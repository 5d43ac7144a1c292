"""Waits for another rank that a signal handler looks into, or ends."""

import contextlib
import os
import secrets
import signal

import numpy as np
import pytest

import cpkv
from log_ranks import Rank
from tracked import prompt, start, tracked
from waiting_call import WaitingCall


@contextlib.contextmanager
def handled(handler, then=lambda: None):
    """Lets `handler` handle a signal that comes when the main thread waits for another rank."""

    def send():
        os.kill(os.getpid(), signal.SIGUSR1)
        then()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with WaitingCall(send) as call:
            yield call
    finally:
        signal.signal(signal.SIGUSR1, before)


class LeaveError(BaseException):
    """As far from an `Exception` as a `KeyboardInterrupt`, which would end pytest if it came too late."""


def interrupt(_number, _frame):
    raise LeaveError


@pytest.fixture
def waiting(tmp_path):
    """Rank 1 of two, whose next tick waits for rank 0, and rank 0."""
    nonce = secrets.randbits(62)
    zero, one = (Rank(tmp_path, nonce, rank) for rank in range(2))
    zero.log.wait_for_all(10)
    for rank in (zero, one):
        rank.start()
    one.log.set_patience(warning=0.01, deadline=25)
    one.cache.tick(0, [1])
    yield one, zero
    one.log.close()
    zero.log.close()


def test_a_handler_may_close_the_log_of_a_waiting_tick(waiting):
    one, _ = waiting
    digest = one.cache.digest()
    with (
        handled(lambda _number, _frame: one.log.close()),
        pytest.raises(cpkv.LogError, match="the commit log was closed"),
    ):
        one.cache.tick(1, [1])
    assert one.cache.digest() == digest


def test_a_handler_may_use_the_cache_and_not_tick_it(waiting):
    one, zero = waiting
    seen = []

    def handler(_number, _frame):
        seen.append(one.cache.stats().open_operations)
        with pytest.raises(cpkv.UsageError, match="a tick of this cache is under way"):
            one.cache.tick(1, [1])
        zero.cache.tick(0, [1])

    with handled(handler):
        assert one.cache.tick(1, [1]).committed == [one.transaction.id]
    assert seen == [1]


def test_what_a_handler_raises_leaves_the_tick_and_nothing_has_changed(waiting):
    one, zero = waiting
    lease = one.cache.lock(one.cache.match([1, 2]))
    with pytest.warns(ResourceWarning):
        del lease
    digest = one.cache.digest()
    with handled(interrupt), pytest.raises(LeaveError):
        one.cache.tick(1, [1])
    assert one.cache.digest() == digest
    one.cache.check_integrity()
    zero.cache.tick(0, [1])
    assert one.cache.tick(1, [1]).committed == [one.transaction.id]


def test_a_signal_at_the_end_of_a_wait_does_not_take_the_report_with_it(waiting):
    one, zero = waiting
    with handled(interrupt, then=lambda: zero.cache.tick(0, [1])), pytest.raises(LeaveError):
        one.cache.tick(1, [1])
    assert one.cache.has_work()
    assert one.cache.tick(1, [1]).committed == [one.transaction.id]


def test_rank_zero_need_not_wait_for_all_to_the_end(tmp_path):
    nonce = secrets.randbits(62)
    zero = Rank(tmp_path, nonce, 0)
    with zero.log:
        zero.log.set_patience(warning=0.01, deadline=25)
        with handled(interrupt), pytest.raises(LeaveError):
            zero.log.wait_for_all(25)
        with Rank(tmp_path, nonce, 1).log:
            zero.log.wait_for_all(10)


def test_a_rank_need_not_wait_for_a_log_to_the_end(tmp_path):
    with handled(interrupt) as call:

        def join():
            # The thread that sends has its turn when the call lets the interpreter go.
            call.is_logged.set()
            cpkv.CommitLog.join("nobody", 1, 1, ranks=2, fingerprint=0, timeout=25, directory=str(tmp_path))

        with pytest.raises(LeaveError):
            join()


class Reduction:
    """The votes of two ranks, reduced when they are asked for; `fails` are raised first, one at a time."""

    def __init__(self):
        self.votes = [[], []]
        self.fails_to_start, self.fails_to_wait = [], []

    def of(self, rank):
        def reduce(mine):
            if self.fails_to_start:
                raise self.fails_to_start.pop()
            self.votes[rank].append(np.array(mine))
            step = len(self.votes[rank]) - 1

            def wait():
                if self.fails_to_wait:
                    raise self.fails_to_wait.pop()
                return np.minimum(self.votes[0][step], self.votes[1][step])

            return wait

        return reduce


def reduced():
    reduction, caches, transactions = Reduction(), [tracked(), tracked()], []
    for rank, cache in enumerate(caches):
        cache.attach_reduction(reduction.of(rank))
        tokens = prompt(cache, 2)
        lease, pages = start(cache, tokens)
        (transaction,) = cache.reserve([(tokens, pages, lease)])
        transaction.submitted(0, 1)
        cache.forward_end([transaction])
        cache.insert(tokens, pages, lease, transaction)
        lease.release()
        cache.tick(0, [1])
        transactions.append(transaction)
    return reduction, caches, transactions


@pytest.mark.parametrize("error", [LeaveError(), OSError("the network is down")])
def test_a_reduction_that_is_not_waited_for_to_the_end_can_be_waited_for_again(error):
    reduction, caches, (transaction, _) = reduced()
    digest = caches[0].digest()
    for _ in range(2):
        reduction.fails_to_wait = [error]
        with pytest.raises(type(error)):
            caches[0].tick(1, [1])
        assert caches[0].digest() == digest
    assert [cache.tick(1, [1]).committed for cache in caches] == [[transaction.id]] * 2
    assert caches[0].digest() == caches[1].digest()


@pytest.mark.parametrize("error", [LeaveError(), OSError("the network is down")])
def test_a_reduction_that_is_not_started_is_the_end_of_agreement(error):
    reduction, caches, _ = reduced()
    late, pages = [7], caches[0].allocate(1)
    caches[0].insert(late, pages)
    reduction.fails_to_start = [error]
    with pytest.raises(type(error)):
        caches[0].tick(1, [1])
    for step in (1, 2):
        with pytest.raises(cpkv.RankError, match=f"the reduction was not started: {type(error).__name__}"):
            caches[0].tick(step, [1])
