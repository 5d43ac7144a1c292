"""Two ranks of SGLang's engine with a host tier: what only one of them knows of its copies, both do the same about."""

import json
import re
import time
from pathlib import Path

import pytest
from alike import state_of_all
from engines import EngineDiedError
from prompts import Prompts
from served import Request
from setups import Setup

from cpkv.sglang.ranks import SHARED_MEMORY

SETUP = Setup("llama", 16, pool_tokens=640, ranks=2)
SECONDS_TO_END = 60
"""For an engine of which one rank does not start, or dies."""


@pytest.fixture
def tiered(cached_engine):
    def start(fault=None, **changes):
        variables = {} if fault is None else {"CPKV_TEST_FAULT": fault}
        return cached_engine(
            SETUP,
            enable_hierarchical_cache=True,
            hicache_io_backend="direct",
            hicache_ratio=8.0,
            **variables,
            **changes,
        )

    return start


def serve_conversations(engine, same_answers, after_turn=lambda: None, *, seed, turns=4):
    """Conversations that the device does not hold. What finished is right.

    Returns:
        The answers.
    """
    prompts = Prompts(seed)
    said = dict.fromkeys(range(4), prompts.tokens(60))
    told = []
    for _ in range(turns):
        requests = [Request(history + prompts.tokens(30)) for history in said.values()]
        answers = engine.serve(*requests)
        after_turn()
        whole = [place for place, answer in enumerate(answers) if answer.finish == "length"]
        same_answers(SETUP, [requests[place] for place in whole], [answers[place] for place in whole])
        said = {who: one.prompt + two.tokens for who, one, two in zip(said, requests, answers, strict=True)}
        told += answers
    return told


def converse(engine, same_answers, **how):
    """The same, and ranks are alike after each turn, also while copies are late."""
    return serve_conversations(engine, same_answers, lambda: state_of_all(engine, SETUP.ranks), **how)


def check_nothing_is_left(engine):
    engine.settle()
    state = state_of_all(engine, SETUP.ranks)
    cached = state["device_cached_pages"]
    assert state["device_evictable_pages"] == cached
    assert state["available_tokens"] + cached * SETUP.page_size == SETUP.pool_tokens
    assert state["open_operations"] == state["host_reserved_slots"] == state["host_draining_slots"] == 0
    return state


def test_copies_that_are_late_on_one_rank(tiered, same_answers):
    engine = tiered("late copies on one rank")
    answers = converse(engine, same_answers, seed=71)
    assert sum(answer.host_hit for answer in answers) > 0
    assert all(answer.finish == "length" for answer in answers)
    state = check_nothing_is_left(engine)
    assert state["committed_pages"] > 0
    assert state["rolled_back_operations"] == 0
    assert state["sent_by_the_cache"] == 0


@pytest.mark.parametrize("failing", ["backups", "restores", "backups and restores"])
def test_what_fails_on_one_rank_is_given_up_by_both(tiered, same_answers, failing):
    """Both abort the same requests, and those after them are served right."""
    engine = tiered(f"failing {failing} on one rank")
    answers = converse(engine, same_answers, seed=72, turns=6)
    assert sum(answer.host_hit for answer in answers) > 0
    state = check_nothing_is_left(engine)
    assert state["committed_pages"] > 0
    assert state["rolled_back_operations"] > 0 or "backups" not in failing
    told = engine.log.read_text()
    assert ("a backup is rolled back: submission" in told) == ("backups" in failing)
    assert ("a restore has failed: submission" in told) == (state["failed_restores"] > 0) == ("restores" in failing)
    aborted = sum(answer.finish == "abort" for answer in answers)
    assert state["aborted_requests"] == aborted
    assert 0 < aborted < len(answers) if "restores" in failing else aborted == 0
    assert engine.flush()
    assert check_nothing_is_left(engine)["host_cached_slots"] == 0
    converse(engine, same_answers, seed=79, turns=1)


