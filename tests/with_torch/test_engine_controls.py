"""What has to change the engine's output when it is broken, or to be refused: each breaks one thing."""

import random
import re
import threading

import numpy as np
import pytest
import torch

import cpkv
import cpkv.engine.forward
from cpkv.device import BACKUP, RESTORE, CpuEngine
from cpkv.engine import Engine, Stage
from cpkv.engine.oracle import Oracle
from engine_work import NEW_TOKENS, compared, config, evict_all, prompts, seen_of

pytestmark = pytest.mark.timeout(120)

LENGTHS = [40, 75]


@pytest.fixture
def wanted():
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        return [seen_of(request) for request in engine.generate(prompts(1, LENGTHS), NEW_TOKENS)]


def run(engine):
    return [seen_of(request) for request in engine.generate(prompts(1, LENGTHS), NEW_TOKENS)]


def tokens_of(seen):
    return [each["tokens"] for each in seen]


def logits_of(seen):
    return [each["logits"] for each in seen]


def acceptance_of(seen):
    return sum(each["acceptance"] for each in seen)


# --- Bytes ---


def test_logits_depend_on_every_byte_that_attention_reads():
    """32 tokens, all of which are read; each time another byte of the target's state is another one."""
    prompt, draw = prompts(3, [32])[0], random.Random(0)
    with Engine(config(host_slots=0, page_size=4)) as engine:
        first = seen_of(engine.generate([prompt], 1)[0])["logits"]
        for name in ("target_kv", "target_index"):
            for _ in range(24):
                tensor = draw.choice(engine.pools.tensors[name])
                with engine.cache.lock(engine.cache.match(np.array(prompt))) as lease:
                    page = draw.choice(list(lease.page_ids()))
                place = draw.randrange(tensor.shape[1])
                before = tensor[page, place].clone()
                tensor[page, place] ^= 0x80
                now = seen_of(engine.generate([prompt], 1)[0])["logits"]
                assert now != first, f"byte {place} of page {page} in {name}"
                tensor[page, place] = before
        assert seen_of(engine.generate([prompt], 1)[0])["logits"] == first


