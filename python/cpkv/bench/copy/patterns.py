"""Which device pages a forward has: where they lie is what the engine's allocator made of it."""

import numpy as np
from numpy.typing import NDArray

from cpkv.errors import ConfigError


def spread_pages(count: int, run_pages: int, capacity: int) -> NDArray[np.int64]:
    """Return pages in runs of exactly `run_pages` at shuffled places, no two runs side by side.

    The same ones for the same arguments. The last run may be shorter.

    Args:
        count: How many pages.
        run_pages: Neighbours that follow each other; 1 for pages scattered one by one.
        capacity: Pages that there are, twice as many as are wanted, and a run.

    Raises:
        ConfigError: There are not so many.
    """
    runs = -(-count // run_pages)
    if 2 * runs * run_pages > capacity:
        message = f"{count} pages in runs of {run_pages} need {2 * runs * run_pages} device pages, got {capacity}"
        raise ConfigError(message)
    # Every other run, so that a shuffle can never put two neighbours behind each other.
    firsts = np.random.default_rng(run_pages).permutation(runs).astype(np.int64) * 2 * run_pages
    return (firsts[:, None] + np.arange(run_pages, dtype=np.int64)).ravel()[:count]


def pattern_name(run_pages: int) -> str:
    """Return what a pattern is called."""
    return "scattered" if run_pages == 1 else f"runs of {run_pages}"


def capacity_for(count: int, longest_run: int) -> int:
    """Return how many device pages `spread_pages` needs for runs up to `longest_run`."""
    return 2 * (count + longest_run)
