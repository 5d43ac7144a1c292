"""What is for SGLang before 0.5.22, called as its schedulers do, under random requests.

`tools/sglang_versions.py` runs their engines.
"""

import pytest
from older_scheduling import CacheReqCalls, InsertReqCalls, OlderMatch, OldestCalls, older_context
from scheduling import Scheduler, TieredScheduler
from sglang.srt.runtime_context import get_context
from test_sglang_host_tier import late
from test_sglang_requests import Work, own, work

from cpkv.sglang import adapters
from cpkv.sglang.cache import CHECK_INTEGRITY
from cpkv.sglang.opening import new_manager

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.parametrize("calls", [InsertReqCalls, CacheReqCalls, OldestCalls]),
    pytest.mark.parametrize(("page_size", "is_eagle"), [(1, False), (4, True), (16, False)]),
]


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setenv(CHECK_INTEGRITY, "1")
    with get_context().override_server_args():
        yield


def test_hits_are_those_of_the_adapter_for_later_versions(calls, page_size, is_eagle, monkeypatch):
    settings = {"page_size": page_size, "is_eagle": is_eagle, "pages": -(-1_200 // page_size)}
    found = work(own, seed=1, steps=600, **settings)
    assert sum(found) > 1_000
    monkeypatch.setattr(adapters, "MatchResult", OlderMatch)
    made_of = older_context(**settings)
    cache = calls.adapter(made_of.params, new_manager(made_of.params))
    scheduler = type("Older", (calls, Scheduler), {})(cache, made_of.params)
    assert Work(scheduler, 1).finish(steps=600) == found


def test_every_layer_reads_what_was_computed_for_its_tokens(calls, page_size, is_eagle, monkeypatch):
    monkeypatch.setattr(adapters, "MatchResult", OlderMatch)
    made_of = older_context(pages=-(-850 // page_size), page_size=page_size, is_eagle=is_eagle)
    scheduler = type("Older", (calls, TieredScheduler), {})(made_of, late(1), slots=-(-8_000 // page_size))
    Work(scheduler, 5).finish(steps=900)
    assert scheduler.restored > 0
    stats = scheduler.host.tier.cache.stats()
    assert stats.committed_pages > 0
    assert stats.host_reserved_slots == stats.host_draining_slots == stats.open_operations == 0
    scheduler.cache.release_host_resources()
