"""From what SGLang was started with to a cache, or to one message that says what is wrong."""

import logging
from typing import TYPE_CHECKING, Any, Final

from sglang.version import __version__ as sglang_version

import cpkv
from cpkv.sglang.adapters import ADAPTERS
from cpkv.sglang.builder import copy_drafts
from cpkv.sglang.drafts import drafts_of
from cpkv.sglang.drains import drain_before_calls
from cpkv.sglang.opening import host_of, new_manager
from cpkv.sglang.options import check_options
from cpkv.sglang.versions import interface_of
from cpkv.sglang.waits import let_wait

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from cpkv.sglang.cache import PrefixCache

_logger: Final = logging.getLogger("cpkv.sglang")


def build(context: "TreeCacheBuildContext") -> "PrefixCache":
    """Make the cache for a scheduler.

    Raises:
        ConfigError: SGLang's version or one of its options is not supported.
        HostMemoryError, RegistrationError, DriverError: The host or the GPU's driver refuses what was asked for.
    """
    interface = interface_of(sglang_version)
    check_options(context)
    params = context.params
    from cpkv.sglang.forwards import follow_forwards  # noqa: PLC0415 - brings in all of SGLang's scheduler

    if not context.enable_hierarchical_cache:
        _logger.info("%s, no host tier", _told(params))
        cache = ADAPTERS[interface](params, new_manager(params), None)
        if cache.follows_forwards:
            follow_forwards()
        return _published(cache, context)
    _logger.info("%s", _told(params))
    drafts = drafts_of(context)
    host = host_of(context, drafts)
    cache = ADAPTERS[interface](params, host.tier.cache, host)
    context.tp_worker.register_hicache_layer_transfer_counter(host.waits)
    params.token_to_kv_pool_allocator.get_kvcache().register_layer_transfer_counter(host.waits)
    let_wait([draft.pool for draft in drafts], host.tier)
    follow_forwards()
    copy_drafts()
    drain_before_calls()
    return _published(cache, context)


def _published(cache: "PrefixCache", context: "TreeCacheBuildContext") -> "PrefixCache":
    """Let Prometheus see the figures of a cache, if SGLang's are to be seen."""
    if context.params.enable_metrics:
        from cpkv.sglang.exporter import Exporter, labels_of  # noqa: PLC0415 - of no use without metrics

        counts = None if cache.host is None else cache.host.tier.counts
        cache.exporter = Exporter(cache.manager, counts, labels_of(context))
    return cache


def _told(params: Any) -> str:  # noqa: ANN401 - SGLang's
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    keys = "pair" if params.is_eagle else "token"
    return (
        f"cpkv {cpkv.__version__} in SGLang {sglang_version}: {pages} device pages of {params.page_size} tokens, "
        f"{keys} keys, policy {params.eviction_policy.lower()}"
    )
