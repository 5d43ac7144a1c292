"""Around each forward of SGLang's scheduler: which pages it completes is asked, and with a host tier they are copied.

`Scheduler.run_batch` is one forward, of the target and of the draft. It is replaced in the scheduler's own process,
by the factory, so that nothing of SGLang is touched where cpkv is not used.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.replacing import replace


def follow_forwards() -> None:
    """Let `Scheduler.run_batch` tell the cache of forwards that compute prompts. Idempotent."""
    replace(Scheduler, "run_batch", _run_batch)


def _run_batch(original: Callable[..., Any], scheduler: Any, batch: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    cache = scheduler.tree_cache
    if not isinstance(cache, PrefixCache) or not batch.forward_mode.is_extend_without_speculative():
        return original(scheduler, batch, *arguments, **named)
    with cache.forward(batch):
        return original(scheduler, batch, *arguments, **named)
