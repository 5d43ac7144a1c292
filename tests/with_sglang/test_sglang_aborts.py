"""Requests that are aborted leave the others alone, hold nothing, and what they have computed is right."""

import pytest
from prompts import Prompts
from served import Request
from setups import Setup

SETUPS = [Setup("llama", 1), Setup("mla", 64), Setup("llama", 16, drafts=True), Setup("mla", 16, ranks=2)]

pytestmark = pytest.mark.parametrize("setup", SETUPS, ids=str)


def assert_nobody_holds_anything(engine, setup):
    state = engine.settle()
    assert state["device_evictable_pages"] == state["device_cached_pages"]
    assert state["available_tokens"] + state["device_cached_pages"] * setup.page_size == setup.pool_tokens


def test_while_it_decodes(setup, cached_engine, uncached_answers, same_answers):
    engine = cached_engine(setup)
    prompts = Prompts(21)
    aborted = Request(prompts.tokens(150), new_tokens=60, aborted_at=(0, 10))
    other = Request(prompts.tokens(150), new_tokens=60)
    answers = engine.serve(aborted, other)
    same_answers(setup, [other], answers[1:])
    [whole] = uncached_answers(setup, [aborted])
    assert answers[0].finish == "abort"
    assert 10 <= len(answers[0].tokens) < len(whole.tokens)
    assert answers[0].tokens == whole.tokens[: len(answers[0].tokens)]
    assert_nobody_holds_anything(engine, setup)

    [again] = engine.serve(Request(aborted.prompt))
    same_answers(setup, [Request(aborted.prompt)], [again])
    assert again.device_hit > 0


def test_in_the_middle_of_a_long_prompt(setup, cached_engine, same_answers):
    engine = cached_engine(setup)
    long = Prompts(22).tokens(700)
    [aborted] = engine.serve(Request(long, aborted_at_pages=-(-300 // setup.page_size)))
    assert (aborted.finish, aborted.tokens) == ("abort", ())
    assert_nobody_holds_anything(engine, setup)
    assert 0 < engine.state()["device_cached_pages"] * setup.page_size < len(long)

    [again] = engine.serve(Request(long))
    same_answers(setup, [Request(long)], [again])
    assert again.device_hit > 0


def test_before_it_is_computed(setup, cached_engine, same_answers):
    engine = cached_engine(setup, max_running_requests=2)
    prompts = Prompts(23)
    running = [Request(prompts.tokens(100), new_tokens=40) for _ in range(2)]
    waiting = Request(prompts.tokens(100), aborted_at=(0, 5))
    *answers, aborted = engine.serve(*running, waiting)
    same_answers(setup, running, answers)
    assert (aborted.finish, aborted.tokens) == ("abort", ())
    assert_nobody_holds_anything(engine, setup)
    assert engine.serve(Request(waiting.prompt))[0].device_hit == 0


def test_many_at_once_with_a_full_pool(setup, cached_engine, same_answers):
    engine = cached_engine(setup)
    prompts = Prompts(24)
    system = prompts.tokens(130)
    requests = [
        Request(system + prompts.tokens(150), new_tokens=24, aborted_at=(place, place) if place % 3 == 1 else None)
        for place in range(12)
    ]
    kept = [place for place, request in enumerate(requests) if request.aborted_at is None]
    for _ in range(2):
        answers = engine.serve(*requests)
        same_answers(setup, [requests[place] for place in kept], [answers[place] for place in kept])
        assert any(answer.finish == "abort" for answer in answers)
    assert engine.state()["device_evicted_pages"] > 0
    assert_nobody_holds_anything(engine, setup)
