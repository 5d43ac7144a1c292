"""Pauses, flushes, new weights and memory that is given up, while copies to the host are under way."""

import time

import pytest
from prompts import Prompts
from safetensors.torch import load_file, save_file
from served import Request
from setups import Setup
from sglang.version import __version__
from test_sglang_restores import check_nothing_is_left

from cpkv.sglang.versions import Interface, interface_of

SETUPS = [Setup("llama", 16, pool_tokens=640), Setup("mla", 64, pool_tokens=640)]
HOST_TIER = {"enable_hierarchical_cache": True, "hicache_io_backend": "direct", "hicache_ratio": 8.0}
SECONDS = 20

pytestmark = pytest.mark.parametrize("setup", SETUPS, ids=str)


@pytest.fixture
def gate(tmp_path):
    """Open it, and copies are made. Whoever waits for them opens it."""
    return tmp_path / "gate"


@pytest.fixture
def held_engine(cached_engine, gate):
    """Start an engine whose copies begin when the gate is open."""
    return lambda setup: cached_engine(setup, CPKV_TEST_FAULT="hold copies", CPKV_TEST_GATE=str(gate), **HOST_TIER)


def check_rest(engine, setup, gate):
    """Every copy ends, nothing is left of it, and SGLang's memory check is silent."""
    gate.touch()
    until = time.monotonic() + SECONDS
    while engine.state()["open_operations"] and time.monotonic() < until:
        time.sleep(0.05)
    return check_nothing_is_left(engine, setup)


def serve_with_copies_under_way(engine, request):
    [answer] = engine.serve(request)
    assert engine.state()["open_operations"] > 0
    return answer


def assert_empty(state, setup):
    assert (state["device_cached_pages"], state["host_cached_slots"], state["open_operations"]) == (0, 0, 0)
    assert state["available_tokens"] == setup.pool_tokens


def test_a_flush_waits_for_copies(setup, held_engine, gate, same_answers):
    engine, request = held_engine(setup), Request(Prompts(81).tokens(300))
    first = serve_with_copies_under_way(engine, request)
    assert engine.flush()
    assert_empty(engine.settle(), setup)
    [again] = engine.serve(request)
    assert again.hit == 0
    same_answers(setup, [request, request], [first, again])
    check_rest(engine, setup, gate)


@pytest.mark.parametrize("mode", ["abort", "retract", "in_place"])
def test_a_pause_with_a_flush(setup, mode, held_engine, gate, uncached_answers, same_answers):
    """Requests that are put back begin anew after it, those that stay where they are forbid the flush.

    Before 0.5.21 those that are put back forbid it, too.
    """
    engine, prompts = held_engine(setup), Prompts(82)
    requests = [Request(prompts.tokens(200), new_tokens=40) for _ in range(2)]
    answers, [_, flushed, [state], _] = engine.serve_and_call(
        *requests, at=(1, 3), calls=[("pause", (mode,)), ("flush", ()), ("states", ()), ("go_on", ())]
    )
    flushes = {"abort"} if interface_of(__version__) is Interface.CACHE_REQ else {"abort", "retract"}
    assert flushed == (mode in flushes)
    if flushed:
        assert_empty(state, setup)
    if mode == "abort":
        for answer, whole in zip(answers, uncached_answers(setup, requests), strict=True):
            assert answer.finish == "abort"
            assert answer.tokens == whole.tokens[: len(answer.tokens)]
    else:
        same_answers(setup, requests, answers)
    check_rest(engine, setup, gate)
    same_answers(setup, requests, engine.serve(*requests))


def test_copies_end_in_a_pause(setup, held_engine, gate):
    """SGLang flushes as soon as it hears that they have, and does not hear it from who looks for work."""
    engine = held_engine(setup)
    serve_with_copies_under_way(engine, Request(Prompts(83).tokens(300)))
    engine.call("pause", "retract")
    assert engine.state()["open_operations"] > 0
    gate.touch()
    assert engine.call("flush", SECONDS)
    assert_empty(engine.state(), setup)
    engine.call("go_on")
    check_rest(engine, setup, gate)


@pytest.fixture
def other_weights(models, tmp_path):
    """Write a model of the same shape that answers otherwise; return its folder."""

    def write(setup):
        folder = tmp_path / "other"
        folder.mkdir()
        for file in (models / setup.model).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        [file] = folder.glob("*.safetensors")
        weights = load_file(file)
        weights["model.embed_tokens.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()
        save_file(weights, file, metadata={"format": "pt"})
        return folder

    return write


def test_new_weights_with_a_flush_leave_nothing_of_the_old_ones(
    setup, held_engine, gate, models, template, other_weights
):
    folder = other_weights(setup)
    uncached = template.start(setup.uncached(models) | {"model_path": str(folder)})
    engine, request = held_engine(setup), Request(Prompts(84).tokens(300))
    first = serve_with_copies_under_way(engine, request)
    success, message = engine.call("load_weights", str(folder), "flush")
    assert success, message
    assert_empty(engine.settle(), setup)
    [answer], [wanted] = engine.serve(request), uncached.serve(request)
    uncached.close()
    assert answer.hit == 0
    assert answer.tokens == wanted.tokens != first.tokens
    check_rest(engine, setup, gate)


def test_the_same_weights_without_a_flush_leave_everything(setup, held_engine, gate, models, same_answers):
    engine, prompts = held_engine(setup), Prompts(85)
    requests = [Request(prompts.tokens(400)) for _ in range(3)]
    for request in requests:
        serve_with_copies_under_way(engine, request)
        success, message = engine.call("load_weights", str(models / setup.model), "keep")
        assert success, message
        assert engine.state()["open_operations"] > 0
        check_rest(engine, setup, gate)
        gate.unlink()
    check_rest(engine, setup, gate)
    [again] = engine.serve(requests[0])
    assert again.host_hit > 0
    same_answers(setup, requests[:1], [again])


@pytest.mark.parametrize("mode", [None, "retract"])
def test_memory_is_given_up_when_copies_have_ended(setup, mode, held_engine, gate, same_answers):
    engine, request = held_engine(setup), Request(Prompts(86).tokens(300))
    serve_with_copies_under_way(engine, request)
    if mode is not None:
        engine.call("pause", mode)
    engine.call("release_memory", ["kv_cache"])
    state = engine.state()
    assert (state["releases"], state["copies_at_release"]) == (1, 0)
    assert_empty(state, setup)
    engine.call("resume_memory", ["kv_cache"])
    if mode is not None:
        engine.call("go_on")
    for _ in range(2):
        [answer] = engine.serve(request)
        same_answers(setup, [request], [answer])
    assert answer.hit > 0
    assert check_rest(engine, setup, gate)["host_cached_slots"] > 0


def test_memory_is_not_given_up_for_the_weights_alone(setup, held_engine, gate, same_answers):
    engine, request = held_engine(setup), Request(Prompts(87).tokens(300))
    serve_with_copies_under_way(engine, request)
    engine.call("release_memory", ["weights"])
    state = engine.state()
    assert state["host_cached_slots"] == state["device_cached_pages"] > 0
    engine.call("resume_memory", ["weights"])
    [answer] = engine.serve(request)
    assert answer.hit > 0
    same_answers(setup, [request], [answer])
    check_rest(engine, setup, gate)
