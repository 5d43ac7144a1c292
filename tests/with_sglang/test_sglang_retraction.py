"""Requests that give way in the middle of their answers, and are computed again."""

import pytest
from engines import start_spawned
from prompts import Prompts
from served import Request
from setups import HOST_TIER, Setup


@pytest.mark.parametrize(
    "setup",
    [
        Setup("llama", 1, pool_tokens=512),
        Setup("mla", 64, pool_tokens=512),
        Setup("llama", 1, drafts=True, pool_tokens=512),
        Setup("llama", 64, drafts=True, pool_tokens=512),
        Setup("llama", 16, pool_tokens=512, ranks=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, HOST_TIER], ids=["device", "host"])
def test_answers_that_outgrow_the_pool(setup, options, cached_engine, same_answers):
    # SGLang is told to expect short answers, and to let requests in one by one: four are too many in the end.
    engine = cached_engine(setup, schedule_conservativeness=0.1, **options)
    prompts = Prompts(31)
    requests = [
        Request(prompts.tokens(60), new_tokens=110, starts_at=(0, 5 * place) if place else None) for place in range(4)
    ]
    retractions = 0
    for _ in range(2):
        answers = engine.serve(*requests)
        same_answers(setup, requests, answers)
        retractions += sum(answer.retractions for answer in answers)
    assert retractions
    state = engine.settle()
    assert state["device_evicted_pages"] > 0
    assert state["device_evictable_pages"] == state["device_cached_pages"]


def test_every_third_step_in_an_engine_that_spawns(models, uncached_answers, tmp_path, sockets):
    """As users start it: no process is forked, and each finds cpkv, and cpkv the draft, through its entry point."""
    setup = Setup("llama", 16, drafts=True)
    log = tmp_path / "engine.log"
    engine = start_spawned(setup.cached(models) | HOST_TIER, log, TMPDIR=sockets, SGLANG_TEST_RETRACT="1")
    try:
        prompts = Prompts(32)
        system = prompts.tokens(100)
        requests = [Request(system + prompts.tokens(60), new_tokens=20) for _ in range(4)]
        for _ in range(2):
            answers = engine.serve(*requests)
            assert [answer.tokens for answer in answers] == [one.tokens for one in uncached_answers(setup, requests)]
            # Steps begin elsewhere after a retraction, and are as long.
            assert all(answer.accept_length > 2 for answer in answers)
            assert any(answer.retractions for answer in answers)
        assert all(answer.device_hit >= len(system) // setup.page_size * setup.page_size for answer in answers)
        engine.settle()
    finally:
        engine.close()
