"""Ranks without an engine, each in a thread: trees and pools of their own, copies that are late or fail on one of them.

They get the same requests, and whatever comes of the copies of one, all trees have to stay the same.
"""

import random
import secrets
from array import array
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from scheduling import Request, TieredScheduler, context
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.runtime_context import get_context
from test_sglang_requests import Work

from cpkv.device import RESTORE
from cpkv.device.cpu import CpuEngine
from cpkv.errors import CopyError, RestoreError
from cpkv.sglang.cache import CHECK_INTEGRITY
from cpkv.sglang.drains import _process_batch_result
from cpkv.sglang.pages import AskedPages
from cpkv.sglang.ranks import ONE, SHARED_MEMORY, Ranks

pytestmark = pytest.mark.timeout(120)

STEPS = 500
PAGE_SIZE = 4


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setenv(CHECK_INTEGRITY, "1")
    with get_context().override_server_args():
        yield


class RankScheduler(TieredScheduler):
    """One of several ranks. What has failed on it may be read until all know of it, and is given up then."""

    def read(self, request, layer, expected):
        """The same, unless it was to be restored and was not."""
        try:
            request.last_node.lease.layer_has_landed(layer, self.host.tier.engine.acks)
        except RestoreError:
            self.modules[layer].hook(None, None, None)
        else:
            super().read(request, layer, expected)

    def remember(self, request, end):
        """What was kept is found, but for what relies on what has failed."""
        if request.to_finish is None:
            super().remember(request, end)


class RankWork(Work):
    """Keeps what the tree was like after each step."""

    def __init__(self, scheduler, seed):
        super().__init__(scheduler, seed)
        self.past = []

    def step(self):
        super().step()
        for request in list(self.scheduler.running):
            if request.to_finish is not None:
                self.scheduler.abort(request)
        self.scheduler.host.catch_up()
        free = self.scheduler.allocator.get_all_free_pages().tolist()
        self.past.append((self.scheduler.cache.manager.digest(), free))


def own_copies(seed, *, failing):
    """Late by up to 20 ms, and some fail: alike on no two ranks."""
    draws = random.Random(seed)
    shares = {RESTORE: 0.2 * failing}
    return CpuEngine(
        delay_s=lambda _: draws.choice([0.0] * 10 + [0.001] * 9 + [0.01]) * draws.random() * 2,
        fails=lambda stream, _: draws.random() < shares.get(stream, 0.05 * failing),
    )


