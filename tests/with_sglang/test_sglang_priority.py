"""Requests of different priority: who runs, and whose pages are kept."""

import pytest
from prompts import Prompts
from served import Request
from setups import Setup

SETUP = Setup("llama", 16, pool_tokens=512)


def test_a_request_gives_way_to_an_important_one(cached_engine, same_answers):
    engine = cached_engine(
        SETUP, enable_priority_scheduling=True, max_running_requests=2, priority_scheduling_preemption_threshold=2
    )
    prompts = Prompts(41)
    requests = [Request(prompts.tokens(100), new_tokens=40, priority=1) for _ in range(2)]
    requests.append(Request(prompts.tokens(100), new_tokens=20, priority=10, starts_at=(0, 10)))
    answers = engine.serve(*requests)
    same_answers(SETUP, requests, answers)
    assert sorted(answer.retractions for answer in answers) == [0, 0, 1]
    assert answers[2].retractions == 0
    engine.settle()


@pytest.mark.parametrize(("policy", "important_is_kept"), [("lru", False), ("priority", True)])
def test_pages_of_unimportant_requests_go_first(policy, important_is_kept, cached_engine):
    # Of 32 pages two prompts have 10 each, and the third one takes so many that one of the two has to go.
    engine = cached_engine(SETUP, radix_eviction_policy=policy, enable_priority_scheduling=True)
    prompts = Prompts(42)
    important, unimportant, third = (
        Request(prompts.tokens(tokens), new_tokens=1, priority=priority)
        for tokens, priority in ((160, 5), (160, 1), (336, 3))
    )
    for request in important, unimportant, third:
        assert engine.serve(request)[0].device_hit == 0
    kept, gone = (important, unimportant) if important_is_kept else (unimportant, important)
    assert engine.serve(kept)[0].device_hit == 144
    assert engine.serve(gone)[0].device_hit == 0


@pytest.mark.parametrize("least_first", [False, True])
def test_requests_need_not_name_one(least_first, cached_engine, same_answers):
    # SGLang gives them the least priority there is, or the most.
    setup = Setup("llama", 16)
    engine = cached_engine(setup, enable_priority_scheduling=True, schedule_low_priority_values_first=least_first)
    prompts = Prompts(43)
    requests = [Request(prompts.tokens(100), priority=priority) for priority in (None, 3, 2**40, -(2**40), None)]
    same_answers(setup, requests, engine.serve(*requests))
    assert engine.serve(requests[0])[0].device_hit == 96
