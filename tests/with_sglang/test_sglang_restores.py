"""SGLang's engine with a host tier: what the device has evicted comes back, and the tokens stay the same."""

import pytest
from alike import state_of_all
from prompts import Prompts
from served import Request
from setups import HOST_TIER, Setup

SETUPS = [
    Setup("llama", 16, pool_tokens=640),
    Setup("mla", 64, pool_tokens=640),
    Setup("dsa", 64, pool_tokens=640),
    Setup("llama", 16, drafts=True, pool_tokens=640),
    Setup("llama", 64, drafts=True, pool_tokens=640),
    Setup("dsa_nextn", 64, drafts=True, pool_tokens=640),
]
DRAFTING = [setup for setup in SETUPS if setup.drafts]
OF_RANKS = [setup._replace(ranks=2) for setup in (*SETUPS[:2], SETUPS[4])]


@pytest.fixture
def tiered(cached_engine):
    def start(setup, **changes):
        return cached_engine(setup, **HOST_TIER, **changes)

    return start


def check_nothing_is_left(engine, setup):
    """Every page and slot is free or in the cache, no copy is under way. And all ranks have the same."""
    engine.settle()
    state = state_of_all(engine, setup.ranks)
    assert state["sent_by_the_cache"] == 0
    cached = state["device_cached_pages"]
    assert state["device_evictable_pages"] == cached
    assert state["available_tokens"] + cached * setup.page_size == setup.pool_tokens
    assert state["open_operations"] == state["host_reserved_slots"] == state["host_draining_slots"] == 0
    return state


def check_layer_by_layer(state):
    assert state["hooked_forwards"] > 0
    assert state["all_layer_forwards"] == state["repeated_layers"] == 0


