"""The host tier under random requests: real copies in threads that are late, every byte that a layer reads compared."""

import random
from array import array
from contextlib import contextmanager

import pytest
from scheduling import Request, TieredScheduler, context
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.runtime_context import get_context
from test_sglang_requests import Work

from cpkv.device import BACKUP, RESTORE
from cpkv.device.cpu import CpuEngine
from cpkv.errors import UsageError
from cpkv.sglang.cache import CHECK_INTEGRITY
from cpkv.sglang.opening import readable
from cpkv.sglang.pages import AskedPages

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setenv(CHECK_INTEGRITY, "1")
    with get_context().override_server_args():
        yield


def late(seed):
    """Copies that begin up to 2 ms after they were submitted, one in twenty of them later."""
    draws = random.Random(seed)
    return CpuEngine(delay_s=lambda _: draws.choice([0.0] * 10 + [0.001] * 9 + [0.01]) * draws.random() * 2)


def pages_come_late(monkeypatch, seed):
    """As from a GPU: at some layer's end, or only after the forward."""
    draws = random.Random(seed)
    monkeypatch.setattr(AskedPages, "are_there", lambda _: draws.random() < 0.3)


@pytest.mark.parametrize(
    ("write", "comes"), [("through", "at once"), ("through", "late"), ("selective", "at once"), ("back", "late")]
)
@pytest.mark.parametrize("is_eagle", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_every_layer_reads_what_was_computed_for_its_tokens(page_size, is_eagle, write, comes, monkeypatch):
    if comes == "late":
        pages_come_late(monkeypatch, 3)
    made_of = context(pages=-(-850 // page_size), page_size=page_size, is_eagle=is_eagle)
    scheduler = TieredScheduler(made_of, late(1), slots=-(-8_000 // page_size), write=write)
    Work(scheduler, 5).finish(steps=900)
    stats, counts = scheduler.host.tier.cache.stats(), scheduler.host.tier.counts
    assert scheduler.restored > 0
    assert stats.committed_pages > 0
    assert not counts.all_layer_forwards
    assert stats.host_reserved_slots == stats.host_draining_slots == stats.open_operations == 0
    scheduler.cache.release_host_resources()


@pytest.mark.parametrize("read", ["match_prefix", "evictable_size", "protected_size"])
def test_what_is_found_and_counted_is_the_same_whenever_pages_are_told(read, monkeypatch):
    """A scheduler decides by it, and several of them have to decide the same."""

    def served(scheduler, first, tokens):
        request = Request(first, array("q", range(first, first + tokens)))
        scheduler.start(request)
        scheduler.extend(request, tokens)
        scheduler.finish(request)
        scheduler.cache.drain()

    def found(is_told):
        monkeypatch.setattr(AskedPages, "are_there", lambda _: is_told)
        scheduler = TieredScheduler(context(pages=200, page_size=4), CpuEngine(), slots=50)
        served(scheduler, 1000, 100)
        scheduler.cache.evict(EvictParams(num_tokens=800))
        scheduler.scribble()
        request = Request(0, array("q", range(120)))
        scheduler.start(request)
        served(scheduler, 0, 80)
        # Slots are taken from what is on the host only, and the pages of the other request are held.
        scheduler.extend(request, 120)
        if read == "match_prefix":
            key = RadixKey(array("q", range(1000, 1100)), None)
            figure = scheduler.cache.match_prefix(MatchPrefixParams(key=key)).host_hit_length
        else:
            figure = getattr(scheduler.cache, read)()
        scheduler.finish(request)
        scheduler.cache.release_host_resources()
        return figure

    assert found(is_told=False) == found(is_told=True)


def drained(scheduler):
    while len(scheduler.cache.ongoing_write_through):
        scheduler.tick()


def test_a_request_whose_restore_has_failed_is_aborted_and_others_go_on(caplog):
    fails = set()
    made_of = context(pages=100, page_size=4)
    engine = CpuEngine(fails=lambda stream, _: stream in fails)
    scheduler = TieredScheduler(made_of, engine, slots=400)
    tokens, others = array("q", range(90)), array("q", range(100, 190))
    first, other = Request(0, tokens), Request(1, others)
    for request in (first, other):
        scheduler.start(request)
        scheduler.extend(request, len(request.tokens))
        scheduler.keep(request)
    scheduler.finish(first)
    drained(scheduler)
    scheduler.cache.evict(EvictParams(num_tokens=400))
    scheduler.scribble()
    fails.add(RESTORE)
    unlucky = Request(2, tokens)
    scheduler.start(unlucky)
    assert unlucky.host_hit_length == 88
    with caplog.at_level("WARNING", logger="cpkv"):
        drained(scheduler)
    assert unlucky.to_finish.message.startswith("what the request found on the host could not be read back")
    assert other.to_finish is None
    assert "request 2 is aborted" in caplog.text
    # What SGLang does with it then keeps nothing, and loses nothing.
    unlucky.extend_end = len(tokens)
    scheduler.cache.checkpoint(unlucky, up_to=88)
    scheduler.running.remove(unlucky)
    scheduler.cache.unlock(unlucky.lock)
    scheduler.check_sizes()
    scheduler.tick()
    fails.clear()
    again = Request(3, tokens)
    scheduler.start(again)
    assert again.host_hit_length == 88, "the host copy is still there"
    scheduler.extend(again, len(tokens))
    for request in (again, other):
        scheduler.finish(request)
    scheduler.flush()
    scheduler.cache.release_host_resources()


def test_a_forward_whose_copies_fail_leaves_no_host_copy():
    scheduler = TieredScheduler(
        context(pages=100, page_size=4), CpuEngine(fails=lambda stream, _: stream == BACKUP), slots=400
    )
    request = Request(0, array("q", range(90)))
    scheduler.start(request)
    scheduler.extend(request, 90)
    scheduler.finish(request)
    drained(scheduler)
    stats = scheduler.host.tier.cache.stats()
    assert stats.rolled_back_operations == 1
    assert stats.device_cached_pages == 22
    scheduler.flush()
    scheduler.cache.release_host_resources()


def test_a_host_prefix_that_there_is_no_room_for_is_computed_again():
    scheduler = TieredScheduler(context(pages=50, page_size=4), CpuEngine(), slots=400)
    tokens = array("q", range(90))
    first = Request(0, tokens)
    scheduler.start(first)
    scheduler.extend(first, 90)
    scheduler.finish(first)
    drained(scheduler)
    scheduler.cache.evict(EvictParams(num_tokens=200))
    scheduler.scribble()
    big = Request(1, array("q", range(200, 310)))
    scheduler.start(big)
    scheduler.extend(big, 110)
    scheduler.keep(big)
    unlucky = Request(2, tokens)
    scheduler.start(unlucky)
    assert (unlucky.host_hit_length, unlucky.prefix_len) == (88, 88)
    scheduler.abort(unlucky)
    drained(scheduler)
    scheduler.cache.evict(EvictParams(num_tokens=200))
    scheduler.scribble()
    bigger = Request(3, array("q", range(400, 450)))
    scheduler.start(bigger)
    scheduler.extend(bigger, 50)
    unlucky = Request(4, tokens)
    scheduler.start(unlucky)
    assert (unlucky.host_hit_length, unlucky.prefix_len) == (88, 0), "36 tokens are left"
    scheduler.finish(big)
    scheduler.extend(unlucky, 90)
    for request in (unlucky, bigger):
        scheduler.finish(request)
    scheduler.flush()
    scheduler.cache.release_host_resources()


def test_nothing_is_evicted_for_a_host_prefix_that_there_is_no_room_for():
    scheduler = TieredScheduler(context(pages=50, page_size=4), CpuEngine(), slots=400)

    def served(number, tokens):
        request = Request(number, tokens)
        scheduler.start(request)
        scheduler.extend(request, len(tokens))
        return request

    scheduler.finish(served(0, array("q", range(90))))
    drained(scheduler)
    scheduler.cache.evict(EvictParams(num_tokens=200))
    scheduler.scribble()
    scheduler.finish(served(1, array("q", range(400, 430))))
    big = served(2, array("q", range(200, 320)))
    evicted = scheduler.cache.manager.stats().device_evicted_pages
    unlucky = Request(3, array("q", range(90)))
    scheduler.start(unlucky)
    assert (unlucky.host_hit_length, unlucky.prefix_len) == (88, 0), "80 tokens are free or could be evicted"
    assert scheduler.cache.manager.stats().device_evicted_pages == evicted
    scheduler.abort(big)
    scheduler.extend(unlucky, 90)
    scheduler.abort(unlucky)
    scheduler.flush()
    scheduler.cache.release_host_resources()


def test_a_flush_with_requests_is_refused_and_nothing_is_forgotten():
    scheduler = TieredScheduler(context(pages=50, page_size=4), CpuEngine(), slots=400)
    request = Request(0, array("q", range(30)))
    scheduler.start(request)
    scheduler.extend(request, 30)
    scheduler.keep(request)
    with pytest.raises(UsageError, match="while requests hold 28 tokens"):
        scheduler.cache.reset()
    scheduler.finish(request)
    scheduler.flush()
    scheduler.cache.release_host_resources()
    scheduler.cache.release_host_resources()


@pytest.mark.parametrize("is_eagle", [False, True])
def test_a_forward_without_hooks_is_copied_at_its_end_in_stream_order(is_eagle):
    orders = []

    @contextmanager
    def in_order():
        orders.append("entered")
        yield
        orders.append("left")

    made_of = context(pages=50, page_size=4, is_eagle=is_eagle)
    scheduler = TieredScheduler(made_of, CpuEngine(), slots=400, in_stream_order=in_order)
    request = Request(0, array("q", range(30)))
    scheduler.start(request)
    for module in scheduler.modules:
        module.hook = lambda *_: None
    orders.clear()
    scheduler.extend(request, 30)
    assert orders == ["entered", "left"]
    scheduler.keep(request)
    scheduler.finish(request)
    drained(scheduler)
    assert scheduler.host.tier.counts.all_layer_forwards == {"graph replay": 1}
    assert scheduler.host.tier.cache.stats().committed_pages == 7
    scheduler.cache.evict(EvictParams(num_tokens=200))
    scheduler.scribble()
    again = Request(1, array("q", range(30)))
    scheduler.start(again)
    assert again.host_hit_length == 28
    scheduler.extend(again, 30)
    scheduler.finish(again)
    scheduler.flush()
    scheduler.cache.release_host_resources()


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_token_that_is_counted_and_not_sampled_yet_is_not_kept(page_size):
    """As it is when a prompt's last chunk and its first token are computed in mixed batches."""
    scheduler = TieredScheduler(context(pages=100, page_size=page_size), CpuEngine(), slots=400)
    request = Request(0, array("q", range(7)))
    scheduler.start(request)
    scheduler.extend(request, 7)
    request.extend_end = 8
    scheduler.cache.checkpoint(request, up_to=8)
    assert request.kv.cache_protected_len == 7 // page_size * page_size
    scheduler.finish(request)
    scheduler.flush()
    scheduler.cache.release_host_resources()


def test_sglang_asks_how_many_layers_there_are():
    scheduler = TieredScheduler(context(pages=50, page_size=4), CpuEngine(), slots=400)
    assert scheduler.host.waits.num_layers == len(scheduler.layers)
    scheduler.host.waits.wait_until(scheduler.host.waits.num_layers - 1)
    scheduler.cache.release_host_resources()


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [(64 * 40_960, "2.62 MB"), (100 * 10**9, "100.00 GB"), (5_120, "5.12 KB"), (512, "0.51 KB")],
)
def test_small_sizes_are_shown_in_small_units(size_bytes, shown):
    assert readable(size_bytes) == shown
