"""From what SGLang was started with to a cache, or to one message that says what is wrong."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from sglang.version import __version__ as sglang_version

import cpkv
from cpkv._core import CacheManager
from cpkv.drivers import open_tier, torch_stream
from cpkv.errors import ConfigError
from cpkv.sglang.adapters import ADAPTERS
from cpkv.sglang.host import Host
from cpkv.sglang.options import check_options, setting
from cpkv.sglang.state import State, describe
from cpkv.sglang.versions import Interface, interface_of

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

    from cpkv.sglang.cache import PrefixCache

SEGMENT_PAGES: Final = 32
WRITES: Final = {"write_through": "through", "write_through_selective": "selective", "write_back": "back"}
"""SGLang's names of the write policies, and cpkv's."""
CLEAN_SHARE: Final = 10
"""With `write_back` one page in so many has a host copy before it has to go."""
GB: Final = 10**9

_logger = logging.getLogger("cpkv.sglang")


def build(context: "TreeCacheBuildContext") -> "PrefixCache":
    """Make the cache for a scheduler.

    Raises:
        ConfigError: SGLang's version or one of its options is not supported.
        HostMemoryError, RegistrationError: The host cannot give the memory that was asked for.
    """
    interface = interface_of(sglang_version)
    check_options(context)
    params = context.params
    if not context.enable_hierarchical_cache:
        cache = ADAPTERS[interface](params, _manager(params), None)
        _logger.info("%s, no host tier", _told(params))
        return cache
    if interface is not Interface.CHECKPOINT:
        message = (
            f"--enable-hierarchical-cache: the host tier needs SGLang 0.5.22 or 0.5.23, and this is {sglang_version}: "
            "leave it out, and cpkv caches on the device"
        )
        raise ConfigError(message)
    from cpkv.sglang.forwards import copy_forwards  # noqa: PLC0415 - brings in all of SGLang's scheduler

    host = _host(context)
    cache = ADAPTERS[interface](params, host.tier.cache, host)
    context.tp_worker.register_hicache_layer_transfer_counter(host.waits)
    params.token_to_kv_pool_allocator.get_kvcache().register_layer_transfer_counter(host.waits)
    copy_forwards()
    return cache


def _manager(params: Any, **host: Any) -> CacheManager:  # noqa: ANN401 - SGLang's, and what the host tier adds
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    return CacheManager(
        device_pages=pages + 1,  # page 0 is padding, which SGLang's allocator never gives out
        page_size=params.page_size,
        key="pair" if params.is_eagle else "token",
        device_pool="external",
        policy=params.eviction_policy.lower(),
        events=params.enable_kv_cache_events,
        **host,
    )


def _host(context: "TreeCacheBuildContext") -> Host:
    """Take the memory, and hook the model.

    Raises:
        ConfigError: The model's state is not known, or what was asked for does not hold a request.
    """
    params, worker = context.params, context.tp_worker
    pool = params.token_to_kv_pool_allocator.get_kvcache()
    state = describe(pool, params.page_size)
    layers = decoder_layers(worker.model_runner.model)
    slots = _slots(context, state)
    write = WRITES[setting(context, "hicache_write_policy")]
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    manager = _manager(
        params,
        host_slots=slots,
        segment_pages=min(SEGMENT_PAGES, slots),
        copies="tracked",
        write=write,
        clean_pages=max(pages // CLEAN_SHARE, 1) if write == "back" else 0,
    )
    device = torch.device(params.token_to_kv_pool_allocator.device)
    is_on_gpu = device.type == "cuda"
    index = device.index if device.index is not None else torch.cuda.current_device() if is_on_gpu else 0
    tier = open_tier(
        manager,
        state.layout,
        state.buffers,
        engine="cuda" if is_on_gpu else "cpu",
        device=index,
        compute_stream=torch_stream(index) if is_on_gpu else lambda: None,
    )
    try:
        host = Host(tier, manager, layers, _stream_order(worker.model_runner) if is_on_gpu else nullcontext)
    except BaseException:
        tier.close()
        raise
    slot_bytes = state.layout.slot_bytes
    _logger.info(
        "%s, %d host slots of %d bytes (%.2f GB), written %s, copied by %s",
        _told(params),
        manager.host_slots,
        slot_bytes,
        manager.host_slots * slot_bytes / GB,
        write,
        tier.engine.name,
    )
    return host


def _slots(context: "TreeCacheBuildContext", state: State) -> int:
    """Return how many pages of this rank the host holds, by `--hicache-size` or `--hicache-ratio`.

    Raises:
        ConfigError: They do not hold a request of the length that is served.
    """
    params = context.params
    size_gb, ratio = setting(context, "hicache_size"), setting(context, "hicache_ratio")
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    slots = int(size_gb * GB) // state.layout.slot_bytes if size_gb else int(pages * ratio)
    most = min(context.model_config.context_len // params.page_size, pages)
    if slots < most:
        option = f"--hicache-size {size_gb}" if size_gb else f"--hicache-ratio {ratio}"
        message = (
            f"{option}: the host holds {slots} pages of {state.layout.slot_bytes} bytes, "
            f"want at least the {most} of one request: use --hicache-size {most * state.layout.slot_bytes / GB:.3f} or more"
        )
        raise ConfigError(message)
    return slots


def decoder_layers(model: Any) -> list[Any]:  # noqa: ANN401 - a torch module
    """Return the decoder layers of a model of SGLang, in order.

    Raises:
        ConfigError: They are not where SGLang's models have them.
    """
    for path in ("model.layers", "language_model.model.layers", "model.language_model.layers"):
        found: Any = model
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return list(found)
    message = (
        f"--enable-hierarchical-cache: the layers of {type(model).__name__} are not known, want model.layers; "
        "leave the option out, and cpkv caches on the device"
    )
    raise ConfigError(message)


def _stream_order(runner: Any) -> Callable[[], AbstractContextManager[Any]]:  # noqa: ANN401 - SGLang's
    """Return what enters the stream of the forwards, behind what the scheduler has queued."""

    def enter() -> AbstractContextManager[Any]:
        stream = runner.forward_stream
        stream.wait_stream(torch.cuda.current_stream())
        entered: AbstractContextManager[Any] = torch.cuda.stream(stream)
        return entered

    return enter


def _told(params: Any) -> str:  # noqa: ANN401 - SGLang's
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    keys = "pair" if params.is_eagle else "token"
    return (
        f"cpkv {cpkv.__version__} in SGLang {sglang_version}: {pages} device pages of {params.page_size} tokens, "
        f"{keys} keys, policy {params.eviction_policy.lower()}"
    )