def serve_until_the_first_is_evicted(engine):
    prompts = Prompts(61)
    requests = [Request(prompts.tokens(400)) for _ in range(3)]
    requests.append(requests[0])
    answers = []
    for request in requests:
        answers += engine.serve(request)
        engine.settle()
    assert [answer.hit for answer in answers] == [0, 0, 0, 384 if answers[3].hit % 64 == 0 else 399 // 16 * 16]
    assert answers[3].host_hit > 0
    return requests, answers


@pytest.mark.parametrize("setup", SETUPS + OF_RANKS, ids=str)
def test_what_the_device_has_evicted_comes_back(setup, tiered, same_answers):
    engine = tiered(setup)
    same_answers(setup, *serve_until_the_first_is_evicted(engine))
    state = check_nothing_is_left(engine, setup)
    check_layer_by_layer(state)
    assert state["compared_pages"] == state["restored_pages"] > 0
    assert {name: count for name, count in state.items() if name.startswith("wrong_") and count} == {}


def test_an_index_that_is_lost_shows_in_its_bytes_and_not_in_tokens(tiered, same_answers):
    """On a CPU: there is no sparse attention there."""
    setup = SETUPS[2]
    engine = tiered(setup, CPKV_TEST_FAULT="zero indexes")
    same_answers(setup, *serve_until_the_first_is_evicted(engine))
    state = engine.settle()
    assert state["wrong_target_index"] == state["compared_pages"] > 0
    assert state["wrong_target_kv"] == 0


def test_the_bytes_of_a_draft_and_of_its_index_are_compared(tiered):
    engine = tiered(SETUPS[5], CPKV_TEST_FAULT="zero drafts")
    serve_until_the_first_is_evicted(engine)
    state = engine.settle()
    assert state["wrong_draft_kv"] == state["wrong_draft_index"] == state["compared_pages"] > 0
    assert state["wrong_target_kv"] == state["wrong_target_index"] == 0


@pytest.mark.parametrize("setup", [SETUPS[1], *SETUPS[4:]], ids=str)
def test_forwards_without_modules_are_copied_where_attention_begins(setup, tiered, same_answers):
    """SGLang's prefill graphs on a GPU call no module: only attention, between the pieces of a graph."""
    engine = tiered(setup, CPKV_TEST_FAULT="hook no module")
    same_answers(setup, *serve_until_the_first_is_evicted(engine))
    check_layer_by_layer(check_nothing_is_left(engine, setup))


@pytest.mark.parametrize("setup", [SETUPS[1], SETUPS[5]], ids=str)
def test_forwards_of_one_graph_are_copied_at_their_end_and_it_is_told(setup, tiered, same_answers):
    engine = tiered(setup, CPKV_TEST_FAULT="hook nothing")
    same_answers(setup, *serve_until_the_first_is_evicted(engine))
    state = check_nothing_is_left(engine, setup)
    assert state["hooked_forwards"] == 0
    assert state["all_layer_forwards_graph replay"] == state["all_layer_forwards"] > 0
    assert "were not submitted by hooks and go to the host all at once: graph replay" in engine.log.read_text()


@pytest.mark.parametrize("setup", [SETUPS[1], *SETUPS[4:]], ids=str)
def test_copies_begin_before_the_last_layer_ends(setup, tiered, tell):
    """On the timeline of 100 forwards, not only in the order of the submissions."""
    engine, prompts = tiered(setup), Prompts(63)
    while engine.state()["copied_forwards"] < 100:
        engine.serve(Request(prompts.tokens(500), new_tokens=1))
    state = engine.settle()
    tell(f"{setup}: {state['copy_within_ns'] / state['copy_ns']:.0%} of the time of copies is within forwards")
    assert state["early_forwards"] >= 0.99 * state["copied_forwards"]


CONVERSATIONS = [(setup, {}) for setup in SETUPS + OF_RANKS] + [(SETUPS[1], {"CPKV_TEST_FAULT": "ask for pages"})]


@pytest.mark.parametrize(("setup", "variables"), CONVERSATIONS, ids=str)
def test_conversations_that_the_device_does_not_hold(setup, variables, tiered, same_answers):
    """Several at once, in chunks, beside one that is aborted, and a flush at the end."""
    engine, prompts = tiered(setup, **variables), Prompts(62)
    said = dict.fromkeys(range(4), prompts.tokens(60))
    host_hits = 0
    for _ in range(4):
        requests = [Request(history + prompts.tokens(30)) for history in said.values()]
        *answers, aborted = engine.serve(*requests, Request(prompts.tokens(150), new_tokens=60, aborted_at=(0, 5)))
        assert aborted.finish == "abort"
        same_answers(setup, requests, answers)
        host_hits += sum(answer.host_hit for answer in answers)
        said = {who: one.prompt + two.tokens for who, one, two in zip(said, requests, answers, strict=True)}
    assert host_hits > 0
    check_layer_by_layer(check_nothing_is_left(engine, setup))
    assert engine.flush()
    state = engine.settle()
    assert (state["device_cached_pages"], state["host_cached_slots"]) == (0, 0)


@pytest.mark.parametrize("setup", SETUPS[:2], ids=str)
def test_a_restore_that_brings_zeroes_gives_wrong_tokens(setup, tiered):
    engine = tiered(setup, CPKV_TEST_FAULT="zero restores")
    _, (right, _, _, wrong) = serve_until_the_first_is_evicted(engine)
    assert wrong.tokens != right.tokens


@pytest.mark.parametrize("setup", DRAFTING, ids=str)
def test_a_restore_that_brings_zeroes_for_the_draft_gives_short_steps(setup, tiered):
    engine = tiered(setup, CPKV_TEST_FAULT="zero drafts")
    _, (cold, _, _, restored) = serve_until_the_first_is_evicted(engine)
    assert restored.tokens == cold.tokens
    assert cold.accept_length > 2
    assert restored.accept_length < cold.accept_length / 2


@pytest.mark.parametrize("setup", DRAFTING[::2], ids=str)
def test_an_aborted_prompt_leaves_right_drafts(setup, tiered, same_answers):
    """Chunks that were computed before the abort are kept, with their drafts; the others leave nothing."""
    setup = setup._replace(pool_tokens=1024)
    engine, prompts = tiered(setup), Prompts(64)
    long = prompts.tokens(800)
    [aborted] = engine.serve(Request(long, aborted_at_pages=-(-200 // setup.page_size)))
    assert (aborted.finish, aborted.tokens) == ("abort", ())
    check_nothing_is_left(engine, setup)
    engine.serve(Request(prompts.tokens(800)))
    check_nothing_is_left(engine, setup)
    [again] = engine.serve(Request(long))
    assert 0 < again.host_hit < len(long) - setup.page_size
    same_answers(setup, [Request(long)], [again])
    check_nothing_is_left(engine, setup)


@pytest.mark.parametrize("setup", DRAFTING, ids=str)
def test_what_was_said_with_drafts_comes_back(setup, tiered, same_answers):
    """Pages of answers are copied late. Nothing was computed twice of them, so their drafts come from the host."""
    engine, prompts = tiered(setup), Prompts(63)
    first = Request(prompts.tokens(20), new_tokens=200)
    [answer] = engine.serve(first)
    engine.settle()
    for _ in range(2):
        engine.serve(Request(prompts.tokens(500)))
        engine.settle()
    again = Request(first.prompt + answer.tokens)
    [restored] = engine.serve(again)
    assert restored.host_hit >= 192
    same_answers(setup, [first, again], [answer, restored])
    assert engine.settle()["late_reserved_pages"] * setup.page_size >= 192


@pytest.mark.parametrize("overlap", ["with overlap", "without"])
@pytest.mark.parametrize("new_tokens", [1, 8])
@pytest.mark.parametrize("setup", SETUPS[:2], ids=str)
def test_what_could_not_be_read_back_is_not_answered(setup, new_tokens, overlap, tiered, same_answers):
    """Also if the request ends with the forward that has read it. What is on the host stays, and others go on."""
    engine = tiered(
        setup,
        CPKV_TEST_FAULT="fail restores",
        # Until its request ends nobody has the pages that were not filled, so they are counted when SGLang is idle.
        SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY="0",
        disable_overlap_schedule=overlap == "without",
    )
    prompts = Prompts(63)
    requests = [Request(prompts.tokens(400), new_tokens=new_tokens) for _ in range(3)]
    for request in requests:
        same_answers(setup, [request], engine.serve(request))
        engine.settle()
    new = Request(prompts.tokens(60), new_tokens=40)
    unlucky, other = engine.serve(requests[0], new)
    assert unlucky.finish == "abort"
    same_answers(setup, [new], [other])
    state = check_nothing_is_left(engine, setup)
    assert state["failed_restores"] > 0
    assert state["restored_pages"] == 0
