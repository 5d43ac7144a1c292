"""The tick of a scheduler step in which nothing is to be done."""

import secrets
import tempfile
from collections.abc import Iterator
from itertools import count
from typing import Final

from cpkv._core import AckWords, CacheManager, CommitLog
from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.bench.timing import cpu_microseconds

TICKS: Final = 10_000
"""So many that reading the clock is nothing beside them; their loop is part of the figure."""
TARGET_US: Final = 1.0


def measure_idle_tick(settings: BenchSettings) -> Iterator[Figure]:
    """Tick a cache that has no operation open, without and with a commit log."""
    alone = _new_cache()
    yield Figure(name="tick, idle", unit="us", samples=_ticks_us(alone, settings.repeats), target=TARGET_US)
    logged, nonce = _new_cache(), secrets.randbits(62)
    with (
        tempfile.TemporaryDirectory(prefix="cpkv-bench-") as directory,
        CommitLog.create("bench", nonce, ranks=1, fingerprint=logged.fingerprint, directory=directory) as log,
    ):
        logged.attach_log(log)
        samples = _ticks_us(logged, settings.repeats)
    yield Figure(name="tick, idle, with a commit log", unit="us", samples=samples, target=TARGET_US)


def _new_cache() -> CacheManager:
    return CacheManager(device_pages=1_000, host_slots=1_000, copies="tracked", draft=True)


def _ticks_us(cache: CacheManager, repeats: int) -> tuple[float, ...]:
    words, steps = AckWords(2), count()

    def ticks() -> None:
        for _ in range(TICKS):
            cache.tick(next(steps), words)

    return tuple(cpu_microseconds(ticks) / TICKS for _ in range(repeats))
