"""The reference engine: the same tokens, logits and bytes however they come about."""

from itertools import product

import pytest

from cpkv.engine import Engine
from cpkv.engine.ranks import run_ranks
from engine_work import NEW_TOKENS, Temperatures, config, prompts, seen_of

pytestmark = pytest.mark.timeout(180)  # processes import torch


def expected(lengths, **changes):
    """What one rank without a cache says."""
    with Engine(config(host_slots=0, is_cached=False, **changes)) as engine:
        return [seen_of(request) for request in engine.generate(prompts(1, lengths), NEW_TOKENS)]


def same(requests, wanted):
    for seen, want in zip(requests, wanted, strict=True):
        assert seen["tokens"] == want["tokens"]
        assert seen["logits"] == want["logits"]
        assert seen["acceptance"] == want["acceptance"]


BATCHES = [[1, 17, 64, 230], [230], [17, 64, 200], [1, 150]]
CHUNKS = [100, 256, 70, 300]
"""None divides the long prompts."""


DIRECT, GATHERED, BOTH = {"direct"}, {"gathered"}, {"direct", "gathered"}
WAYS = [DIRECT] * 4 + [BOTH] + [GATHERED] * 7
"""How prefills write their rows."""
CASES = [
    (*sizes, BATCHES[place % 4], CHUNKS[(place + place // 4) % 4], WAYS[place])
    for place, sizes in enumerate(product([1, 2, 4], ["zigzag", "interleave"], [16, 64]))
]
CASES += [
    (2, "zigzag", 1, [1, 37], 30, BOTH),
    # All chunks but the last have a page for each segment, and each begins in a page that the one before has begun.
    (4, "zigzag", 16, [300], 140, BOTH),
    (2, "zigzag", 64, [430], 205, BOTH),
    (4, "zigzag", 64, [480], 460, BOTH),
]


def test_every_size_has_rows_that_are_written_directly_and_rows_that_are_gathered():
    ways = {}
    for cp_size, _, page_size, _, _, these in CASES:
        ways[cp_size, page_size] = ways.get((cp_size, page_size), set()) | these
    assert {sizes: these for sizes, these in ways.items() if sizes[0] > 1 and these != BOTH} == {}


@pytest.mark.parametrize(("cp_size", "split", "page_size", "lengths", "chunk_tokens", "ways"), CASES)
def test_cold_hot_and_restored_are_the_same(cp_size, split, page_size, lengths, chunk_tokens, ways):
    wanted = expected(lengths, page_size=page_size, chunk_tokens=10_000)
    ranks = run_ranks(
        Temperatures(lengths),
        config(split=split, page_size=page_size, chunk_tokens=chunk_tokens),
        cp_size,
    )
    for said in ranks:
        for temperature in ("cold", "hot", "restored", "partly restored"):
            same(said[temperature], wanted)
        for moment in ("bytes", "restored bytes", "bytes in the end"):
            assert said[moment]["wrong"] == [], moment
        assert said["digest"] == ranks[0]["digest"]
        assert said["all_layer"] == 0
        assert set(said["writes"]) == ways
    assert sum(said["hooked"] for said in ranks) >= 1
    whole = sum((length + NEW_TOKENS - 1) // page_size for length in lengths)
    for moment, tier in product(("bytes", "bytes in the end"), ("device_pages", "host_pages")):
        assert sum(said[moment][tier] for said in ranks) == whole, moment
    assert sum(said["restored bytes"]["device_pages"] for said in ranks) == whole
    hits = [seen["device_hit"] for seen in ranks[0]["hot"]]
    assert hits == [(length - 1) // page_size * page_size for length in lengths]
    assert [seen["host_hit"] for seen in ranks[0]["restored"]] == hits
    assert [seen["host_hit"] + seen["device_hit"] for seen in ranks[0]["partly restored"]] == hits
    if whole > 4 * cp_size:
        assert sum(seen["host_hit"] for seen in ranks[0]["partly restored"]) > 0
        assert sum(seen["device_hit"] for seen in ranks[0]["partly restored"]) > 0
    assert all(seen["acceptance"] > 1 for seen in wanted)
