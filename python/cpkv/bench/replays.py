"""Replays that take turns."""

from collections.abc import Iterable

from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.replay import UNLIMITED, Replay, ReplaySettings


def replays_in_turns(
    settings: BenchSettings, caches: Iterable[ReplaySettings]
) -> dict[ReplaySettings, tuple[float, ...]]:
    """Return the CPU microseconds per request of each cache, once for each repeat."""
    samples: dict[ReplaySettings, list[float]] = {cache: [] for cache in caches}
    for _ in range(settings.repeats):
        for cache, taken in samples.items():
            taken.append(Replay(cache).run(settings.requests).us_per_request)
    return {cache: tuple(taken) for cache, taken in samples.items()}


def flatness(name: str, samples: Iterable[tuple[float, ...]], target: float | None) -> Figure:
    """Return how much the dearest of several sizes costs over the cheapest, repeat by repeat."""
    spreads = tuple(max(turn) / max(min(turn), 1e-3) for turn in zip(*samples, strict=True))
    return Figure(name=name, unit="x", samples=spreads, target=target)


def pages_text(pages: int) -> str:
    """Return a capacity as rows show it."""
    return "unlimited" if pages == UNLIMITED else f"{pages:,} pages"
