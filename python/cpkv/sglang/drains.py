"""Calls of SGLang's scheduler that wait for copies: flushes, those that take device memory away, and answers.

SGLang refuses a flush, or ends, while the cache has copies under way. In a pause nobody would hear of the end of these,
since only a scheduler that looks for work ticks. So copies are waited for before such a call, and ticks go on in a
pause. And a request may end with the forward that reads what was restored: before its answer goes out, a tick tells
whether that was there. As in `forwards`, methods are replaced in the scheduler's own process, for a cache with a host
tier.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE

from cpkv.drivers import HostTier
from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.replacing import replace


def drain_before_calls() -> None:
    """Replace the methods. Idempotent."""
    # All of SGLang's scheduler.
    from sglang.srt.managers.scheduler import Scheduler  # noqa: PLC0415
    from sglang.srt.managers.scheduler_components.weight_updater import (  # noqa: PLC0415
        SchedulerWeightUpdaterManager,
    )

    replace(Scheduler, "process_input_requests", _process_input_requests)
    replace(Scheduler, "process_batch_result", _process_batch_result)
    replace(Scheduler, "flush_cache", _flush_cache)
    replace(SchedulerWeightUpdaterManager, "release_memory_occupation", _release_memory_occupation)
    replace(SchedulerWeightUpdaterManager, "resume_memory_occupation", _resume_memory_occupation)


def _process_input_requests(original: Callable[..., Any], scheduler: Any, *arguments: Any) -> Any:  # noqa: ANN401
    """In each round, also one of a pause."""
    if scheduler._engine_paused and _tier_of(scheduler) is not None:  # noqa: SLF001 - SGLang has no name for it
        scheduler.tree_cache.check_hicache_events()
    return original(scheduler, *arguments)


def _process_batch_result(original: Callable[..., Any], scheduler: Any, batch: Any, result: Any) -> Any:  # noqa: ANN401
    """When the forward has ended, so have the restores that it has read."""
    tier = _tier_of(scheduler)
    if tier is not None and batch.forward_mode.is_extend() and tier.cache.stats().restoring_pages:
        if result.copy_done is not None:
            result.copy_done.synchronize()  # as SGLang is about to do
        scheduler.tree_cache.hear_of_restores(batch)
    return original(scheduler, batch, result)


def _flush_cache(original: Callable[..., Any], scheduler: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    """Also after weights have changed, where a refusal would leave what the old ones have computed."""
    if _tier_of(scheduler) is not None:
        scheduler.tree_cache.drain()
    return original(scheduler, *arguments, **named)


def _release_memory_occupation(original: Callable[..., Any], updater: Any, request: Any) -> Any:  # noqa: ANN401
    """No copy is under way while the memory of the pools is gone, and none begins."""
    tier = _tier_of(updater.scheduler)
    if tier is None:
        return original(updater, request)
    updater.scheduler.tree_cache.drain()
    if not _takes_kv(request):
        return original(updater, request)
    tier.pause()
    try:
        return original(updater, request)
    except BaseException:
        tier.resume()
        raise


def _resume_memory_occupation(original: Callable[..., Any], updater: Any, request: Any) -> Any:  # noqa: ANN401
    """The pools lie where they have lain."""
    result = original(updater, request)
    tier = _tier_of(updater.scheduler)
    if tier is not None and _takes_kv(request):
        tier.resume()
    return result


def _takes_kv(request: Any) -> bool:  # noqa: ANN401 - SGLang's
    """Whether the pools are among what is asked for, which is everything if nothing is named."""
    return not request.tags or GPU_MEMORY_TYPE_KV_CACHE in request.tags


def _tier_of(scheduler: Any) -> HostTier | None:  # noqa: ANN401 - SGLang's
    cache = scheduler.tree_cache
    return cache.host.tier if isinstance(cache, PrefixCache) and cache.host is not None else None
