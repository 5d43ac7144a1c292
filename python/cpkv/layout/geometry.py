"""Whether cache, device pool and host pool speak of the same pages, and both pools have memory of their own."""

from cpkv._core import CacheManager
from cpkv.errors import ConfigError
from cpkv.layout.device_pool import DevicePool
from cpkv.layout.host_pool import HostPool


def check_geometry(cache: CacheManager, device: DevicePool, host: HostPool) -> None:
    """Refuse pools that a cache cannot be backed by.

    Raises:
        ConfigError: With everything that does not fit.
    """
    layout = host.layout
    conflicts = []
    if device.layout != layout:
        conflicts.append("device pool and host pool have different layouts")
    pages = -(-cache.device_pages // cache.lanes)
    for what, seen, wanted in (
        ("page_size of the layout", layout.page_size, cache.page_size),
        ("segment_pages of the host pool", host.segment_pages, cache.segment_pages),
        ("slots of the host pool", host.slots, cache.host_slots // cache.lanes),
    ):
        if seen != wanted:
            conflicts.append(f"{what} is {seen}, want {wanted} as the cache has it")
    if device.pages < pages:
        conflicts.append(f"the device pool has {device.pages} pages, want at least {pages} for each lane")
    striped = [component.name for component in layout.components if not component.is_replicated]
    if cache.lanes > 1 and striped:
        conflicts += [
            f"{component.name} is replicated on every rank and {', '.join(striped)} striped over {cache.lanes} lanes: "
            "their pages cannot share slots"
            for component in layout.components
            if component.is_replicated
        ]
    has_draft = any(row.component.model == "draft" for row in layout.rows)
    if has_draft != cache.draft:
        conflicts.append(
            f"the layout has {'a' if has_draft else 'no'} draft, and the cache was made with draft={cache.draft}"
        )
    if conflicts:
        raise ConfigError("; ".join(conflicts))


def check_memory(device: DevicePool, host: HostPool) -> None:
    """Refuse pools between which nothing can be copied. Those that are for offsets only need no memory.

    Raises:
        ConfigError: The host pool has no memory, or shares some with buffers of the device pool.
    """
    if not host.address:
        message = f"the host pool has {host.bytes} bytes at address 0, want the address of its memory"
        raise ConfigError(message)
    end = host.address + host.bytes
    shared = [
        f"buffer {place} of {name} (bytes {begin} to {buffers.end(place) - 1})"
        for name, buffers in device.buffers.items()
        for place, begin in enumerate(buffers.addresses)
        if begin < end and host.address < buffers.end(place)
    ]
    if shared:
        message = f"the host pool (bytes {host.address} to {end - 1}) overlaps {', '.join(shared)}"
        raise ConfigError(message)
