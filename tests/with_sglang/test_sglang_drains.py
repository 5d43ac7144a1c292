"""Waiting for copies: until nothing is open that could end, and no copy begins while device memory is gone."""

from array import array
from types import SimpleNamespace

import pytest
from scheduling import Request, TieredScheduler, context
from sglang.srt.runtime_context import get_context

from cpkv.device.cpu import CpuEngine
from cpkv.errors import CopyError, UsageError
from cpkv.sglang.cache import CHECK_INTEGRITY
from cpkv.sglang.drains import _release_memory_occupation, _resume_memory_occupation

LATE_S = 0.02


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setenv(CHECK_INTEGRITY, "1")
    with get_context().override_server_args():
        yield


@pytest.fixture
def tiered():
    """Make schedulers that are flushed and closed at the end: nothing of their requests is left."""
    made = []

    def make(engine=None, **options):
        engine = engine or CpuEngine(delay_s=LATE_S)
        made.append(TieredScheduler(context(pages=100, page_size=4), engine, slots=400, **options))
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.flush()
        scheduler.cache.release_host_resources()


def served(scheduler, number, tokens):
    request = Request(number, tokens)
    scheduler.start(request)
    scheduler.extend(request, len(tokens))
    scheduler.finish(request)


@pytest.mark.parametrize("write", ["through", "selective", "back"])
def test_nothing_is_open_afterwards(write, tiered):
    """Late copies that a tick of it begins are waited for as well."""
    scheduler = tiered(write=write)
    for number in range(2):
        served(scheduler, number, array("q", range(90)))
    if write == "back":
        scheduler.tick()  # else nothing is under way
    scheduler.cache.drain()
    stats = scheduler.host.tier.cache.stats()
    assert (stats.open_operations, stats.host_reserved_slots) == (0, 0)
    assert stats.host_cached_slots > 0
    scheduler.cache.drain()


def test_what_a_running_request_has_reserved_is_not_waited_for(tiered):
    scheduler = tiered()
    request = Request(0, array("q", range(90)))
    scheduler.start(request)
    scheduler.extend(request, 90)
    scheduler.cache.drain()
    stats = scheduler.host.tier.cache.stats()
    assert (stats.open_operations, stats.host_cached_slots) == (1, 0)
    scheduler.keep(request)
    scheduler.tick()
    assert scheduler.host.tier.cache.stats().host_cached_slots == 22
    scheduler.finish(request)


def test_pages_that_copies_have_read_are_given_back(tiered):
    scheduler = tiered()
    request = Request(0, array("q", range(90)))
    scheduler.start(request)
    scheduler.extend(request, 90)
    scheduler.abort(request)
    assert scheduler.host.tier.cache.stats().device_fenced_pages == 22
    scheduler.cache.drain()
    scheduler.check_sizes()
    assert scheduler.allocator.available_size() == scheduler.total


def test_copies_that_may_never_end_are_not_waited_for(tiered):
    class Broken(CpuEngine):
        def synchronize(self):
            raise CopyError("the stream has failed")

    scheduler = tiered(Broken(delay_s=LATE_S))
    served(scheduler, 0, array("q", range(90)))
    scheduler.cache.drain()
    assert len(scheduler.cache.ongoing_write_through) > 0, "SGLang refuses what needs them to be over"


def updater_of(scheduler):
    return SimpleNamespace(scheduler=SimpleNamespace(tree_cache=scheduler.cache))


@pytest.mark.parametrize("tags", [None, [], ["kv_cache"], ["weights", "kv_cache"]])
def test_no_copy_begins_while_the_pages_are_gone(tags, tiered):
    scheduler = tiered()
    served(scheduler, 0, array("q", range(90)))
    asked, updater, tier = SimpleNamespace(tags=tags), updater_of(scheduler), scheduler.host.tier

    def release(of, request):
        assert (of, request) == (updater, asked)
        assert not scheduler.cache.ongoing_write_through
        return "released"

    assert _release_memory_occupation(release, updater, asked) == "released"
    with pytest.raises(UsageError, match="the host tier is paused or closed"):
        tier.begin_forward([])
    scheduler.tick()
    assert _resume_memory_occupation(lambda *_: "resumed", updater, asked) == "resumed"
    served(scheduler, 1, array("q", range(100, 190)))


def test_memory_that_is_not_given_up_after_all(tiered):
    scheduler = tiered()

    def refuse(*_):
        raise AssertionError("only when the server is idle")

    with pytest.raises(AssertionError, match="idle"):
        _release_memory_occupation(refuse, updater_of(scheduler), SimpleNamespace(tags=None))
    served(scheduler, 0, array("q", range(90)))


def test_other_memory_is_none_of_the_tiers(tiered):
    scheduler = tiered()
    asked, updater = SimpleNamespace(tags=["weights"]), updater_of(scheduler)
    _release_memory_occupation(lambda *_: None, updater, asked)
    served(scheduler, 0, array("q", range(90)))
    _resume_memory_occupation(lambda *_: None, updater, asked)
    served(scheduler, 1, array("q", range(100, 190)))
