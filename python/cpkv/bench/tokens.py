"""Requests of real tokens: the same work as with blocks, eight pages for each of them."""

from collections.abc import Iterator
from typing import Final

from cpkv.bench.figure import Figure
from cpkv.bench.replays import flatness, pages_text, replays_in_turns
from cpkv.bench.settings import BenchSettings
from cpkv.replay import UNLIMITED, ReplaySettings

PAGE_SIZE: Final = 64
SIZES: Final = (8_000, 80_000, 400_000, UNLIMITED)
"""What blocks have with 1,000, 10,000 and 50,000 pages, and no limit."""
TARGET_US: Final = 15.0


def measure_tokens(settings: BenchSettings) -> Iterator[Figure]:
    """Replay the requests with pages of 64 tokens."""
    caches = [ReplaySettings(unit="tokens", page_size=PAGE_SIZE, device_pages=pages) for pages in SIZES]
    samples = replays_in_turns(settings, caches)
    for cache, taken in samples.items():
        name = f"request, tokens, {pages_text(cache.device_pages)}"
        yield Figure(name=name, unit="us", samples=taken, target=TARGET_US)
    yield flatness("request, tokens, dearest size to cheapest", samples.values(), None)
