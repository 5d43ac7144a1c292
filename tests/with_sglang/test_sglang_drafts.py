"""Drafts as the host tier sees them: who has them, what their pools hold of a page, and where their layers are."""

from types import SimpleNamespace

import pytest
import torch
from scheduling import FakePool, TieredScheduler, context
from sglang.srt.mem_cache import kv_cache_builder
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.speculative.base_spec_worker import HiCacheDraftMode, HiCacheDraftPlan
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from cpkv import ConfigError
from cpkv.device.cpu import CpuEngine
from cpkv.sglang.builder import copy_drafts
from cpkv.sglang.drafts import Draft, drafts_of, note_scheduler
from cpkv.sglang.opening import decoder_layers
from cpkv.sglang.state import describe

PAGE_SIZE = 4
COMMON = {
    "size": 32,
    "page_size": PAGE_SIZE,
    "dtype": torch.float32,
    "device": "cpu",
    "enable_memory_saver": False,
}


def latents(layers):
    return MLATokenToKVPool(kv_lora_rank=6, qk_rope_head_dim=2, layer_num=layers, **COMMON)


def keys_and_values(layers, heads=2):
    return MHATokenToKVPool(head_num=heads, head_dim=8, layer_num=layers, **COMMON)


# --- What a page has ---


def test_every_depth_is_a_layer_of_the_draft():
    target, depths = latents(3), [latents(1), latents(1)]
    state = describe(target, PAGE_SIZE, depths)
    assert (state.layout.target_layers, state.layout.draft_layers) == (3, 2)
    assert [(one.name, one.model, one.layers) for one in state.layout.components] == [
        ("target_kv", "target", (0, 1, 2)),
        ("draft_kv", "draft", (0, 1)),
    ]
    assert state.layout.slot_bytes == 5 * PAGE_SIZE * 8 * 4
    assert state.buffers["draft_kv"].addresses == tuple(depth.kv_buffer[0].data_ptr() for depth in depths)


def test_a_draft_may_keep_other_state_than_its_target():
    state = describe(latents(2), PAGE_SIZE, [keys_and_values(2)])
    assert [one.name for one in state.layout.components] == ["target_kv", "draft_k", "draft_v"]
    assert state.layout.slot_bytes == PAGE_SIZE * 4 * (2 * 8 + 2 * 2 * 2 * 8)


def test_without_a_draft_all_is_the_targets():
    assert describe(keys_and_values(2), PAGE_SIZE).layout.draft_layers == 0


def test_depths_of_different_kinds_are_refused():
    with pytest.raises(ConfigError, match="the draft's pools are MLATokenToKVPool, MHATokenToKVPool, want one kind"):
        describe(latents(2), PAGE_SIZE, [latents(1), keys_and_values(1)])


def test_a_draft_whose_pool_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="the KV pool is a FakePool of layout unknown, want one of MHA"):
        describe(latents(2), PAGE_SIZE, [FakePool()])


class OtherKeysAndValues(MHATokenToKVPool):
    """As those of four bits are, whose scales lie beside them."""


def test_pools_that_keep_more_of_a_page_are_refused():
    """What is not described would be lost, and nobody would notice."""
    other = OtherKeysAndValues(head_num=2, head_dim=8, layer_num=2, **COMMON)
    with pytest.raises(ConfigError, match="the KV pool is a OtherKeysAndValues of layout nhd, want one of MHA"):
        describe(other, PAGE_SIZE)
    scaled = keys_and_values(2)
    scaled.k_scale_buffer = scaled.v_scale_buffer = [torch.ones(1)] * 2
    with pytest.raises(ConfigError, match="of layout nhd with k_scale_buffer, v_scale_buffer, want one of MHA"):
        describe(scaled, PAGE_SIZE)
    pooled = latents(2)
    pooled.index_kpool = 4
    with pytest.raises(ConfigError, match="whose index has one key for 4 tokens, want one of MHA"):
        describe(latents(2), PAGE_SIZE, [pooled])


# --- Its layers ---


@pytest.mark.parametrize("name", ["decoder", "midlayer", "mtp_block"])
def test_a_draft_may_have_one_layer(name):
    layer = torch.nn.Linear(1, 1)
    model = SimpleNamespace(model=SimpleNamespace(**{name: layer}))
    assert decoder_layers(model) == [layer]


def test_a_draft_may_have_several_layers():
    layers = torch.nn.ModuleList([torch.nn.Linear(1, 1) for _ in range(2)])
    assert decoder_layers(SimpleNamespace(model=SimpleNamespace(layers=layers))) == list(layers)


def test_a_model_whose_layers_are_elsewhere_is_refused():
    with pytest.raises(ConfigError, match=r"the layers of SimpleNamespace are not known, want one of model\.layers"):
        decoder_layers(SimpleNamespace(model=SimpleNamespace(blocks=[])))


# --- Who has it ---


class FakeScheduler:
    """SGLang's scheduler as far as its draft goes."""

    def __init__(self, algorithm, runners):
        self.tp_worker = SimpleNamespace(
            model_runner=SimpleNamespace(spec_algorithm=SpeculativeAlgorithm.from_string(algorithm))
        )
        self.draft_worker = SimpleNamespace(draft_worker=SimpleNamespace(draft_runners=runners))


def test_the_draft_is_that_of_the_scheduler_that_makes_the_cache():
    runners = [
        SimpleNamespace(token_to_kv_pool=f"pool {depth}", model=f"model {depth}", attn_backend=f"attention {depth}")
        for depth in range(2)
    ]
    schedulers = [FakeScheduler("NEXTN", runners), FakeScheduler("EAGLE3", runners[:1])]
    for scheduler in schedulers:
        assert note_scheduler(None, scheduler) is None, "a result would take the place of SGLang's"
    first, second = (drafts_of(scheduler) for scheduler in schedulers)
    assert first == [Draft("pool 0", "model 0", "attention 0"), Draft("pool 1", "model 1", "attention 1")]
    assert second == first[:1]


@pytest.mark.parametrize("algorithm", [None, "NGRAM"])
def test_without_a_draft_nobody_has_to_be_noted(algorithm):
    assert drafts_of(FakeScheduler(algorithm, [])) == ()


def test_a_draft_of_nobody_is_refused():
    with pytest.raises(ConfigError, match=r"--speculative-algorithm EAGLE: the draft was not found.*init_model_worker"):
        drafts_of(FakeScheduler("EAGLE", []))


def test_sglang_leaves_the_draft_to_cpkv_and_to_nobody_else(monkeypatch):
    monkeypatch.setattr(kv_cache_builder, "maybe_register_hicache_draft", kv_cache_builder.maybe_register_hicache_draft)
    for _ in range(2):
        copy_drafts()
    scheduler = TieredScheduler(context(pages=50, page_size=4, is_eagle=True), CpuEngine(), slots=400)
    plan = HiCacheDraftPlan(HiCacheDraftMode.SIDECAR, (keys_and_values(1),))
    kv_cache_builder.maybe_register_hicache_draft(tree_cache=scheduler.cache, draft_plan=plan)
    with pytest.raises(NotImplementedError, match="HiCache draft pools require"):
        kv_cache_builder.maybe_register_hicache_draft(tree_cache=SimpleNamespace(), draft_plan=plan)
    scheduler.cache.release_host_resources()
