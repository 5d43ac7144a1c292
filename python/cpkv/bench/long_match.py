"""The match of a long prompt that is all there, beside comparing its tokens once."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from cpkv._core import CacheManager
from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.bench.timing import cpu_microseconds, ratios
from cpkv.errors import IntegrityError

PAGE_SIZE: Final = 64
TOKENS: Final = 131_072
NODES: Final = 32
TURNS: Final = 20
"""In each repeat."""
TARGET_RATIO: Final = 1.5


def measure_long_match(settings: BenchSettings) -> Iterator[Figure]:
    """Match 128k tokens, and compare them with a copy."""
    prompt = np.arange(TOKENS, dtype=np.int64)
    copy = prompt.copy()
    cache = _cache_of(prompt)
    matches, floors = [], []
    for _ in range(settings.repeats * TURNS):
        matches.append(cpu_microseconds(lambda: cache.match(prompt)))
        floors.append(cpu_microseconds(lambda: np.array_equal(prompt, copy)))
    size = f"{TOKENS // 1024}k tokens"
    yield Figure(name=f"match, {size} over {NODES} nodes", unit="us", samples=tuple(matches))
    yield Figure(name=f"numpy.array_equal, {size}", unit="us", samples=tuple(floors))
    taken = ratios(matches, floors, settings.repeats)
    yield Figure(name=f"match, {size}, to array_equal", unit="x", samples=taken, target=TARGET_RATIO)


def _cache_of(prompt: np.ndarray[tuple[int], np.dtype[np.int64]]) -> CacheManager:
    """Return a cache with the prompt in as many nodes: other prompts part from it at each end."""
    pages, ends = TOKENS // PAGE_SIZE, range(TOKENS // NODES, TOKENS, TOKENS // NODES)
    cache = CacheManager(page_size=PAGE_SIZE, device_pages=pages + len(ends))
    own, strange = cache.allocate(pages), cache.allocate(len(ends))
    if own is None or strange is None:
        message = f"no pages in a cache with room for all: {cache.stats()!r}"
        raise IntegrityError(message)
    cache.insert(prompt, own)
    for place, end in enumerate(ends):
        others = np.concatenate([prompt[:end], np.arange(-PAGE_SIZE, 0)])
        cache.insert(others, np.concatenate([own[: end // PAGE_SIZE], strange[place : place + 1]]))
    # The root, those of the prompt, and one for each prompt that parts from it.
    tokens, nodes, wanted = cache.match(prompt).tokens, cache.stats().nodes, 1 + NODES + len(ends)
    if tokens != TOKENS or nodes != wanted:
        message = f"{tokens} tokens and {nodes} nodes, want {TOKENS} and {wanted}"
        raise IntegrityError(message)
    return cache
