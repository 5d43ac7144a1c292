"""What the cache needs to know of a token, besides the token: bytes of metadata, both tiers resident."""

from collections.abc import Iterator
from typing import Final

from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.replay import UNLIMITED, Replay, ReplaySettings

PAGE_SIZE: Final = 64
TOKEN_BYTES: Final = 4
TARGET_BYTES: Final = 1.0


def measure_metadata(settings: BenchSettings) -> Iterator[Figure]:
    """Insert all prompts, written through to a host as large as the device, and nothing evicted."""
    cache = ReplaySettings(unit="tokens", page_size=PAGE_SIZE, device_pages=UNLIMITED, host_pages=UNLIMITED)
    replay = Replay(cache)
    replay.run(settings.requests)
    stats = replay.cache.stats()
    beyond = stats.metadata_bytes / max(stats.pages * PAGE_SIZE, 1) - TOKEN_BYTES
    resident = f"{stats.device_cached_pages:,} pages on the device, {stats.host_mirror_slots:,} of them on the host"
    yield Figure(
        name=f"metadata beyond {TOKEN_BYTES} bytes a token",
        unit="bytes",
        samples=(beyond,),
        target=TARGET_BYTES,
        note=resident,
    )
