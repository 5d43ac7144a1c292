"""SGLang with cpkv says what SGLang without a cache says, and computes no more than it has to."""

import pytest
from prefixes import COMPUTES_LAST_TOKEN, Prefixes
from prompts import Prompts
from served import Request
from setups import Setup

SETUPS = [
    Setup("llama", 1),
    Setup("llama", 16, schedule="lpm"),
    Setup("llama", 64),
    Setup("mla", 1),
    Setup("mla", 64, schedule="lpm"),
    Setup("dsa", 64),
    Setup("llama", 1, drafts=True),
    Setup("llama", 64, drafts=True),
    Setup("dsa_nextn", 64, drafts=True),
    Setup("llama", 16, ranks=2),
    Setup("mla", 64, ranks=2),
    Setup("llama", 64, drafts=True, ranks=2),
]


@pytest.fixture(scope="module", params=SETUPS, ids=str)
def setup(request):
    return request.param


@pytest.fixture(scope="module")
def engine(setup, models, template):
    engine = template.start(setup.cached(models))
    yield engine
    engine.close()


@pytest.fixture(autouse=True)
def leaves_nothing_behind(setup, engine):
    """After each test every page is free or in the cache, and nobody holds one."""
    assert engine.flush()
    yield
    state = engine.settle()
    cached = state["device_cached_pages"]
    assert state["device_evictable_pages"] == cached
    assert state["available_tokens"] + cached * setup.page_size == setup.pool_tokens
    assert state["integrity_checks"] > 0


def test_conversations_find_what_they_have_said(setup, engine, same_answers):
    prompts, prefixes = Prompts(1), Prefixes(setup.page_size, drafts=setup.drafts)
    system = prompts.tokens(130)
    said = dict.fromkeys(range(3), system)
    for _ in range(3):
        for speaker in said:
            request = Request(said[speaker] + prompts.tokens(40))
            [answer] = engine.serve(request)
            same_answers(setup, [request], [answer])
            assert answer.device_hit in prefixes.hits(request)
            assert (answer.hit, answer.host_hit) == (answer.device_hit, 0)
            prefixes.add(request, answer.tokens)
            said[speaker] = request.prompt + answer.tokens


def test_more_than_the_pool_holds_at_once(setup, engine, same_answers):
    prompts = Prompts(2)
    system = prompts.tokens(130)
    requests = [Request(system + prompts.tokens(length), new_tokens=24) for length in range(70, 230, 20)]
    before = engine.state()["device_evicted_pages"]
    for _ in range(2):
        answers = engine.serve(*requests)
        same_answers(setup, requests, answers)
    assert any(answer.device_hit for answer in answers)
    assert engine.state()["device_evicted_pages"] > before


def test_a_long_prompt_is_kept_chunk_by_chunk(setup, engine, same_answers):
    prompts, prefixes = Prompts(3), Prefixes(setup.page_size, drafts=setup.drafts)
    long = prompts.tokens(600)
    for request in Request(long), Request(long), Request(long[:400] + prompts.tokens(100)):
        [answer] = engine.serve(request)
        same_answers(setup, [request], [answer])
        assert answer.device_hit in prefixes.hits(request)
        prefixes.add(request, answer.tokens)


def test_a_request_finds_what_a_running_one_has_computed(setup, engine, same_answers):
    prompts, prefixes = Prompts(4), Prefixes(setup.page_size, drafts=setup.drafts)
    shared = prompts.tokens(300)
    first = Request(shared + prompts.tokens(20), new_tokens=64)
    second = Request(shared + prompts.tokens(50), starts_at=(0, 4))
    answers = engine.serve(first, second)
    same_answers(setup, [first, second], answers)
    prefixes.add(first, (0,))
    assert answers[0].device_hit == 0
    assert answers[1].device_hit in prefixes.hits(second)


def test_the_same_prompt_twice_at_once_is_kept_once(setup, engine, same_answers):
    prompt = Prompts(5).tokens(100)
    answers = engine.serve(Request(prompt), Request(prompt))
    same_answers(setup, [Request(prompt)] * 2, answers)
    state = engine.settle()
    computed = range(len(prompt) + 15, len(prompt) + 16 + COMPUTES_LAST_TOKEN)
    assert state["device_cached_pages"] in {(tokens - setup.drafts) // setup.page_size for tokens in computed}


def test_a_flush_forgets_everything(setup, engine, same_answers):
    request = Request(Prompts(6).tokens(200))
    engine.serve(request)
    assert engine.flush()
    state = engine.settle()
    assert (state["device_cached_pages"], state["available_tokens"]) == (0, setup.pool_tokens)
    [answer] = engine.serve(request)
    assert answer.device_hit == 0
    same_answers(setup, [request], [answer])


def test_a_flush_is_refused_while_a_request_runs(setup, engine, same_answers):
    request = Request(Prompts(7).tokens(200))
    answers, flushed = engine.serve_and_flush(request, at=(0, 3))
    assert not flushed
    assert engine.settle()["device_cached_pages"] > 0
    same_answers(setup, [request], answers)
