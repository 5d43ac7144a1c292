"""The hit ratios of the public traces, which any correct LRU over leaves reproduces exactly."""

import pytest

from cpkv.replay import UNLIMITED, Replay, ReplaySettings, read_trace

CONVERSATION = {
    1_000: 0.0445,
    3_000: 0.0653,
    9_000: 0.1947,
    10_000: 0.2116,
    27_000: 0.3179,
    30_000: 0.3257,
    40_000: 0.3514,
    50_000: 0.3546,
    UNLIMITED: 0.3664,
}
SYNTHETIC = {
    1_000: 0.0841,
    3_000: 0.1906,
    10_000: 0.4239,
    30_000: 0.6242,
    50_000: 0.6396,
    UNLIMITED: 0.6396,
}
TOLERANCE = 0.00005
"""Half of the last digit; what is allowed is ten times as much."""


@pytest.fixture(scope="module")
def requests_of(trace_file):
    loaded = {}

    def load(name):
        if name not in loaded:
            loaded[name] = list(read_trace(str(trace_file(name))))
        return loaded[name]

    return load


@pytest.mark.parametrize(
    ("name", "device_pages", "expected"),
    [
        *(("conversation_trace.jsonl", *row) for row in CONVERSATION.items()),
        *(("synthetic_trace.jsonl", *row) for row in SYNTHETIC.items()),
    ],
)
def test_one_tier(requests_of, name, device_pages, expected):
    result = Replay(ReplaySettings(device_pages=device_pages)).run(requests_of(name))
    assert result.hit_ratio == pytest.approx(expected, abs=TOLERANCE)
    assert result.host_hit_ratio == 0


@pytest.mark.parametrize(("device_pages", "host_pages"), [(1_000, 9_000), (3_000, 27_000), (10_000, 40_000)])
def test_two_tiers_lie_between_the_host_alone_and_the_sum(requests_of, device_pages, host_pages):
    settings = ReplaySettings(device_pages=device_pages, host_pages=host_pages)
    result = Replay(settings).run(requests_of("conversation_trace.jsonl"))
    assert result.device_hit_ratio == pytest.approx(CONVERSATION[device_pages], abs=TOLERANCE)
    host_alone, both = CONVERSATION[host_pages], CONVERSATION[device_pages + host_pages]
    assert host_alone <= result.hit_ratio <= both + TOLERANCE


def test_first_in_first_out_misses_by_more(requests_of):
    settings = ReplaySettings(device_pages=10_000, policy="fifo")
    result = Replay(settings).run(requests_of("conversation_trace.jsonl"))
    assert abs(result.hit_ratio - CONVERSATION[10_000]) > 0.0005


@pytest.mark.parametrize("lanes", [2, 8])
def test_lanes_change_little(requests_of, lanes):
    """Eviction goes on until every lane has room, so it may take a page or two more."""
    settings = ReplaySettings(device_pages=10_000, host_pages=40_000, lanes=lanes)
    result = Replay(settings).run(requests_of("conversation_trace.jsonl"))
    assert result.device_hit_ratio == pytest.approx(CONVERSATION[10_000], abs=0.0005)
    assert result.hit_ratio == pytest.approx(CONVERSATION[50_000], abs=0.0005)


def test_tokens_find_what_blocks_find(requests_of):
    requests = requests_of("conversation_trace.jsonl")[:2_000]
    blocks = Replay(ReplaySettings(device_pages=10_000)).run(requests)
    tokens = Replay(ReplaySettings(unit="tokens", page_size=64, device_pages=80_000)).run(requests)
    assert tokens.tokens == blocks.tokens
    assert tokens.hit_ratio == pytest.approx(blocks.hit_ratio, abs=0.0005)