@pytest.mark.parametrize("name", ["draft_kv", "draft_index"])
def test_acceptance_falls_if_the_drafts_state_is_not_restored(wanted, name):
    with Engine(config()) as engine:
        assert run(engine) == wanted_with_hits(wanted, 0)
        evict_all(engine)
        begin = engine._begin_forward

        def forget(requests):
            begin(requests)
            engine.tier.engine.synchronize()
            for tensor in engine.pools.tensors[name]:
                tensor[[page for request in requests for page in request.pages[: request.host_hit_tokens // 16]]] = 0x38

        engine._begin_forward = forget
        broken = run(engine)
    assert tokens_of(broken) == tokens_of(wanted), "the target verifies"
    assert acceptance_of(broken) < acceptance_of(wanted) - 0.2


def wanted_with_hits(wanted, hits):
    return [each | {"device_hit": hits, "host_hit": hits} for each in wanted]


def test_draft_pages_that_the_targets_hook_copies_are_wrong():
    with Engine(config()) as engine:
        tier, layers = engine.tier, engine.config.model.layers
        ended = engine.model.layer_ended

        def early(layer):
            if layer < layers:
                ended(layer)
            if layer == layers - 1:
                tier.layer_ended(layers)
                tier.engine.synchronize()

        engine.model.layer_ended = early
        requests = engine.generate(prompts(1, LENGTHS), 2)
        said = compared(engine, requests)
    assert said["wrong"]
    assert all("draft_" in wrong and "on the host" in wrong for wrong in said["wrong"])


def test_what_is_visible_before_its_ack_is_not_whole():
    may_copy = threading.Event()
    held = CpuEngine(delay_s=lambda _: (may_copy.wait(60), 0.0)[1])
    with Engine(config(), copy_engine=held) as engine:
        request = engine.submit(prompts(1, [75])[0], 30)
        engine.step()
        assert request.stage is Stage.DECODE
        # Nothing was copied yet, and somebody says that all of it was.
        report = engine.cache.tick(engine.step_number, [1 << 40, 1 << 40])
        engine.step_number += 1
        assert report.committed
        engine.abort(request)
        evict_all(engine)
        said = Oracle(engine.config).compare(engine, [request.tokens])
        may_copy.set()
        assert said.host_pages == 4
        assert said.wrong


# --- Splits ---


def test_parts_that_are_taken_for_halves_change_the_output(monkeypatch, wanted):
    real = cpkv.engine.forward.pieces_of

    def halves(view):
        pieces = real(view)
        half = view.tokens // 2
        mended = []
        for piece in pieces:
            start = 0 if piece.rows.start == 0 else half
            mended.append(
                cpkv.engine.forward.Piece(
                    piece.request, slice(start, half if start == 0 else view.tokens), piece.first_position, piece.step
                )
            )
        return mended

    monkeypatch.setattr(cpkv.engine.forward, "pieces_of", halves)
    with Engine(config(max_requests=1)) as engine:
        assert logits_of(run(engine)) != logits_of(wanted)


def test_lengths_in_the_order_of_the_sequence_change_the_output(monkeypatch, wanted):
    monkeypatch.setattr(
        cpkv.engine.forward.Piece,
        "lengths",
        lambda piece, device: torch.arange(piece.rows.start + 1, piece.rows.stop + 1, device=device),
    )
    with Engine(config()) as engine:
        assert logits_of(run(engine)) != logits_of(wanted)


@pytest.mark.parametrize("chunk_tokens", [16, 37, 38, 39, 64])
@pytest.mark.parametrize("length", [17, 38, 48, 49, 64])
def test_where_a_chunk_ends_makes_no_difference(chunk_tokens, length):
    asked = prompts(2, [length])
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        wanted = [seen_of(request) for request in engine.generate(asked, 6)]
    with Engine(config(chunk_tokens=chunk_tokens)) as engine:
        assert [seen_of(request) for request in engine.generate(asked, 6)] == wanted
        assert [seen_of(request)["logits"] for request in engine.generate(asked, 6)] == logits_of(wanted)


def test_equal_prompts_in_one_batch_share_what_is_inserted_first(wanted):
    with Engine(config()) as engine:
        (prompt, _) = prompts(1, LENGTHS)
        requests = engine.generate([prompt] * 4, NEW_TOKENS)
        assert logits_of(map(seen_of, requests)) == [wanted[0]["logits"]] * 4
        assert compared(engine, requests)["wrong"] == []
        engine.cache.flush()
        assert engine.cache.stats().device_free_pages == engine.config.device_pages


@pytest.mark.parametrize("gathers_all", [False, True])
def test_both_forms_of_hidden_states_give_the_same_logits(wanted, gathers_all):
    with Engine(config(gathers_all_hidden=gathers_all)) as engine:
        assert logits_of(run(engine)) == logits_of(wanted)


# --- Failures ---


@pytest.mark.parametrize("new_tokens", [1, 2, NEW_TOKENS])
@pytest.mark.parametrize("failing", [1, 3, 1_000])
def test_what_was_read_from_a_restore_that_fails_is_taken_back(new_tokens, failing):
    """Also if the request has all of its tokens when it is heard of, and if every restore fails."""
    failures = []

    def fails(stream, _):
        if stream == RESTORE and len(failures) < failing and is_failing:
            failures.append(stream)
            return True
        return False

    is_failing = False
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        wanted = [seen_of(request) for request in engine.generate(prompts(1, LENGTHS), new_tokens)]
    with Engine(config(), copy_engine=CpuEngine(fails=fails)) as engine:
        engine.generate(prompts(1, LENGTHS), new_tokens)
        evict_all(engine)
        is_failing = True
        requests = engine.generate(prompts(1, LENGTHS), new_tokens)
        seen = [seen_of(request) for request in requests]
        assert failures
        assert max(request.losses for request in requests) > 0
        for each, want in zip(seen, wanted, strict=True):
            assert (each["tokens"], each["logits"]) == (want["tokens"], want["logits"])
            assert each["acceptance"] == want["acceptance"]
        is_failing = False
        assert compared(engine, requests)["wrong"] == []
        engine.cache.check_integrity()
        engine.cache.flush()
        engine.run()
        stats = engine.cache.stats()
        assert stats.device_free_pages == stats.device_capacity_pages
        assert not any(node["locks"] for node in engine.cache.dump()["nodes"]), "no lease is left"


def test_restores_of_all_requests_of_a_step_are_loaded_together(wanted):
    with Engine(config()) as engine:
        run(engine)
        evict_all(engine)
        loaded, load = [], engine.tier.load

        def loads(operations):
            loaded.append(len(operations))
            load(operations)

        engine.tier.load = loads
        assert logits_of(run(engine)) == logits_of(wanted)
        assert [count for count in loaded if count] == [len(LENGTHS)]


@pytest.mark.parametrize("every", [2, 3])
def test_backups_that_fail_cost_their_host_copies_and_nothing_else(wanted, every):
    with Engine(
        config(), copy_engine=CpuEngine(fails=lambda stream, number: stream == BACKUP and number % every == 0)
    ) as engine:
        assert logits_of(run(engine)) == logits_of(wanted)
        evict_all(engine)
        assert logits_of(run(engine)) == logits_of(wanted)
        assert engine.tier.counts.failed_submissions > 0


# --- Ends ---


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_an_abort_amid_its_copies_leaves_nothing(wanted, layer):
    victims, draining, may_copy = [], [], threading.Event()

    def on_layer(ended):
        if victims and ended == layer:
            engine.abort(victims.pop())
            draining.append(engine.cache.stats().host_draining_slots)
            may_copy.set()

    held = CpuEngine(delay_s=lambda _: (may_copy.wait(60), 0.0)[1])
    engine = Engine(config(), on_layer=on_layer, copy_engine=held)
    with engine:
        others = [engine.submit(prompt, NEW_TOKENS) for prompt in prompts(1, LENGTHS)]
        victim = engine.submit(prompts(9, [60])[0], NEW_TOKENS)
        victims.append(victim)
        engine.run()
        assert victim.stage is Stage.ABORTED
        assert draining[0] > 0, "its copies are under way"
        assert [seen_of(request) for request in others] == wanted_with_hits(wanted, 0)
        assert engine.cache.match(np.array(victim.prompt)).pages == 0
        said = compared(engine, others)
        assert said["wrong"] == []
        engine.cache.flush()
        stats = engine.cache.stats()
        assert stats.device_free_pages == stats.device_capacity_pages
        engine.cache.check_integrity()


def test_requests_that_do_not_fit_at_once_take_turns():
    asked, new = prompts(5, [30, 31, 32, 33]), 64
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        wanted = [seen_of(request) for request in engine.generate(asked, new)]
    with Engine(config(device_pages=16, host_slots=16, chunk_tokens=50)) as engine:
        requests = engine.generate(asked, new)
        assert tokens_of(map(seen_of, requests)) == tokens_of(wanted)
        assert logits_of(map(seen_of, requests)) == logits_of(wanted)
        assert sum(request.retracted for request in requests) > 0
        assert compared(engine, requests)["wrong"] == []
        engine.cache.check_integrity()


@pytest.mark.parametrize(
    ("prompt", "new", "error", "words"),
    [
        ([], 1, cpkv.InputError, "a request has 0 tokens and 1 new ones"),
        ([1], 0, cpkv.InputError, "a request has 1 tokens and 0 new ones"),
        ([1, 128], 1, cpkv.InputError, "a request has token 128, want tokens from 0 to 127"),
        ([-1], 1, cpkv.InputError, "a request has token -1, want tokens from 0 to 127"),
        ([1] * 4_000, 1, cpkv.InputError, "a request takes up to 4005 tokens, want half of the device pages at most"),
        ([1], 1 << 70, cpkv.InputError, "a request takes up to 1180591620717411303429 tokens"),
        ([1, 1.5], 1, cpkv.InputTypeError, "a prompt has 1.5 at 1, want integers"),
        ([True], 1, cpkv.InputTypeError, "a prompt has True at 0, want integers"),
        (np.array([0.5]), 1, cpkv.InputTypeError, "a prompt has 0.5 at 0, want integers"),
        (np.array([[1, 2]]), 1, cpkv.InputTypeError, "a prompt has [1, 2] at 0, want integers"),
        (np.array(1), 1, cpkv.InputTypeError, "a prompt is array(1), want a sequence of token ids"),
        (torch.tensor([True]), 1, cpkv.InputTypeError, "a prompt has True at 0, want integers"),
        (torch.ones(1, dtype=torch.bfloat16), 1, cpkv.InputTypeError, "a prompt has 1.0 at 0, want integers"),
        ("ab", 1, cpkv.InputTypeError, "a prompt is 'ab', want a sequence of token ids"),
        (b"ab", 1, cpkv.InputTypeError, "a prompt is b'ab', want a sequence of token ids"),
        (None, 1, cpkv.InputTypeError, "a prompt is None, want a sequence of token ids"),
        ([1], 1.5, cpkv.InputTypeError, "new_tokens is 1.5, want an integer"),
        ([1], True, cpkv.InputTypeError, "new_tokens is True, want an integer"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(prompt, new, error, words):
    with Engine(config(host_slots=0)) as engine:
        with pytest.raises(error, match=re.escape(words)):
            engine.submit(prompt, new)
        with pytest.raises(error, match=re.escape(words)):
            engine.generate([[1], prompt], new)
        assert engine.requests == []
        assert engine.generate([[1]], 1)[0].number == 0


@pytest.mark.parametrize(
    "kind",
    [np.array, lambda ids: np.array(ids, np.uint8), torch.tensor, lambda ids: torch.tensor(ids, dtype=torch.int32)],
    ids=["int64", "uint8", "tensor", "int32 tensor"],
)
def test_arrays_and_tensors_of_integers_are_prompts(wanted, kind):
    with Engine(config()) as engine:
        requests = engine.generate(map(kind, prompts(1, LENGTHS)), np.int32(NEW_TOKENS))
        assert [seen_of(request) for request in requests] == wanted_with_hits(wanted, 0)
        assert all(type(token) is int for request in requests for token in request.tokens)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"host_slots": None}, "host_slots is None, want an integer of at least 0"),
        ({"host_slots": 2.5}, "host_slots is 2.5, want an integer of at least 0"),
        ({"host_slots": -1}, "host_slots is -1, want an integer of at least 0"),
        ({"host_slots": False}, "host_slots is False, want an integer of at least 0"),
        ({"page_size": 16.0}, "page_size is 16.0, want an integer of at least 1"),
        ({"device": None}, "device is None, want 'cpu', 'cuda' or 'cuda:' and a number"),
        ({"split": ["zigzag"]}, "split is ['zigzag'], want 'zigzag' or 'interleave'"),
        ({"model": None}, "model is None, want a ModelConfig"),
    ],
)
def test_a_configuration_that_cannot_be_is_refused(changes, words):
    with pytest.raises(cpkv.ConfigError, match=re.escape(words)):
        config(**changes)


def test_ranks_with_a_host_tier_need_a_log_to_agree_by():
    with pytest.raises(cpkv.ConfigError, match="cp_size is 2, want a commit log for the host tier"):
        Engine(config(), cp_size=2)
    Engine(config(host_slots=0), cp_size=2).close()
