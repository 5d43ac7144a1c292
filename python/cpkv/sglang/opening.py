"""The host tier as SGLang was asked for it: whose state, how much memory, and what copies."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch

from cpkv._core import CacheManager
from cpkv.device import ComputeStream, CopyEngine, EngineName
from cpkv.drivers import open_tier, torch_stream
from cpkv.errors import ConfigError
from cpkv.sglang.breaks import AttentionBreaks
from cpkv.sglang.drafts import Draft
from cpkv.sglang.host import Host
from cpkv.sglang.options import ALONE, setting
from cpkv.sglang.ranks import ONE, Ranks, meet
from cpkv.sglang.state import State, describe

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

SEGMENT_PAGES: Final = 32
WRITES: Final = {"write_through": "through", "write_through_selective": "selective", "write_back": "back"}
"""SGLang's names of the write policies, and cpkv's."""
CLEAN_SHARE: Final = 10
"""With `write_back` one page in so many has a host copy before it has to go."""
GB: Final = 10**9
UNITS: Final = {"GB": GB, "MB": 10**6, "KB": 10**3}
LAYER_PATHS: Final = (
    "model.layers",
    "language_model.model.layers",
    "model.language_model.layers",
    "model.decoder",
    "model.midlayer",
    "model.mtp_block",
)
"""Where SGLang's models have their layers. Those at the end are of drafts that have one."""

_logger: Final = logging.getLogger("cpkv.sglang")


def new_manager(params: Any, **host: Any) -> CacheManager:  # noqa: ANN401 - SGLang's, and what the host tier adds
    """Make what decides about the pages of SGLang's allocator.

    Raises:
        ConfigError: With everything that does not fit.
    """
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    events = params.enable_kv_cache_events
    return CacheManager(
        device_pages=pages + 1,  # page 0 is padding, which SGLang's allocator never gives out
        page_size=params.page_size,
        key="pair" if params.is_eagle else "token",
        device_pool="external",
        policy=params.eviction_policy.lower(),
        **{"events": events} | host,
    )


