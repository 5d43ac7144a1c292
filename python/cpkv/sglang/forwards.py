"""Around each forward of SGLang's scheduler: what it computes is copied as it goes.

`Scheduler.run_batch` is one forward, of the target and of the draft. It is replaced in the scheduler's own process,
by the factory and only for a cache with a host tier, so that nothing of SGLang is touched where it is not used.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.replacing import replace


def copy_forwards() -> None:
    """Let `Scheduler.run_batch` tell the cache of forwards that compute prompts. Idempotent."""
    replace(Scheduler, "run_batch", _run_batch)


def _run_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    cache = scheduler.tree_cache
    has_tier = isinstance(cache, PrefixCache) and cache.host is not None
    if not has_tier or not batch.forward_mode.is_extend_without_speculative():
        return original(scheduler, batch, *arguments, **named)
    with cache.forward(batch):
        return original(scheduler, batch, *arguments, **named)
