"""SGLang's builder of caches, which hands a draft to its own host cache as soon as the cache is made.

With another cache it raises: since 0.5.19 for a draft beside the target ("HiCache draft pools require
UnifiedRadixCache"), in 0.5.18 as well, since it asks for that cache's controller, and in 0.5.17 for every draft. It is
replaced in the scheduler's own process, by the factory and only for a cache with a host tier, which copies the draft's
state with the target's.
"""

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache import kv_cache_builder

from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.replacing import replace


def copy_drafts() -> None:
    """Let SGLang's builder leave the draft to a cache of cpkv. Idempotent."""
    replace(kv_cache_builder, "maybe_register_hicache_draft", _register_draft)


def _register_draft(original: Callable[..., Any], *, tree_cache: Any, **named: Any) -> None:  # noqa: ANN401 - SGLang's
    if not isinstance(tree_cache, PrefixCache):
        original(tree_cache=tree_cache, **named)
