"""What has to change the engine's output when it is broken, or to be refused: each breaks one thing."""

import random

import numpy as np
import pytest
import torch

import cpkv
import cpkv.drivers.opening
import cpkv.engine.forward
from cpkv.device import CpuEngine
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
    prompt, draw = prompts(3, [33])[0], random.Random(0)
    with Engine(config(host_slots=0)) as engine:
        first = seen_of(engine.generate([prompt], 2)[0])["logits"]
        for name in ("target_kv", "target_index"):
            for _ in range(24):
                tensor = draw.choice(engine.pools.tensors[name])
                with engine.cache.lock(engine.cache.match(np.array(prompt))) as lease:
                    page = draw.choice(list(lease.page_ids()))
                place = draw.randrange(tensor.shape[1])
                before = tensor[page, place].clone()
                tensor[page, place] ^= 0x80
                now = seen_of(engine.generate([prompt], 2)[0])["logits"]
                assert now != first, f"byte {place} of page {page} in {name}"
                tensor[page, place] = before
        assert seen_of(engine.generate([prompt], 2)[0])["logits"] == first


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


def test_what_is_visible_before_its_ack_is_not_whole(monkeypatch):
    slow = CpuEngine(delay_s=lambda _: 0.2)
    monkeypatch.setattr(cpkv.drivers.opening, "open_engine", lambda *_, **__: slow)
    with Engine(config()) as engine:
        request = engine.submit(prompts(1, [75])[0], 30)
        engine.step()
        assert request.stage is Stage.DECODE
        oracle = Oracle(engine.config)
        sequences = [request.tokens]
        # Nothing was copied yet, and somebody says that all of it was.
        report = engine.cache.tick(engine.step_number, [1 << 40, 1 << 40])
        engine.step_number += 1
        assert report.committed
        engine.abort(request)
        evict_all(engine)
        said = oracle.compare(engine, sequences)
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


# --- Ends ---


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_an_abort_amid_its_copies_leaves_nothing(wanted, layer):
    victims = []

    def on_layer(ended):
        if victims and ended == layer:
            engine.abort(victims.pop())

    engine = Engine(config(), on_layer=on_layer)
    with engine:
        others = [engine.submit(prompt, NEW_TOKENS) for prompt in prompts(1, LENGTHS)]
        victim = engine.submit(prompts(9, [60])[0], NEW_TOKENS)
        victims.append(victim)
        engine.run()
        assert victim.stage is Stage.ABORTED
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
    ("prompt", "new", "words"),
    [
        ([], 1, "a request has 0 tokens and 1 new ones"),
        ([1], 0, "a request has 1 tokens and 0 new ones"),
        ([1, 128], 1, "a request has token 128, want tokens from 0 to 127"),
        ([1] * 4_000, 1, "a request takes up to 4005 tokens, want half of the device pages at most"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused(prompt, new, words):
    with Engine(config(host_slots=0)) as engine:
        with pytest.raises(cpkv.InputError, match=words):
            engine.submit(prompt, new)
        assert engine.requests == []
