"""The engine's scheduler under random loads, as rank 0 of several, with a model that says anything.

What is looked at is what every request gets: pages in the right lanes, its turn, its end; and that nothing is
left behind. What a model says has no influence on that, so it takes no time here.
"""

import random

import pytest
import torch

from cpkv.engine import Engine, EngineConfig, ModelConfig, Stage

MOST_STEPS = 20_000
SEEDS = 120
TINY = ModelConfig(vocab=8, layers=1, hidden=4, heads=1, latent=4, rope=2, index_heads=1, index_dim=4)


class Guessing:
    """A model whose tokens are drawn from two, so that drafts are right every other time."""

    def __init__(self, model, seed):
        self.draft_log = model.draft_log
        self.draw = torch.Generator().manual_seed(seed)

    def target(self, rows):
        assert all(len(pages) for pages in rows.pages)
        size = max(len(pages) for pages in rows.pages)
        assert size
        return torch.rand((len(rows.positions), 2), generator=self.draw)

    def draft(self, rows, hidden):
        assert len(rows.positions) == len(hidden)
        return torch.rand(hidden.shape, generator=self.draw)

    def logits(self, hidden):
        return hidden


def drawn(seed):
    draw = random.Random(seed)
    ranks, page = draw.choice([1, 2, 3, 4, 8]), draw.choice([1, 2, 4, 16])
    pages = draw.choice([6, 8, 12, 16]) * (4 if ranks * page < 4 else 1)
    config = EngineConfig(
        model=TINY,
        page_size=page,
        device_pages=pages,
        host_slots=0,
        chunk_tokens=draw.choice([1, 3, 7, 16, 50, 300]),
        split=draw.choice(["zigzag", "interleave"]),
        draft_tokens=draw.choice([1, 3, 4]),
        max_requests=draw.choice([1, 2, 4]),
    )
    most = pages * ranks * page // 2 - config.draft_tokens
    base = [draw.randrange(8) for _ in range(most)]
    requests = []
    for _ in range(draw.randint(2, 8)):
        length = draw.randint(1, most - 1)
        shared = draw.randint(0, length)
        prompt = base[:shared] + [draw.randrange(8) for _ in range(length - shared)]
        requests.append((prompt, draw.randint(1, most - length)))
    return draw, ranks, config, requests


@pytest.mark.timeout(240)
def test_everyone_gets_a_turn_and_nothing_is_left():
    retracted = 0
    for seed in range(SEEDS):
        draw, ranks, config, asked = drawn(seed)
        with Engine(config, cp_size=ranks) as engine:
            engine.model = Guessing(engine.model, seed)
            engine.exchange.all_gather = lambda _, own, ranks=ranks: own.expand(ranks, *own.shape)
            requests = [engine.submit(prompt, new) for prompt, new in asked]
            victims = draw.sample(requests, draw.choice([0, 0, 1]))
            steps = 0
            while engine.step():
                steps += 1
                assert steps < MOST_STEPS, f"seed {seed}: {[(one.stage.value, one.retracted) for one in requests]}"
                for one in requests:
                    held = len(one.pages) * config.page_size
                    assert held >= one.computed
                    assert len(one.pages) <= -(-(len(one.tokens) + config.draft_tokens) // config.page_size)
                    assert len(set(one.pages)) == len(one.pages)
                if steps == 5:
                    for victim in victims:
                        engine.abort(victim)
            for one, (prompt, new) in zip(requests, asked, strict=True):
                assert one.stage in {Stage.FINISHED, Stage.ABORTED}, f"seed {seed}"
                assert one.stage is Stage.ABORTED or len(one.tokens) == len(prompt) + new
                assert (one.pages, one.lease, one.transaction) == ([], None, None)
            retracted += sum(one.retracted for one in requests)
            engine.cache.check_integrity()
            engine.cache.flush()
            stats = engine.cache.stats()
            assert stats.device_free_pages == stats.device_capacity_pages, f"seed {seed}"
    assert retracted > 0, "none of the loads was too much"


def test_no_more_room_is_taken_for_drafts_than_they_need():
    """16 requests of 54 tokens in pages of 64: with the draft's 6 each stays in its page, and the hot prefix stays."""
    hot, running = 15, 16
    config = EngineConfig(
        model=TINY,
        page_size=64,
        device_pages=hot + running + 1,
        host_slots=0,
        chunk_tokens=2_000,
        draft_tokens=6,
        max_requests=running,
    )
    draw = random.Random(0)
    (prefix, *others) = [[draw.randrange(8) for _ in range(length)] for length in [64 * hot] + [54] * running]
    with Engine(config) as engine:
        engine.model = Guessing(engine.model, 0)
        (first,) = engine.generate([prefix], 1)
        assert engine.cache.match(first.tokens).device_pages == hot
        engine.generate(others, 4)
        assert engine.cache.stats().device_evicted_pages == 0
        assert engine.cache.match(first.tokens).device_pages == hot
