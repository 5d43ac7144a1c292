"""How much the cache gives back when SGLang asks for room."""

from array import array

import pytest
from scheduling import Request, Scheduler, context
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.runtime_context import get_context

from cpkv.sglang.cache import LEAST_EVICTED_SHARE, LEAST_EVICTED_TOKENS
from cpkv.sglang.plugin import make_cache


@pytest.fixture(autouse=True)
def _published():
    with get_context().override_server_args():
        yield


def cached(tokens, **settings):
    """A scheduler whose cache holds so many tokens, and nothing else."""
    made_of = context(length=tokens + 1, **settings)
    scheduler = Scheduler(make_cache(made_of), made_of.params)
    request = Request(0, array("q", range(tokens)))
    scheduler.start(request)
    scheduler.extend(request, tokens)
    scheduler.finish(request)
    assert scheduler.cache.evictable_size() == tokens
    return scheduler


def evicted(scheduler, tokens):
    """What is given back if so much is asked for, as told and as found."""
    before = scheduler.allocator.available_size(), scheduler.cache.evictable_size()
    told = scheduler.cache.evict(EvictParams(num_tokens=tokens)).num_tokens_evicted
    after = scheduler.allocator.available_size(), scheduler.cache.evictable_size()
    scheduler.check_sizes()
    assert (after[0] - before[0], before[1] - after[1]) == (told, told)
    return told


@pytest.mark.parametrize("page_size", [1, 16, 64])
def test_a_step_that_asks_for_a_page_makes_room_for_those_that_follow(page_size):
    least = LEAST_EVICTED_TOKENS
    scheduler = cached(4 * least, page_size=page_size, pages=LEAST_EVICTED_SHARE * least // page_size)
    assert evicted(scheduler, 0) == 0
    assert evicted(scheduler, 1) == least
    assert evicted(scheduler, 2 * least) == 2 * least
    assert evicted(scheduler, least + 1 - page_size) == least
    assert evicted(scheduler, 1) == 0


def test_a_small_pool_is_not_emptied_for_a_page():
    scheduler = cached(64, page_size=1, pages=2 * LEAST_EVICTED_SHARE)
    assert [evicted(scheduler, asked) for asked in (1, 2, 3)] == [2, 2, 3]
