"""The insertion of a long prompt with pair keys, half of it new, beside comparing and copying tokens."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from cpkv._core import CacheManager, PageIds
from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.bench.timing import cpu_microseconds, ratios
from cpkv.errors import IntegrityError

PAGE_SIZE: Final = 64
TOKENS: Final = 131_072
HALF: Final = TOKENS // 2
PAGES: Final = HALF // PAGE_SIZE
"""Of each half; the last of the second lacks the token behind it."""
TURNS: Final = 20
"""In each repeat."""
TARGET_RATIO: Final = 2.0


def measure_pair_insert(settings: BenchSettings) -> Iterator[Figure]:
    """Insert 128k tokens of which the first half is there, and do to an array what that takes."""
    prompt = np.arange(TOKENS + 1, dtype=np.int64)
    copy = prompt.copy()
    cache = CacheManager(page_size=PAGE_SIZE, key="pair", device_pages=4 * PAGES)
    base = prompt[: HALF + 1].copy()
    cache.insert(base, _allocated(cache, PAGES))
    repeated = _allocated(cache, PAGES)
    inserts, floors = [], []
    with cache.lock(cache.match(base)):
        for turn in range(settings.repeats * TURNS):
            # The token at the border belongs to the last page of the first half as well.
            prompt[HALF + 1 :] += TOKENS
            pages = np.concatenate([repeated, _allocated(cache, PAGES)])
            inserts.append(cpu_microseconds(lambda pages=pages: cache.insert(prompt, pages)))  # type: ignore[misc]
            floors.append(cpu_microseconds(lambda: (np.array_equal(prompt[:HALF], copy[:HALF]), prompt[HALF:].copy())))
            _check(cache, (turn + 1) * PAGES + PAGES)
            cache.evict(0, PAGES)
    size = f"{TOKENS // 1024}k tokens, half new"
    yield Figure(name=f"pair insert, {size}", unit="us", samples=tuple(inserts))
    yield Figure(name=f"numpy.array_equal and copy, {size}", unit="us", samples=tuple(floors))
    taken = ratios(inserts, floors, settings.repeats)
    yield Figure(name=f"pair insert, {size}, to both", unit="x", samples=taken, target=TARGET_RATIO)


def _allocated(cache: CacheManager, count: int) -> PageIds:
    pages = cache.allocate(count)
    if pages is None:
        message = f"no {count} pages in a cache with room for them: {cache.stats()!r}"
        raise IntegrityError(message)
    return pages


def _check(cache: CacheManager, inserted: int) -> None:
    if cache.stats().inserted_pages != inserted:
        message = f"{cache.stats().inserted_pages} pages were inserted, want {inserted}"
        raise IntegrityError(message)
