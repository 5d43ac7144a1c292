"""Ranks that agree by a reduction: every rank calls it as often as the others, and seldom."""

import random
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

import cpkv

PATIENCE_S = 20
"""For ranks that will never meet."""


class Meeting:
    """A reduction over the ranks of this process, each of them a thread, that waits for all of them."""

    def __init__(self, ranks, *, later):
        self.ranks = ranks
        self.later = later
        self.barrier = threading.Barrier(ranks)
        self.votes = [[] for _ in range(ranks)]

    def of(self, rank):
        """What one rank calls: the minimum of all, now or when it is asked for."""

        def reduce(mine):
            self.votes[rank].append(np.array(mine))
            call = len(self.votes[rank]) - 1

            def minimum():
                self.barrier.wait(PATIENCE_S)
                return np.minimum.reduce([votes[call] for votes in self.votes])

            return minimum if self.later else minimum()

        return reduce


@dataclass
class Rank:
    """One rank: what it decides is drawn alike on all of them, and when its copies land is not."""

    rank: int
    ranks: int
    meeting: Meeting
    seed: int
    settings: dict
    steps: list = field(default_factory=list)
    submitted: int = 0
    reached: int = 0

    def __post_init__(self):
        own_lane = self.rank if self.settings["lanes"] > 1 else None
        self.cache = cpkv.CacheManager(
            device_pages=256, host_slots=256, segment_pages=1, copies="tracked", own_lane=own_lane, **self.settings
        )
        self.same, self.own = random.Random(self.seed), random.Random(self.seed * 1_000 + self.rank)
        self.cache.attach_reduction(self.meeting.of(self.rank))

    @property
    def calls(self):
        return len(self.meeting.votes[self.rank])

    def submit(self, transaction):
        """One copy of the pages that are this rank's, if there are any."""
        lanes = self.cache.lanes
        if lanes == 1 or any(page % lanes == self.rank for page in transaction.plan()[0]):
            self.submitted += 1
            transaction.submitted(0, self.submitted)
        if self.own.random() < 0.05:
            transaction.copy_failed()

    def serve(self):
        page_size, pair = self.cache.page_size, self.settings["key"] == "pair"
        first, pages = self.same.randrange(300) * 10_000, self.same.randint(1, 4)
        tokens = np.arange(first, first + pages * page_size + int(pair))
        lease = self.cache.lock(self.cache.match(tokens))
        # Most prompts begin in lane 0: the other ranks have nothing of the short ones.
        placed = [page % self.cache.lanes for page in range(lease.device_pages, pages)]
        if lease.host_pages or self.cache.evict_for(lanes=placed) is None:
            lease.release()
            return
        given = self.cache.allocate(lanes=placed)
        (transaction,) = self.cache.reserve([(tokens, given, lease)])
        if transaction.id is not None:
            self.submit(transaction)
        self.cache.forward_end([transaction])
        if self.same.random() < 0.3:
            transaction.abort()
            self.cache.free(given)
        else:
            self.cache.free(self.cache.insert(tokens, given, lease, transaction).duplicates)
        lease.release()

    def step(self, requests):
        before = self.calls
        for _ in range(requests):
            self.serve()
        assert self.calls == before, "nothing but a tick is a reason to meet"
        self.reached = self.own.randint(self.reached, self.submitted)
        report = self.cache.tick(len(self.steps), [self.reached])
        for late in report.started:
            if late.status == "pending":
                self.submit(late)
                late.submitted_all()
        calls, is_open = self.calls - before, self.cache.stats().open_operations > 0
        assert calls == int(is_open), "once while something is open, and not at all otherwise"
        self.steps.append((report.committed, report.rolled_back, calls, self.cache.has_work(), self.cache.digest()))

    def live(self):
        # Busy, idle until nothing is left to do, and busy again, with queues of any length.
        for most in (1, 4, 150):
            for _ in range(30):
                self.step(self.same.randint(0, most))
            while self.cache.has_work():
                self.step(0)
            for _ in range(5):
                self.step(0)


def run(ranks):
    """Let all ranks live, each in a thread; what one of them raises is raised here."""
    failures = []

    def live(rank):
        try:
            rank.live()
        except Exception as failure:  # noqa: BLE001 - raised below
            failures.append(failure)
            rank.meeting.barrier.abort()

    threads = [threading.Thread(target=live, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The others have only missed the one that failed.
    for failure in failures:
        if not isinstance(failure, threading.BrokenBarrierError):
            raise failure
    assert failures == []


@pytest.mark.parametrize("later", [False, True], ids=["at once", "at the next tick"])
@pytest.mark.parametrize(("key", "page_size"), [("token", 1), ("pair", 1), ("token", 64), ("pair", 4)])
@pytest.mark.parametrize(("count", "striped"), [(2, False), (2, True), (4, True)])
def test_all_ranks_meet_equally_often_whatever_each_has_to_do(count, striped, key, page_size, later):
    meeting = Meeting(count, later=later)
    settings = {"key": key, "page_size": page_size, "lanes": count if striped else 1}
    ranks = [Rank(rank, count, meeting, seed=page_size + count, settings=settings) for rank in range(count)]
    run(ranks)
    for rank in ranks[1:]:
        assert rank.steps == ranks[0].steps
    sizes = [[len(votes) for votes in of_rank] for of_rank in meeting.votes]
    assert all(of_rank == sizes[0] for of_rank in sizes)
    assert len(set(sizes[0])) > 1, "with more open than fits the smallest"
    committed, rolled_back, calls, _, _ = zip(*ranks[0].steps, strict=True)
    assert sum(map(len, committed)) > 20
    assert sum(map(len, rolled_back)) > 20
    assert sum(calls) < len(calls), "idle steps are free"
    stats = ranks[0].cache.stats()
    assert stats.host_reserved_slots == stats.host_draining_slots == stats.device_fenced_pages == 0
    assert stats.device_free_pages + stats.device_cached_pages == stats.device_capacity_pages
    ranks[0].cache.check_integrity()


@pytest.mark.parametrize("operations", [1, 63, 64, 65, 300])
def test_one_meeting_a_tick_for_any_number_of_operations(operations):
    calls = []
    cache = cpkv.CacheManager(page_size=1, device_pages=400, host_slots=400, segment_pages=1, copies="tracked", lanes=1)

    def reduce(mine):
        calls.append(len(mine))
        return lambda: np.array(mine)

    cache.attach_reduction(reduce)
    for first in range(operations):
        with cache.lock(cache.match([first])) as lease:
            pages = cache.allocate(1)
            (transaction,) = cache.reserve([([first], pages, lease)])
            transaction.submitted(0, first + 1)
            cache.forward_end([transaction])
            cache.insert([first], pages, lease, transaction)
    for step in range(5):
        assert cache.tick(step, [0]).committed == []
        assert len(calls) == step + 1
    assert len(set(calls)) == 1, "the size does not depend on what has landed"
    # All land at once; they are seen in the tick after the meeting.
    assert cache.tick(5, [operations]).committed == []
    assert len(cache.tick(6, [operations]).committed) == operations
    assert (len(calls), cache.has_work()) == (6, False)
    cache.tick(7, [operations])
    assert len(calls) == 6
