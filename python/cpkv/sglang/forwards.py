"""Around each forward of SGLang's scheduler: what it computes is copied as it goes.

`Scheduler.run_batch` is one forward, of the target and of the draft. It is replaced in the scheduler's own process,
by the factory and only for a cache with a host tier, so that nothing of SGLang is touched where it is not used.
"""

from functools import wraps
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from cpkv.sglang.cache import PrefixCache

_MARK = "_cpkv_copies"


def copy_forwards() -> None:
    """Let `Scheduler.run_batch` tell the cache of forwards that compute prompts. Idempotent."""
    original = Scheduler.run_batch
    if hasattr(original, _MARK):
        return

    @wraps(original)
    def run_batch(self: Any, batch: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - SGLang's
        cache = self.tree_cache
        has_tier = isinstance(cache, PrefixCache) and cache.host is not None
        if not has_tier or not batch.forward_mode.is_extend_without_speculative():
            return original(self, batch, *arguments, **named)
        with cache.forward(batch):
            return original(self, batch, *arguments, **named)

    setattr(run_batch, _MARK, True)
    Scheduler.run_batch = run_batch
