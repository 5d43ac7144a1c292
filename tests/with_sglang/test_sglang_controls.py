"""What the other tests rely on: faults are noticed."""

import pytest
from engines import EngineDiedError
from prompts import Prompts
from served import Request
from setups import Setup

MODELS = [
    Setup("llama", 16),
    Setup("mla", 64),
    Setup("dsa", 64),
    Setup("llama", 64, drafts=True),
    Setup("dsa_nextn", 64, drafts=True),
]


@pytest.mark.parametrize("setup", MODELS, ids=str)
def test_wrong_kv_gives_wrong_tokens(setup, cached_engine, uncached_answers):
    engine = cached_engine(setup)
    request = Request(Prompts(51).tokens(200), extra_key="zeroed")
    [right] = uncached_answers(setup, [request])
    [cold], [hot] = engine.serve(request), engine.serve(request)
    assert cold.tokens == right.tokens
    assert hot.device_hit > 0
    assert engine.state()["zeroed_rows"] > 0
    assert hot.tokens != right.tokens


@pytest.mark.parametrize(
    "setup",
    [Setup("llama", 1, drafts=True), Setup("llama", 64, drafts=True), Setup("dsa_nextn", 64, drafts=True)],
    ids=str,
)
def test_wrong_kv_of_the_draft_gives_short_steps(setup, cached_engine, uncached_answers):
    engine = cached_engine(setup)
    request = Request(Prompts(52).tokens(200), extra_key="zeroed drafts")
    [right] = uncached_answers(setup, [request])
    [cold], [hot] = engine.serve(request), engine.serve(request)
    assert cold.accept_length == right.accept_length > 2
    assert hot.tokens == right.tokens
    assert hot.accept_length < right.accept_length / 2


@pytest.mark.parametrize(
    ("fault", "checks_each_step", "told"),
    [
        ("leak", "0", "pool memory leak detected"),
        ("leak", "1", "Full Pool Mem Leak Detected"),
        ("free twice", "0", "cpkv.PageError"),
        ("free twice", "1", "Full Pool Mem Leak Detected"),
    ],
)
def test_pages_that_are_lost_or_free_twice_end_the_engine(fault, checks_each_step, told, cached_engine):
    engine = cached_engine(
        Setup("llama", 16, pool_tokens=512),
        CPKV_TEST_FAULT=fault,
        SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY=checks_each_step,
    )
    prompts = Prompts(53)
    engine.serve(Request(prompts.tokens(300)))
    engine.settle()
    with pytest.raises(EngineDiedError) as died:
        evict(engine, Request(prompts.tokens(300)))
    assert told in died.value.log


def evict(engine, request):
    """Serve what does not fit beside what is cached, and let the engine become idle."""
    engine.serve(request)
    engine.settle()


def test_rows_that_name_free_pages_end_the_engine(cached_engine):
    engine = cached_engine(Setup("llama", 16), CPKV_TEST_FAULT="keep rows")
    prompt = Prompts(54).tokens(100)
    with pytest.raises(EngineDiedError) as died:
        engine.serve(Request(prompt), Request(prompt))
    assert "KV page use-after-free" in died.value.log