def open_host(  # noqa: PLR0913 - one for each choice
    params: Any,  # noqa: ANN401 - SGLang's
    state: State,
    layers: Iterable[Any],
    *,
    slots: int,
    attention: Any = None,  # noqa: ANN401 - SGLang's
    first_layer: int = 0,
    drafts: Sequence[Draft] = (),
    write: str = "through",
    engine: EngineName | CopyEngine = "cpu",
    device: int = 0,
    compute_stream: Callable[[], ComputeStream] = lambda: None,
    in_stream_order: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ranks: Ranks = ONE,
) -> Host:
    """Take the memory, and hook the model's layers.

    Args:
        params: What SGLang makes every cache of.
        state: What its pools hold of a page.
        layers: The target's decoder layers, in order.
        slots: Pages that the host holds.
        attention: What computes the target's attention, if it may be replayed from a graph.
        first_layer: The target's first layer in SGLang's count.
        drafts: The draft, or each depth of it.
        write: When a page is copied, as `CacheManager` has it.
        engine: What copies.
        device: Which GPU.
        compute_stream: Where the calling thread computes.
        in_stream_order: Enters what puts copies behind the forwards that are queued.
        ranks: Those that share the tree.

    Raises:
        ConfigError: With everything that does not fit.
        LogError: The ranks do not come together.
        HostMemoryError, RegistrationError, DriverError: The host or the GPU's driver refuses.
    """
    pages = params.token_to_kv_pool_allocator.size // params.page_size
    manager = new_manager(
        params,
        host_slots=slots,
        segment_pages=min(SEGMENT_PAGES, slots),
        draft=bool(state.layout.draft_layers),
        copies="tracked",
        write=write,
        clean_pages=max(pages // CLEAN_SHARE, 1) if write == "back" else 0,
        events=params.enable_kv_cache_events or ranks.has_events,
    )
    with ExitStack() as undo:
        log = ranks.attach(manager)
        if log is not None:
            undo.callback(log.close)
        tier = open_tier(
            manager,
            state.layout,
            state.buffers,
            engine=engine,
            device=device,
            ranks_on_host=ranks.on_host,
            before_mapping=ranks.wait,
            compute_stream=compute_stream,
        )
        undo.callback(tier.close)
        breaks = []
        if attention is not None:
            count = state.layout.target_layers
            breaks.append(AttentionBreaks(tier, attention, first=first_layer, start=0, layers=count))
        start = state.layout.target_layers
        for draft in drafts:
            first, count = draft.pool.start_layer, draft.pool.layer_num
            breaks.append(AttentionBreaks(tier, draft.attention, first=first, start=start, layers=count))
            start += count
        draft_layers = [layer for draft in drafts for layer in decoder_layers(draft.model)]
        host = Host(
            tier,
            manager,
            layers,
            breaks,
            in_stream_order,
            draft_layers=draft_layers,
            keeps_clean=write == "back",
            drops_events=not params.enable_kv_cache_events and ranks.has_events,
            log=log,
        )
        undo.pop_all()
    return host


def host_of(context: "TreeCacheBuildContext", drafts: Sequence[Draft]) -> Host:
    """Make the host tier of a scheduler.

    Args:
        context: What SGLang makes every cache of.
        drafts: Its draft, or each depth of it.

    Raises:
        ConfigError: The model's state is not known, or what was asked for does not hold a request.
        LogError: The ranks do not come together.
        HostMemoryError, RegistrationError, DriverError: The host or the GPU's driver refuses.
    """
    params, runner = context.params, context.tp_worker.model_runner
    pool = params.token_to_kv_pool_allocator.get_kvcache()
    state = describe(pool, params.page_size, [draft.pool for draft in drafts])
    layers = decoder_layers(runner.model)
    ranks = meet(params, _slots(context, state))
    device = torch.device(params.token_to_kv_pool_allocator.device)
    on_gpu: dict[str, Any] = {}
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        on_gpu = {
            "engine": "cuda",
            "device": index,
            "compute_stream": torch_stream(index),
            "in_stream_order": _stream_order(runner),
        }
    write = WRITES[setting(context, "hicache_write_policy")]
    host = open_host(
        params,
        state,
        layers,
        slots=ranks.slots,
        attention=runner.attn_backend,
        first_layer=pool.start_layer,
        drafts=drafts,
        write=write,
        ranks=ranks,
        **on_gpu,
    )
    slots, slot_bytes = host.tier.cache.host_slots, state.layout.slot_bytes
    _logger.info(
        "host tier: %d slots of %d bytes (%s), written %s, copied by the engine %s, %s",
        slots,
        slot_bytes,
        readable(slots * slot_bytes),
        write,
        host.tier.engine.name,
        ranks,
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
        enough_gb = most * state.layout.slot_bytes / GB
        option = f"--hicache-size {size_gb}" if size_gb else f"--hicache-ratio {ratio}"
        message = (
            f"{option}: the host holds {slots} pages of {state.layout.slot_bytes} bytes, "
            f"want at least the {most} of one request: use --hicache-size {enough_gb:.3f} or more"
        )
        raise ConfigError(message)
    return slots


def readable(size_bytes: int) -> str:
    """Return a size for people, in the units of `--hicache-size` or smaller ones."""
    unit = next((unit for unit, unit_bytes in UNITS.items() if size_bytes >= unit_bytes), "KB")
    return f"{size_bytes / UNITS[unit]:.2f} {unit}"


def decoder_layers(model: Any) -> list[Any]:  # noqa: ANN401 - a torch module
    """Return the decoder layers of a model of SGLang, a target or a draft, in order.

    Raises:
        ConfigError: They are not where SGLang's models have them.
    """
    for path in LAYER_PATHS:
        found: Any = model
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return list(found) if isinstance(found, torch.nn.ModuleList) else [found]
    message = (
        f"--enable-hierarchical-cache: the layers of {type(model).__name__} are not known, "
        f"want one of {', '.join(LAYER_PATHS)}; {ALONE}"
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