def test_a_restore_that_fails_on_one_rank_aborts_the_request_on_both(tiered, same_answers):
    engine, prompts = tiered("restores that all fail on one rank"), Prompts(73)
    requests = [Request(prompts.tokens(400)) for _ in range(3)]
    for request in requests:
        engine.serve(request)
        engine.settle()
    [aborted] = engine.serve(Request(requests[0].prompt, new_tokens=60))
    assert aborted.host_hit > 0
    assert aborted.finish == "abort"
    assert check_nothing_is_left(engine)["failed_restores"] > 0
    other = Request(prompts.tokens(300))
    same_answers(SETUP, [other], engine.serve(other))


def test_requests_that_are_aborted_while_copies_are_late_on_one_rank(tiered, same_answers):
    engine, prompts = tiered("late copies on one rank"), Prompts(74)
    system = prompts.tokens(130)
    requests = [
        Request(system + prompts.tokens(150), new_tokens=24, aborted_at=(place, place) if place % 3 == 1 else None)
        for place in range(9)
    ]
    kept = [place for place, request in enumerate(requests) if request.aborted_at is None]
    for _ in range(2):
        answers = engine.serve(*requests)
        state_of_all(engine, SETUP.ranks)
        same_answers(SETUP, [requests[place] for place in kept], [answers[place] for place in kept])
    assert any(answer.finish == "abort" for answer in answers)
    assert any(answer.host_hit for answer in answers)
    check_nothing_is_left(engine)


def test_without_agreement_ranks_are_seen_to_differ(tiered):
    """What the other tests rely on."""
    engine = tiered("no agreement")
    engine.serve(Request(Prompts(75).tokens(300), new_tokens=1))
    first, second = engine.states()
    assert first["committed_pages"] > second["committed_pages"]
    assert first["digest"] != second["digest"]


def test_an_engine_whose_ranks_part_ends_and_names_the_rank(tiered, same_answers):
    """Not with tokens that are wrong, and not in a hang."""
    engine = tiered("another eviction on one rank")
    begun = time.monotonic()
    with pytest.raises(EngineDiedError) as died:
        serve_conversations(engine, same_answers, seed=80)
    assert re.search("rank 1 has parted from rank 0: by step [0-9]+ its cache was given other calls", died.value.log)
    assert time.monotonic() - begun < SECONDS_TO_END


def test_ranks_on_several_hosts_agree_through_a_reduction(tiered, same_answers):
    engine = tiered("several hosts")
    answers = converse(engine, same_answers, seed=76)
    assert sum(answer.host_hit for answer in answers) > 0
    assert check_nothing_is_left(engine)["sent_by_the_cache"] > 0
    assert "agree through a reduction" in engine.log.read_text()


def test_ranks_of_which_one_publishes_events(tiered, same_answers, sockets):
    """Only that one is told by SGLang to note them."""
    events = {"publisher": "zmq", "endpoint": f"ipc://{sockets}/events_of_ranks"}
    engine = tiered(kv_events_config=json.dumps(events))
    converse(engine, same_answers, seed=77, turns=2)
    check_nothing_is_left(engine)


def test_an_engine_with_a_rank_that_cannot_start_ends(tiered):
    begun = time.monotonic()
    with pytest.raises(EngineDiedError) as died:
        tiered("no memory on one rank")
    assert "there is no memory left on this rank" in died.value.log
    assert time.monotonic() - begun < SECONDS_TO_END


def test_an_engine_with_a_rank_that_dies_ends(tiered):
    engine = tiered("death of one rank")
    begun = time.monotonic()
    with pytest.raises(EngineDiedError):
        engine.serve(Request(Prompts(78).tokens(300)))
    assert time.monotonic() - begun < SECONDS_TO_END


def test_an_engine_that_is_killed_leaves_nothing_in_shared_memory(tiered):
    """Nothing of its log has a name while it runs."""
    before = set(Path(SHARED_MEMORY).glob("cpkv-sglang-*"))
    engine = tiered()
    assert engine.log.read_text().count("agree through a commit log") == SETUP.ranks
    assert not set(Path(SHARED_MEMORY).glob("cpkv-sglang-*")) - before
    engine.close()
    assert not set(Path(SHARED_MEMORY).glob("cpkv-sglang-*")) - before
