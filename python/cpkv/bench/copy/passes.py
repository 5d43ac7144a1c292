"""Rounds of copies alone, and beside a load in turns with the load alone.

`compute` stands still first, until the load and the first layers are queued. From then on load and copies
run at once, so that the time of a copy is that of the copies and not of the thread that queues them, as
long as it queues faster than they are copied.
"""

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from time import perf_counter_ns, thread_time_ns
from typing import Final

from cpkv.bench.copy.copier import Copier
from cpkv.bench.copy.formulas import gigabytes_per_second, slowdown_percent
from cpkv.bench.copy.platform import Platform

MARGIN: Final = 1.15
"""The load is longer than the copy by so much, that the copy ends beside it."""
MOST_UNITS: Final = 800
"""A stream takes about a thousand launches ahead; with more, the copies would be queued late."""
HOLD_MARGIN: Final = 1.5
MOST_HOLD_MS: Final = 60.0
"""Of ways to copy that take the thread longer, the rest is queued while the first is copied."""
LEAD_SHARE: Final = 0.625
"""Of what the platform says brings the clock down: longer than `MOST_HOLD_MS` on a GPU."""
_SIZING_UNITS: Final = 8


@dataclass(frozen=True, slots=True)
class Round:
    """What was taken of one round; 0 for what was not in it."""

    span_ns: int = 0
    """From the moment that the copies could begin to the end of the last one."""
    submit_ns: int = 0
    """What the calling thread took to queue them."""
    submit_cpu_ns: int = 0
    """CPU of that thread meanwhile: without the time in which it waited asleep or another one had its core."""
    load_ns: int = 0
    queue_ns: int = 0
    """What the calling thread took to queue everything."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Copies beside a load: each round with the load alone before or after it, and that one once more."""

    gigabytes_per_second: tuple[float, ...]
    slowdown_percent: tuple[float, ...]
    same_percent: tuple[float, ...]
    """The same formula for two rounds without a copy: what it says of nothing. Empty if that was not asked for."""
    outlasted: int
    """Rounds in which the copy ended after the load."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def one_round(  # noqa: PLR0913 - what a round may have
    platform: Platform,
    copier: Copier | None,
    load: str | None = None,
    units: int = 0,
    *,
    hold_ms: float | None = None,
    lead_units: int = 0,
) -> Round:
    """Run copies, a load, or both at once.

    Args:
        platform: Where.
        copier: The copies, if any.
        load: The name of the load, if there is one.
        units: How much of it.
        hold_ms: How long `compute` stands still; what the platform says if not given.
        lead_units: Layers' work that is queued on it instead, if any is.
    """
    if copier is not None:
        copier.begin()
    with no_collection():
        if lead_units:
            platform.layer(lead_units)
        else:
            platform.hold(platform.hold_ms if hold_ms is None else hold_ms)
        queued = perf_counter_ns()
        start = platform.mark("compute")
        if load is not None:
            platform.follow("load", "compute")
            load_start = platform.mark("load")
            platform.load(load, units)
            load_end = platform.mark("load")
        submit_ns = submit_cpu_ns = 0
        if copier is not None:
            begun, begun_cpu = perf_counter_ns(), thread_time_ns()
            copier.submit()
            submit_cpu_ns = thread_time_ns() - begun_cpu
            submit_ns = perf_counter_ns() - begun
            end = copier.ended()
        queue_ns = perf_counter_ns() - queued
        platform.synchronize()
    taken = Round(
        span_ns=0 if copier is None else platform.elapsed_ns(start, end),
        submit_ns=submit_ns,
        submit_cpu_ns=submit_cpu_ns,
        load_ns=0 if load is None else platform.elapsed_ns(load_start, load_end),
        queue_ns=queue_ns,
    )
    if copier is not None:
        copier.finish()
    return taken


def alone(platform: Platform, copier: Copier, repeats: int) -> list[Round]:
    """Run the copies with nothing beside them."""
    hold_ms = _hold_ms(platform, one_round(platform, copier))
    return [one_round(platform, copier, hold_ms=hold_ms) for _ in range(repeats)]


def beside(  # noqa: PLR0913 - what a comparison needs
    platform: Platform,
    copier: Copier,
    load: str,
    repeats: int,
    guess_ns: int,
    *,
    has_same: bool = True,
    is_led: bool = False,
) -> Beside:
    """Run the copies beside a load, in turns with the load alone.

    Before both `compute` does the same for as long: what has rested computes faster.

    Args:
        platform: Where.
        copier: The copies.
        load: Its name.
        repeats: How many pairs.
        guess_ns: What the copies take alone.
        has_same: Whether each pair is followed by the load alone once more.
        is_led: Whether matrix products begin behind others, so that the clock is that of a long forward.
    """
    unit_ns = max(one_round(platform, None, load, _SIZING_UNITS).load_ns / _SIZING_UNITS, 1.0)
    sizing = one_round(platform, copier, load, _units(2 * guess_ns, unit_ns))
    hold_ms = _hold_ms(platform, sizing)
    sizing = one_round(platform, copier, load, _units(2 * guess_ns, unit_ns), hold_ms=hold_ms)
    units = _units(MARGIN * sizing.span_ns, unit_ns)
    lead_units = round(platform.lead_units * LEAD_SHARE) if is_led and load == "matmul" else 0

    def paired(copies: Copier | None) -> Round:
        return one_round(platform, copies, load, units, hold_ms=hold_ms, lead_units=lead_units)

    spans, slowdowns, sames, outlasted = [], [], [], 0
    for turn in range(repeats):
        if turn % 2:
            both = paired(copier)
            plain = paired(None)
        else:
            plain = paired(None)
            both = paired(copier)
        spans.append(both.span_ns)
        slowdowns.append(slowdown_percent(plain.load_ns, both.load_ns, both.span_ns))
        if has_same:
            again = paired(None)
            sames.append(slowdown_percent(plain.load_ns, again.load_ns, both.span_ns))
        outlasted += both.span_ns > both.load_ns
    return Beside(
        gigabytes_per_second=tuple(gigabytes_per_second(copier.bytes, span) for span in spans),
        slowdown_percent=tuple(slowdowns),
        same_percent=tuple(sames),
        outlasted=outlasted,
    )


def _hold_ms(platform: Platform, sizing: Round) -> float:
    """Return how long `compute` has to stand still, so that load and copies are queued when it goes on.

    Otherwise the copies would begin late, and the time of the thread be counted as theirs.
    """
    return min(max(platform.hold_ms, HOLD_MARGIN * sizing.queue_ns / 1e6), max(platform.hold_ms, MOST_HOLD_MS))


def typical_ns(rounds: list[Round]) -> int:
    """Return the median time of the copies."""
    return int(median(taken.span_ns for taken in rounds))


def _units(wanted_ns: float, unit_ns: float) -> int:
    return min(max(math.ceil(wanted_ns / unit_ns), 1) + 1, MOST_UNITS)
