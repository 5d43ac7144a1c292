"""A host tier with everything that it needs: engine, host memory, pools."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from cpkv._core import CacheManager
from cpkv.device import ComputeStream, CopyEngine, EngineName, open_engine
from cpkv.device.cuda import CopyPath
from cpkv.drivers.tier import HostTier
from cpkv.errors import ConfigError
from cpkv.host import CudaRegistrar, HostMemory, Placement, Progress, gpu_node
from cpkv.layout import Buffers, DevicePool, HostPool, PageLayout


def open_tier(  # noqa: PLR0913 - one for each choice
    cache: CacheManager,
    layout: PageLayout,
    buffers: Mapping[str, Buffers],
    *,
    engine: EngineName | CopyEngine = "auto",
    device: int = 0,
    copy_path: CopyPath | None = None,
    placement: Placement | None = None,
    ranks_on_host: int = 1,
    before_mapping: Callable[[], None] | None = None,
    progress: Progress | None = None,
    compute_stream: Callable[[], ComputeStream] = lambda: None,
) -> HostTier:
    """Take host memory for the slots of this rank's lane, and put a tier together that owns it.

    With the engine `"cuda"` the memory is pinned and near to the GPU.

    Args:
        cache: With `copies="tracked"` and a host tier.
        layout: What a page has.
        buffers: The engine's own device memory: for each component its buffers.
        engine: What copies: a name, see `open_engine`, or an engine that is closed with the tier.
        device: Which GPU, as the process counts them.
        copy_path: How a GPU copies.
        placement: What kind of host memory; its node is that of the GPU if none is given.
        ranks_on_host: How many ranks share what the host can give.
        before_mapping: The ranks' barrier between looking at what there is and taking it.
        progress: Called with the bytes that are touched and all bytes.
        compute_stream: See `HostTier`.

    Raises:
        ConfigError: With everything that does not fit.
        HostMemoryError: The host cannot give as much; the message has the figures.
        RegistrationError, DriverError, CopyError: The driver of the GPU refuses.
    """
    if not cache.host_slots:
        message = "host_slots is 0, want a cache with a host tier"
        raise ConfigError(message)
    pool = DevicePool(layout, buffers)
    slots = cache.host_slots // cache.lanes
    with ExitStack() as undo:
        copies = engine if not isinstance(engine, str) else open_engine(engine, device=device, copy_path=copy_path)
        undo.callback(copies.close)
        registrar = CudaRegistrar(device) if copies.name == "cuda" else None
        place = placement or Placement()
        if registrar is not None and place.node is None:
            place = Placement(place.kind, place.pages, gpu_node(registrar.device.pci_address))
        memory = HostMemory(
            slots * layout.slot_bytes,
            cache.segment_pages * layout.slot_bytes,
            place,
            ranks_on_host=ranks_on_host,
            registrar=registrar,
            before_mapping=before_mapping,
            progress=progress,
            before_unmap=[copies.close],
        )
        undo.callback(memory.close)
        host = HostPool(layout=layout, slots=slots, segment_pages=cache.segment_pages, address=memory.address)
        tier = HostTier(cache, copies, pool, host, compute_stream=compute_stream, memory=memory)
        undo.pop_all()
    return tier
