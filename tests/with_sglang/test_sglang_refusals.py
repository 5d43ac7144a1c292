"""An engine whose options do not go together with cpkv does not start, and says why."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from engines import EngineDiedError
from setups import Setup
from sglang.srt.arg_groups.overrides import declare_resolution
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.version import __version__ as sglang_version

from cpkv import ConfigError
from cpkv.sglang.factory import build
from cpkv.sglang.options import check_options
from cpkv.sglang.state import describe


def context(**given):
    """What cpkv reads of what SGLang makes a cache of, with nothing to refuse but what is given."""
    params = {"page_size": 64, "eviction_policy": "lru", "allocator_page_size": 64, "is_eagle": False, "pp_size": 1}
    parts = dict.fromkeys(("is_hybrid_swa", "is_hybrid_ssm", "enable_hierarchical_cache", "without_cache"), False)
    params |= {name: given.pop(name) for name in params.keys() & given.keys()}
    parts |= {name: given.pop(name) for name in parts.keys() & given.keys()}
    allocator = SimpleNamespace(page_size=params.pop("allocator_page_size"), device=given.pop("device", "cpu"))
    is_off = parts.pop("without_cache") or given.get("disable_radix_cache", False)
    algorithm = SpeculativeAlgorithm.from_string(given.get("speculative_algorithm"))
    return SimpleNamespace(
        server_args=SimpleNamespace(**given),
        params=SimpleNamespace(**params, token_to_kv_pool_allocator=allocator),
        tp_worker=SimpleNamespace(model_runner=SimpleNamespace(spec_algorithm=algorithm)),
        disable_radix_cache=is_off,
        **parts,
    )


REFUSED = {
    "--disable-radix-cache (set)": {"disable_radix_cache": True},
    "--enable-hierarchical-cache with --disaggregation-mode decode": {
        "enable_hierarchical_cache": True,
        "disaggregation_mode": "decode",
    },
    "--enable-hierarchical-cache with --pp-size 2": {"enable_hierarchical_cache": True, "pp_size": 2},
    "--enable-hierarchical-cache with --enable-pdmux": {"enable_hierarchical_cache": True, "enable_pdmux": True},
    "--enable-hierarchical-cache with --enable-unified-memory": {
        "enable_hierarchical_cache": True,
        "enable_unified_memory": True,
    },
    "--speculative-algorithm STANDALONE": {"enable_hierarchical_cache": True, "speculative_algorithm": "STANDALONE"},
    "--enable-session-radix-cache (set)": {"enable_session_radix_cache": True},
    "--enable-streaming-session (set)": {"enable_streaming_session": True},
    "--enable-lmcache (set)": {"enable_lmcache": True},
    "--enable-flexkv (set)": {"enable_flexkv": True},
    "--enable-unified-cache-external-linker (set)": {"enable_unified_cache_external_linker": True},
    "--enable-kv-cache-sharding (set)": {"enable_kv_cache_sharding": True},
    "--enable-hisparse (set)": {"enable_hisparse": True},
    "--schedule-policy dfs-weight": {"schedule_policy": "dfs-weight"},
    "--hicache-storage-backend file": {"hicache_storage_backend": "file"},
    "--disaggregation-decode-retraction-backup host_pool": {"disaggregation_decode_retraction_backup": "host_pool"},
    "--dllm-algorithm any": {"dllm_algorithm": "any"},
    "the model's sliding-window layers (found)": {"is_hybrid_swa": True},
    "the model's recurrent (Mamba) layers (found)": {"is_hybrid_ssm": True},
    "--radix-eviction-policy tlru": {"eviction_policy": "tlru"},
    "--page-size 64": {"allocator_page_size": 128},
}


def lines_of(refusal):
    head, *lines = str(refusal.value).splitlines()
    assert head == f"--radix-cache-backend cpkv in SGLang {sglang_version} does not go together with"
    return lines


@pytest.mark.parametrize(("named", "given"), REFUSED.items(), ids=REFUSED)
def test_one_option(named, given):
    with pytest.raises(ConfigError) as refusal:
        check_options(context(**given))
    [line] = lines_of(refusal)
    assert line.startswith(f"  {named}: ")
    assert len(line) > len(f"  {named}: "), "and what to do instead"


def test_all_options_are_named_at_once():
    given = {name: value for options in REFUSED.values() for name, value in options.items()}
    with pytest.raises(ConfigError) as refusal:
        check_options(context(**given))
    assert sorted(line.split(": ")[0].strip() for line in lines_of(refusal)) == sorted(REFUSED)


def test_the_page_names_every_option():
    page = (Path(__file__).parents[2] / "docs/sglang.md").read_text(encoding="utf-8")
    for named in REFUSED:
        words = [word for word in named.split() if word.startswith("--")]
        assert all(f"`{word}" in page for word in words), named


@pytest.mark.parametrize("version", ["0.5.16", "0.5.24", "0.6.0rc1", "unknown"])
def test_a_version_that_is_not_known(version, monkeypatch):
    monkeypatch.setattr("cpkv.sglang.factory.sglang_version", version)
    with pytest.raises(ConfigError, match=rf"^SGLang is {version}, want 0\.5\.17 to 0\.5\.23: install one of these"):
        build(context())


POOL = {"size": 128, "page_size": 64, "layer_num": 1, "device": "cpu", "enable_memory_saver": False}


def test_a_page_size_that_the_indexer_does_not_have():
    with get_parallel().override(attn_dcp_size=1):  # which it asks for
        pool = DSATokenToKVPool(
            dtype=torch.float32, kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128, kv_cache_dim=576, **POOL
        )
    describe(pool, 64)
    with pytest.raises(ConfigError, match=r"^--page-size is 32, want 64 as the indexer's pages have"):
        describe(pool, 32)


def test_keys_and_values_in_another_layout():
    pool = MHATokenToKVPool(dtype=torch.float32, head_num=2, head_dim=8, **POOL)
    describe(pool, 64)
    pool.kv_cache_layout = "hnd"
    with pytest.raises(ConfigError, match=r"MHATokenToKVPool of layout hnd, want one of MHA \(nhd\), MLA or DSA"):
        describe(pool, 64)


@pytest.mark.parametrize("algorithm", ["DFLASH", "UNO", "DSPARK", "FROZEN_KV_MTP", "STANDALONE"])
def test_drafts_that_the_host_tier_does_not_know(algorithm):
    check_options(context(speculative_algorithm=algorithm))
    with pytest.raises(ConfigError) as refusal:
        check_options(context(enable_hierarchical_cache=True, speculative_algorithm=algorithm))
    [line] = lines_of(refusal)
    assert line == (
        f"  --speculative-algorithm {algorithm}: the draft's state would be left behind; use one of EAGLE, EAGLE3, "
        "NEXTN, NGRAM, or leave --enable-hierarchical-cache out"
    )


@pytest.mark.parametrize("algorithm", [None, "EAGLE", "EAGLE3", "NEXTN", "NGRAM"])
def test_drafts_that_the_host_tier_knows(algorithm):
    check_options(context(enable_hierarchical_cache=True, speculative_algorithm=algorithm))


def prefill_by(backend):
    """How SGLang captures forwards."""
    return SimpleNamespace(prefill=SimpleNamespace(backend=backend))


def test_one_graph_of_the_whole_prefill(monkeypatch):
    """Only the newest version waits for what comes back before it replays one."""
    made = context(enable_hierarchical_cache=True, device="cuda", cuda_graph_config=prefill_by("full"))
    check_options(made)
    monkeypatch.setattr("cpkv.sglang.options.sglang_version", "0.5.22")
    with pytest.raises(ConfigError, match=r"prefill full in SGLang 0\.5\.22: .* use breakable"):
        check_options(made)


def test_a_model_or_an_option_for_which_sglang_keeps_no_prefixes():
    """It leaves what was given as it was, and makes a cache of the named backend all the same."""
    with pytest.raises(ConfigError) as refusal:
        check_options(context(without_cache=True, disable_radix_cache=False))
    [line] = lines_of(refusal)
    assert line == (
        "  --disable-radix-cache (set by SGLang): prefixes of this model, or with another option, cannot be kept; "
        "leave --radix-cache-backend out"
    )


def test_an_option_as_sglang_has_resolved_it(monkeypatch):
    given = ServerArgs(model_path="any")
    declare_resolution(given, "a test", cuda_graph_config=prefill_by("full"))
    assert given.cuda_graph_config is None, "what was given is left as it was"
    made = context(enable_hierarchical_cache=True)
    made.server_args = given
    monkeypatch.setattr("cpkv.sglang.options.sglang_version", "0.5.22")
    with pytest.raises(ConfigError, match=r"prefill full in SGLang 0\.5\.22"):
        check_options(made)


def test_a_decode_server_that_keeps_no_prefixes_does_not_start(models, template):
    with pytest.raises(EngineDiedError) as died:
        template.start(
            Setup("mla", 64).cached(models)
            | {"disaggregation_mode": "decode", "disaggregation_transfer_backend": "fake"}
        )
    assert "  --disaggregation-mode decode: a decode server has no cache without" in died.value.log


def test_options_that_go_together():
    check_options(context(pp_size=2, is_eagle=True, device="cuda"))
    check_options(context(enable_hierarchical_cache=True, device="cuda", cuda_graph_config=prefill_by("breakable")))
    check_options(
        context(
            enable_hierarchical_cache=True,
            disable_radix_cache=False,
            schedule_policy="lpm",
            hicache_storage_backend=None,
            disaggregation_decode_retraction_backup="cpu_tensor",
        )
    )


def test_the_engine_does_not_start_and_logs_the_message(models, template):
    options = Setup("llama", 64, drafts=True).cached(models) | {
        "enable_hierarchical_cache": True,
        "hicache_io_backend": "direct",
        "schedule_policy": "dfs-weight",
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(models / "llama"),
    }
    with pytest.raises(EngineDiedError) as died:
        template.start(options)
    assert died.value.exit_code != 0
    at = died.value.log.index("cpkv.ConfigError: --radix-cache-backend cpkv in SGLang")
    message = died.value.log[at:].splitlines()[1:3]
    assert [line.split(":")[0] for line in message] == [
        "  --schedule-policy dfs-weight",
        "  --speculative-algorithm STANDALONE",
    ]


def test_a_host_tier_that_does_not_hold_a_request_is_refused_with_the_size_that_does(models, template):
    options = Setup("llama", 64).cached(models) | {
        "enable_hierarchical_cache": True,
        "hicache_io_backend": "direct",
        "hicache_ratio": 0.5,
    }
    with pytest.raises(EngineDiedError) as died:
        template.start(options)
    assert "cpkv.ConfigError: --hicache-ratio 0.5: the host holds 8 pages of" in died.value.log
    assert "use --hicache-size" in died.value.log
