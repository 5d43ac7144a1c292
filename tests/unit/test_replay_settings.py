"""Settings of the replay and of the made-up workload."""

import numpy as np
import pytest

from cpkv import ConfigError
from cpkv.replay import ReplaySettings, Request, WorkloadSettings, make_workload
from cpkv.replay.prompts import PromptMaker


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device_pages": 0}, "device_pages is 0, want 1 to"),
        ({"device_pages": -1}, "device_pages is -1"),
        ({"host_pages": 0}, "host_pages is 0, want 1 to"),
        ({"unit": "tokens", "page_size": 0}, "page_size is 0, want at least 1"),
        ({"unit": "tokens", "page_size": -64}, "page_size is -64"),
        ({"unit": "tokens", "page_size": 100}, "page_size is 100, want a divisor of the block of 512 tokens"),
        ({"unit": "tokens", "page_size": 1024}, "page_size is 1024, want a divisor"),
        ({"unit": "blocks", "page_size": 64}, "page_size is 64, want 512 with blocks"),
        ({"unit": "bytes"}, "unit is 'bytes', want one of blocks, tokens"),
        ({"key": "x"}, "key is 'x', want one of token, pair"),
        ({"policy": "x"}, "policy is 'x', want one of lru"),
        ({"lanes": 0}, "lanes is 0, want 1 to 1024"),
        ({"lanes": 1025}, "lanes is 1025, want 1 to 1024"),
        ({"lanes": 3, "device_pages": 10}, "device_pages is 10, want a multiple of lanes, which is 3"),
        ({"lanes": 3, "host_pages": 10}, "host_pages is 10, want a multiple of lanes, which is 3"),
        ({"limit": 0}, "limit is 0, want at least 1"),
        ({"segment_pages": 0}, "segment_pages is 0, want 1 to"),
        ({"host_pages": 10, "segment_pages": 32}, "segment_pages is 32, want at most the 10 host pages of a lane"),
        ({"device_pages": 0, "host_pages": 0}, "device_pages is 0.*; host_pages is 0"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        ReplaySettings(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"requests": 0}, "requests is 0"),
        ({"sharing": 1.1}, "sharing is 1.1, want 0 to 1"),
        ({"sharing": float("nan")}, "sharing is nan"),
        ({"message_blocks": 0.5}, "message_blocks is 0.5"),
        ({"seed": -1}, "seed is -1"),
        ({"requests": -1, "seed": -1}, "requests is -1.*; seed is -1"),
    ],
)
def test_workloads_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        WorkloadSettings(**settings)


def blocks_of(**settings):
    return [request.hash_ids.tolist() for request in make_workload(WorkloadSettings(requests=400, **settings))]


def test_a_workload_is_its_seed():
    assert blocks_of(seed=1) == blocks_of(seed=1)
    assert blocks_of(seed=1) != blocks_of(seed=2)


def test_sharing_and_size_do_what_they_say():
    def seen_before(**settings):
        known, found, asked = set(), 0, 0
        for blocks in blocks_of(**settings):
            found += sum(block in known for block in blocks)
            asked += len(blocks)
            known.update(blocks)
        return found / asked, asked / 400

    ratios = [seen_before(sharing=sharing)[0] for sharing in (0.0, 0.3, 0.6, 0.9)]
    assert ratios == sorted(ratios)
    assert ratios[-1] > ratios[0] + 0.3
    assert seen_before(message_blocks=20)[1] > 1.5 * seen_before(message_blocks=5)[1]


def test_equal_blocks_make_equal_tokens_and_others_different_ones():
    maker = PromptMaker(ReplaySettings(unit="tokens"))

    def tokens(*ids):
        return maker.token_ids(Request(hash_ids=np.array(ids), input_length=0))

    first = tokens(5, 9, 2**62)
    assert first.dtype == np.int64
    assert len(set(first.tolist())) == 3 * 512
    again = tokens(2**62, 5, 7)
    assert again[:512].tolist() == first[1024:].tolist()
    assert again[512:1024].tolist() == first[:512].tolist()
    assert not set(again[1024:].tolist()) & set(first.tolist())
