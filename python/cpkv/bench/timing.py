"""CPU time of single calls, and of a call beside its floor."""

import statistics
from collections.abc import Callable, Sequence
from time import process_time_ns
from typing import Final

from cpkv.replay import net_microseconds

READINGS: Final = 3


def cpu_microseconds(call: Callable[[], object]) -> float:
    """Return the CPU time of one call, without what reading the clock costs."""
    started = process_time_ns()
    call()
    ended = process_time_ns()
    # One reading that was interrupted would take more off than the call has taken.
    clock = min(_reading() for _ in range(READINGS))
    return net_microseconds(ended - started, clock)


def _reading() -> int:
    started = process_time_ns()
    return process_time_ns() - started


def ratios(samples: Sequence[float], floors: Sequence[float], repeats: int) -> tuple[float, ...]:
    """Return, for each of `repeats` stretches of samples that took turns, median over median.

    A slow minute of the machine slows both; a single slow sample is outvoted.
    """
    turns = len(samples) // repeats
    stretches = [slice(first, first + turns) for first in range(0, repeats * turns, turns)]
    return tuple(statistics.median(samples[part]) / statistics.median(floors[part]) for part in stretches)
