"""The replay against the naive caches, request by request."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cpkv.replay import Replay, ReplaySettings, Request, WorkloadSettings, make_workload, read_trace
from cpkv.replay.prompts import PromptMaker
from oracle import OneTier, TwoTiers


def compare(requests, oracle, replay_settings):
    replay = Replay(replay_settings)
    prompts = PromptMaker(replay_settings)
    for number, request in enumerate(requests):
        expected = oracle.serve(prompts.token_ids(request).tolist())
        assert replay.serve(request) == expected, f"request {number}"
    replay.cache.check_integrity()
    assert replay.requests == len(requests)
    return replay


def both_keys(test):
    return pytest.mark.parametrize("key", ["token", "pair"])(test)


@both_keys
@pytest.mark.parametrize(("page_size", "requests"), [(1, 60), (16, 300), (64, 600)])
def test_tokens_of_a_real_trace(trace_file, key, page_size, requests):
    loaded = list(read_trace(str(trace_file("conversation_trace.jsonl")), limit=requests))
    # Small enough that most requests evict.
    device_pages = 150_000 // page_size
    oracle = OneTier(page_size=page_size, key=key, device_pages=device_pages)
    chosen = ReplaySettings(unit="tokens", page_size=page_size, key=key, device_pages=device_pages)
    replay = compare(loaded, oracle, chosen)
    assert replay.cache.stats().device_evicted_pages > device_pages
    assert replay.device_hit_pages > 0


@both_keys
@pytest.mark.parametrize("name", ["conversation_trace.jsonl", "synthetic_trace.jsonl"])
@pytest.mark.parametrize("device_pages", [1_000, 10_000])
def test_blocks_of_a_real_trace(trace_file, key, name, device_pages):
    loaded = list(read_trace(str(trace_file(name)), limit=3_000))
    oracle = OneTier(page_size=1, key=key, device_pages=device_pages)
    compare(loaded, oracle, ReplaySettings(key=key, device_pages=device_pages))


@both_keys
@pytest.mark.parametrize(("device_pages", "host_pages"), [(60, 200), (200, 60), (100, 100)])
def test_two_tiers_of_a_made_up_workload(key, device_pages, host_pages):
    requests = list(make_workload(WorkloadSettings(requests=250, sharing=0.7, message_blocks=4, seed=3)))
    oracle = TwoTiers(page_size=1, key=key, device_pages=device_pages, host_pages=host_pages)
    chosen = ReplaySettings(key=key, device_pages=device_pages, host_pages=host_pages)
    stats = compare(requests, oracle, chosen).cache.stats()
    assert min(stats.host_hit_pages, stats.late_copied_pages, stats.mirror_dropped_pages) > 0


@both_keys
@pytest.mark.parametrize(("page_size", "requests"), [(1, 15), (16, 120), (64, 120)])
def test_tokens_of_a_made_up_workload(key, page_size, requests):
    loaded = list(make_workload(WorkloadSettings(requests=requests, sharing=0.7, message_blocks=3, seed=5)))
    device_pages = 20 * 512 // page_size
    oracle = OneTier(page_size=page_size, key=key, device_pages=device_pages)
    chosen = ReplaySettings(unit="tokens", page_size=page_size, key=key, device_pages=device_pages)
    replay = compare(loaded, oracle, chosen)
    assert replay.cache.stats().device_evicted_pages > 0
    assert replay.device_hit_pages > 0


@both_keys
@pytest.mark.parametrize("page_size", [64, 256])
def test_tokens_in_two_tiers(key, page_size):
    loaded = list(make_workload(WorkloadSettings(requests=40, sharing=0.7, message_blocks=2, seed=6)))
    shape = {"page_size": page_size, "key": key}
    pages = {"device_pages": 12 * 512 // page_size, "host_pages": 20 * 512 // page_size}
    stats = compare(loaded, TwoTiers(**shape, **pages), ReplaySettings(unit="tokens", **shape, **pages)).cache.stats()
    assert min(stats.host_hit_pages, stats.late_copied_pages, stats.mirror_dropped_pages) > 0


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=40),
    device_pages=st.integers(1, 14),
    host_pages=st.none() | st.integers(1, 14),
    key=st.sampled_from(["token", "pair"]),
)
@settings(max_examples=300, deadline=None)
def test_any_requests(prompts, device_pages, host_pages, key):
    requests = [Request(hash_ids=np.array(prompt, dtype=np.int64), input_length=0) for prompt in prompts]
    shape = {"page_size": 1, "key": key, "device_pages": device_pages}
    oracle = OneTier(**shape) if host_pages is None else TwoTiers(**shape, host_pages=host_pages)
    compare(requests, oracle, ReplaySettings(key=key, device_pages=device_pages, host_pages=host_pages))


@given(
    prompts=st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=30),
    pages_per_lane=st.integers(1, 5),
    host_per_lane=st.none() | st.integers(1, 8),
    lanes=st.integers(2, 4),
)
@settings(max_examples=200, deadline=None)
def test_any_requests_on_lanes(prompts, pages_per_lane, host_per_lane, lanes):
    """Lanes may be short before the pool is; whatever fits is served, and nothing breaks."""
    host_pages = None if host_per_lane is None else host_per_lane * lanes
    chosen = ReplaySettings(device_pages=pages_per_lane * lanes, host_pages=host_pages, lanes=lanes)
    replay, known, uncached = Replay(chosen), set(), 0
    for prompt in prompts:
        found = replay.serve(Request(hash_ids=np.array(prompt, dtype=np.int64), input_length=0))
        # Nothing is found that no request has brought: the hit is a prefix of an earlier prompt.
        assert tuple(prompt[: sum(found)]) in known | {()}
        known.update(tuple(prompt[:length]) for length in range(len(prompt) + 1))
        again = replay.cache.match(prompt)
        assert again.device_pages >= len(prompt) - (replay.uncached_pages - uncached)
        uncached = replay.uncached_pages
        replay.cache.check_integrity()
    stats = replay.cache.stats()
    assert stats.device_free_pages + stats.device_evictable_pages == chosen.device_pages