def work(ranks, *, seed, failing=False, agree=True, is_eagle=False, write="through"):
    """Let all ranks serve the same requests; return for each the work and the figures of its cache."""
    nonce = secrets.randbits(64)

    def run(rank):
        made_of = context(pages=-(-850 // PAGE_SIZE), page_size=PAGE_SIZE, is_eagle=is_eagle)
        copies = own_copies(seed * 100 + rank, failing=failing)
        met = Ranks(rank=rank, size=ranks, nonce=nonce) if agree else ONE
        scheduler = RankScheduler(made_of, copies, slots=2_000, write=write, ranks=met)
        try:
            done = RankWork(scheduler, seed)
            while done.steps < STEPS:
                done.step()
            for request in list(scheduler.running):
                if not request.kv.kv_allocated_len:
                    scheduler.extend(request, len(request.tokens))  # SGLang ends nothing that has no memory yet
                scheduler.abort(request)
            scheduler.flush()
            figures = scheduler.cache.manager.stats().as_dict()
            # How much a rank has to remember, and for how long, depends on when its copies have landed.
            del figures["metadata_bytes"], figures["peak_metadata_bytes"], figures["oldest_operation_ns"]
            return done, figures
        finally:
            scheduler.cache.release_host_resources()

    with ThreadPoolExecutor(ranks) as threads:
        results = list(threads.map(run, range(ranks)))
    assert not list(Path(SHARED_MEMORY).glob(f"*{nonce:016x}*")), "the log goes with the host tier"
    return results


def check_they_are_alike(results):
    (first, figures), *others = results
    for other, of_other in others:
        parted = [
            step for step, pair in enumerate(zip(first.past, other.past, strict=True)) if len(set(map(str, pair))) > 1
        ]
        assert not parted
        assert other.found == first.found
        assert of_other == figures
    return figures


@pytest.mark.parametrize("write", ["through", "selective", "back"])
@pytest.mark.parametrize("is_eagle", [False, True])
def test_trees_are_the_same_after_each_step(is_eagle, write):
    figures = check_they_are_alike(work(2, seed=6, is_eagle=is_eagle, write=write))
    assert figures["committed_pages"] > 0
    assert figures["restored_pages"] > 0


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_trees_are_the_same_when_copies_fail(seed, ranks):
    figures = check_they_are_alike(work(ranks, seed=seed, failing=True))
    assert figures["committed_pages"] > 0
    assert figures["rolled_back_operations"] > 0
    assert figures["failed_restores"] > 0


@pytest.mark.parametrize("failing", [False, True])
def test_trees_are_the_same_whenever_pages_are_told(failing, monkeypatch):
    """At a layer's end on one rank, after the forward on another one."""
    draws = random.Random(1)
    monkeypatch.setattr(AskedPages, "are_there", lambda _: draws.random() < 0.3)
    figures = check_they_are_alike(work(2, seed=1, failing=failing))
    assert figures["committed_pages"] > 0
    assert figures["restored_pages"] > 0


def test_trees_part_without_agreement():
    (first, _), (other, _) = work(2, seed=1, agree=False)
    assert first.past != other.past


LATE_S = 0.05
TOKENS = array("q", range(90))


def served(scheduler):
    request = Request(0, TOKENS)
    scheduler.start(request)
    scheduler.extend(request, len(TOKENS))
    scheduler.finish(request)


def on_two_ranks(make_copies, do):
    """Do the same on each of them, and return what each says."""
    nonce = secrets.randbits(64)

    def run(rank):
        met = Ranks(rank=rank, size=2, nonce=nonce)
        scheduler = RankScheduler(context(pages=100, page_size=4), make_copies(rank), slots=400, ranks=met)
        try:
            return do(scheduler)
        finally:
            scheduler.cache.release_host_resources()

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(run, range(2)))


@pytest.mark.parametrize("late", [0, 1])
def test_copies_of_all_ranks_are_waited_for(late):
    """Else a flush is refused, and the memory of the pools is not given up, which ends an engine."""

    def drain(scheduler):
        served(scheduler)
        scheduler.cache.drain()
        return len(scheduler.cache.ongoing_write_through), scheduler.host.tier.cache.stats().host_cached_slots

    assert on_two_ranks(lambda rank: CpuEngine(delay_s=LATE_S * (rank == late)), drain) == [(0, 22)] * 2


@pytest.mark.parametrize("broken", [0, 1])
def test_a_stream_that_has_failed_on_one_rank_is_given_up_by_all_at_the_same_step(broken):
    class Broken(CpuEngine):
        def synchronize(self):
            raise CopyError("the stream has failed")

    def drain(scheduler):
        served(scheduler)
        scheduler.cache.drain()
        return scheduler.host._step, scheduler.cache.manager.digest()

    first, other = on_two_ranks(lambda rank: (Broken if rank == broken else CpuEngine)(delay_s=LATE_S), drain)
    assert first == other


@pytest.mark.parametrize("unlucky", [0, 1])
def test_what_one_rank_could_not_read_back_is_not_answered_by_any(unlucky):
    """Also if the request ends with the forward that has read it."""

    def copies(rank):
        fails = lambda stream, _: rank == unlucky and stream == RESTORE  # noqa: E731
        return CpuEngine(delay_s=LATE_S * (rank == unlucky), fails=fails)

    def read_back(scheduler):
        served(scheduler)
        scheduler.cache.drain()
        scheduler.cache.evict(EvictParams(num_tokens=400))
        scheduler.scribble()
        request = Request(1, TOKENS)
        scheduler.start(request)
        assert scheduler.restored == 88
        scheduler.extend(request, len(TOKENS))
        batch = SimpleNamespace(reqs=[request], forward_mode=ForwardMode.EXTEND)
        result = SimpleNamespace(copy_done=None)
        served_by = SimpleNamespace(tree_cache=scheduler.cache)
        reason = _process_batch_result(lambda *_: request.to_finish, served_by, batch, result)
        scheduler.abort(request)
        return reason is not None, scheduler.host._step

    (is_aborted, steps), other = on_two_ranks(copies, read_back)
    assert is_aborted
    assert other == (is_aborted, steps)


def test_a_rank_that_publishes_nothing_keeps_no_events():
    """It notes them, since caches that agree are alike in that, too."""
    scheduler = TieredScheduler(context(pages=50, page_size=4), CpuEngine(), slots=400, ranks=Ranks(has_events=True))

    def serve(number):
        request = Request(number, array("q", range(number, number + 30)))
        scheduler.start(request)
        scheduler.extend(request, 30)
        scheduler.finish(request)

    serve(0)
    assert scheduler.cache.manager.take_events()
    serve(1)
    while len(scheduler.cache.ongoing_write_through):
        scheduler.tick()
    scheduler.tick()
    assert not scheduler.cache.manager.take_events()
    scheduler.flush()
    scheduler.cache.release_host_resources()
