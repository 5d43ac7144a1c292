"""Requests whose pages are block ids: match, insert and evict, at every size of the cache."""

from collections.abc import Iterator
from typing import Final

from cpkv.bench.figure import Figure
from cpkv.bench.replays import flatness, pages_text, replays_in_turns
from cpkv.bench.settings import BenchSettings
from cpkv.replay import UNLIMITED, ReplaySettings

SIZES: Final = (1_000, 3_000, 10_000, 30_000, 50_000, UNLIMITED)
TARGET_US: Final = 5.0
TARGET_SPREAD: Final = 1.5


def measure_blocks(settings: BenchSettings) -> Iterator[Figure]:
    """Replay the requests with a block for a page."""
    caches = [ReplaySettings(device_pages=pages) for pages in SIZES]
    samples = replays_in_turns(settings, caches)
    for cache, taken in samples.items():
        name = f"request, blocks, {pages_text(cache.device_pages)}"
        yield Figure(name=name, unit="us", samples=taken, target=TARGET_US)
    yield flatness("request, blocks, dearest size to cheapest", samples.values(), TARGET_SPREAD)
