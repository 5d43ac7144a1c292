"""Options of SGLang that cpkv does not go together with, all told at once."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sglang.version import __version__ as sglang_version

from cpkv._core import POLICIES
from cpkv.errors import ConfigError
from cpkv.sglang.drafts import WITH_STATE, WITHOUT_STATE
from cpkv.sglang.versions import WAITS_BEFORE_GRAPHS, release_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext


ALONE: Final = "leave it out, and cpkv caches on the device"


class Conflict(NamedTuple):
    """An option that cannot be had, as the user gave it, and what to do."""

    option: str
    value: object
    instead: str

    def __str__(self) -> str:
        return f"{self.option} {self.value}: {self.instead}"


_SWITCHES: Final = {
    "enable_session_radix_cache": "sessions are kept by SGLang's own tree only; leave it out",
    "enable_streaming_session": "sessions are kept by SGLang's own tree only; leave it out",
    "enable_lmcache": "LMCache is a cache of its own; leave one of the two out",
    "enable_flexkv": "FlexKV is a cache of its own; leave one of the two out",
    "enable_unified_cache_external_linker": "links SGLang's own tree only; leave it out",
    "enable_kv_cache_sharding": "SGLang shards the pages of its own tree only; leave it out",
    "enable_hisparse": "keeps its host pages by SGLang's own tree only; leave it out",
}
"""Flags that must not be set. Not every version has all of them."""

_VALUES: Final = {
    "schedule_policy": ("dfs-weight", "it walks SGLang's own tree; use lpm or fcfs"),
    "hicache_storage_backend": (None, "there is no third tier; leave it out"),
    "disaggregation_decode_retraction_backup": ("host_pool", "needs SGLang's own host pool; use cpu_tensor or none"),
    "dllm_algorithm": (None, "use SGLang's own tree for this model"),
}
"""Options that must not have a value; `None` for any."""


def check_options(context: "TreeCacheBuildContext") -> None:
    """Refuse what does not go together.

    Raises:
        ConfigError: With SGLang's version, and every option, its value and what to use instead.
    """
    conflicts = list(_conflicts(context))
    if conflicts:
        lines = "".join(f"\n  {conflict}" for conflict in conflicts)
        message = f"--radix-cache-backend cpkv in SGLang {sglang_version} does not go together with{lines}"
        raise ConfigError(message)


def _conflicts(context: "TreeCacheBuildContext") -> Iterator[Conflict]:
    given, params = context.server_args, context.params
    yield from _without_cache(context)
    for switch, instead in _SWITCHES.items():
        if _of(given, switch):
            yield Conflict(_flag(switch), "(set)", instead)
    for option, (refused, instead) in _VALUES.items():
        value = _of(given, option)
        if value and refused in {None, value}:
            yield Conflict(_flag(option), value, instead)
    for layers, are_there in {
        "sliding-window": context.is_hybrid_swa,
        "recurrent (Mamba)": context.is_hybrid_ssm,
    }.items():
        if are_there:
            yield Conflict(f"the model's {layers} layers", "(found)", "use SGLang's own tree for this model")
    policy = params.eviction_policy
    if policy.lower() not in POLICIES:
        yield Conflict("--radix-eviction-policy", policy, f"use one of {', '.join(POLICIES)}")
    if context.enable_hierarchical_cache:
        yield from _host_conflicts(context)
    allocator_page = params.token_to_kv_pool_allocator.page_size
    if allocator_page != params.page_size:
        instead = f"the allocator's pages have {allocator_page} tokens; leave decode context parallelism out"
        yield Conflict("--page-size", params.page_size, instead)


def _without_cache(context: "TreeCacheBuildContext") -> Iterator[Conflict]:
    """SGLang finds no prefixes: it was told so, or does so for some models and options of its own accord.

    What it makes all the same is a cache of the backend that was named. With one that finds prefixes, answers would be
    wrong where attention looks ahead, and on a decode server what is kept would never be given up.
    """
    given = context.server_args
    if getattr(given, "disable_radix_cache", False):
        yield Conflict("--disable-radix-cache", "(set)", "there is no cache to replace; leave one of the two out")
    elif context.disable_radix_cache and _of(given, "disaggregation_mode") == "decode":
        instead = "a decode server has no cache without --disaggregation-decode-enable-radix-cache; set it, or leave "
        yield Conflict("--disaggregation-mode", "decode", f"{instead}--radix-cache-backend out")
    elif context.disable_radix_cache:
        instead = "prefixes of this model, or with another option, cannot be kept; leave --radix-cache-backend out"
        yield Conflict("--disable-radix-cache", "(set by SGLang)", instead)


def setting(context: "TreeCacheBuildContext", option: str) -> Any:  # noqa: ANN401 - an option may be anything
    """Return an option as SGLang has resolved it, which later versions keep apart from what was given."""
    try:
        from sglang.srt.runtime_context import get_memory  # noqa: PLC0415 - not in every version
    except ImportError:
        return getattr(context.server_args, option)
    return getattr(get_memory(), option)


def _host_conflicts(context: "TreeCacheBuildContext") -> Iterator[Conflict]:
    """What the host tier does not go together with."""
    option = "--enable-hierarchical-cache"
    params = context.params
    if params.pp_size > 1:
        instead = f"stages, each in the middle of other batches, would have to agree what the host holds; {ALONE}"
        yield Conflict(option, f"with --pp-size {params.pp_size}", instead)
    given = context.server_args
    if _of(given, "disaggregation_mode") == "decode":
        instead = f"a decode server brings prefixes back to SGLang's own tree only; {ALONE}"
        yield Conflict(option, "with --disaggregation-mode decode", instead)
    if _of(given, "enable_pdmux"):
        yield Conflict(option, "with --enable-pdmux", f"it computes a prompt in pieces of layers; {ALONE}")
    if _of(given, "enable_unified_memory"):
        yield Conflict(option, "with --enable-unified-memory", f"its pages have no place of their own; {ALONE}")
    graphs = _of(given, "cuda_graph_config")
    is_one_graph = graphs is not None and graphs.prefill.backend == "full"
    if is_one_graph and release_of(sglang_version) not in WAITS_BEFORE_GRAPHS:
        instead = "nothing waits there for what comes back from the host; use breakable, or disabled"
        yield Conflict(option, f"with --cuda-graph-backend-prefill full in SGLang {sglang_version}", instead)
    algorithm = context.tp_worker.model_runner.spec_algorithm.name
    if algorithm not in WITH_STATE and algorithm not in WITHOUT_STATE:
        known = ", ".join(name for name in (*WITH_STATE, "NEXTN", *WITHOUT_STATE) if name != "NONE")
        instead = f"the draft's state would be left behind; use one of {known}, or leave {option} out"
        yield Conflict("--speculative-algorithm", algorithm, instead)


def _of(given: Any, option: str) -> Any:  # noqa: ANN401 - an option may be anything
    """The value of an option as SGLang has resolved it; `None` in a version that does not have it."""
    try:
        from sglang.srt.arg_groups.overrides import resolution_result  # noqa: PLC0415 - not in every version
    except ImportError:
        return getattr(given, option, None)
    return resolution_result(given, option)


def _flag(option: str) -> str:
    return "--" + option.replace("_", "-")
