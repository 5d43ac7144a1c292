"""What SGLang calls: once in each of its processes, and once for each cache.

SGLang logs what a plugin raises while it registers, and goes on without it. So nothing is imported or checked
there that could fail; whatever is wrong is said by `make_cache`, which ends the start of the server.
"""

from typing import TYPE_CHECKING, Final

from cpkv.sglang.drafts import note_scheduler

if TYPE_CHECKING:
    from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

BACKEND: Final = "cpkv"
NOTED: Final = "sglang.srt.managers.scheduler.Scheduler.init_model_worker"


def register() -> None:
    """Make the backend known to SGLang, and ask to be told of the scheduler, which has the draft."""
    from sglang.srt.mem_cache.registry import register_radix_cache_backend  # noqa: PLC0415 - SGLang's processes only
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType  # noqa: PLC0415 - SGLang's processes only

    register_radix_cache_backend(BACKEND, make_cache)
    HookRegistry.register(NOTED, note_scheduler, HookType.AFTER)


def make_cache(context: "TreeCacheBuildContext") -> "BasePrefixCache":
    """Make the cache that SGLang's scheduler uses.

    Raises:
        ConfigError: SGLang's version is not supported, or with every option that is not.
    """
    from cpkv.sglang.factory import build  # noqa: PLC0415 - needs torch, which registering does not

    return build(context)
