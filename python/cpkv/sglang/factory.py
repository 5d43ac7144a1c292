"""From what SGLang was started with to a cache, or to one message that says what is wrong."""

import logging
from typing import TYPE_CHECKING

from sglang.version import __version__ as sglang_version

import cpkv
from cpkv._core import CacheManager
from cpkv.sglang.adapters import ADAPTERS
from cpkv.sglang.options import check_options
from cpkv.sglang.versions import interface_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from cpkv.sglang.cache import PrefixCache

_logger = logging.getLogger("cpkv.sglang")


def build(context: "TreeCacheBuildContext") -> "PrefixCache":
    """Make the cache for a scheduler.

    Raises:
        ConfigError: SGLang's version or one of its options is not supported.
    """
    interface = interface_of(sglang_version)
    check_options(context)
    params = context.params
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    manager = CacheManager(
        device_pages=pages + 1,  # page 0 is padding, which SGLang's allocator never gives out
        page_size=params.page_size,
        key="pair" if params.is_eagle else "token",
        device_pool="external",
        policy=params.eviction_policy.lower(),
        events=params.enable_kv_cache_events,
    )
    cache = ADAPTERS[interface](params, manager)
    _logger.info(
        "cpkv %s in SGLang %s: %d device pages of %d tokens, no host tier, %s keys, policy %s",
        cpkv.__version__,
        sglang_version,
        pages,
        params.page_size,
        "pair" if params.is_eagle else "token",
        params.eviction_policy.lower(),
    )
    return cache
