"""Pages that lie side by side on both sides are one copy."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of pages, each within one segment: arrays of the same length, shape `(runs,)`, `int64`."""

    pages: NDArray[np.int64]
    """The first device page of each."""
    slots: NDArray[np.int64]
    """The first host slot of each."""
    lengths: NDArray[np.int64]
    """Pages in each."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Whole segments that follow each other on both sides: arrays of shape `(blocks,)`, `int64`."""

    pages: NDArray[np.int64]
    """The first device page of each."""
    slots: NDArray[np.int64]
    """The first host slot of each."""
    segments: NDArray[np.int64]
    """Segments in each."""


def join_runs(pages: NDArray[np.int64], slots: NDArray[np.int64], segment_pages: int) -> Runs:
    """Order pairs of page and slot by slot, and join those that lie side by side on both sides.

    Args:
        pages: Device pages, physical ones of one lane, shape `(n,)`.
        slots: The host slot of each, none of them twice.
        segment_pages: Slots in a segment; rows of different segments do not lie side by side. 1 joins
            nothing.
    """
    order = np.argsort(slots, kind="stable")
    pages, slots = pages[order], slots[order]
    begins = np.ones(len(slots), np.bool_)
    follow = slots[1:]
    begins[1:] = (pages[1:] - pages[:-1] != 1) | (follow - slots[:-1] != 1) | (follow % segment_pages == 0)
    firsts = np.flatnonzero(begins)
    return Runs(pages[firsts], slots[firsts], _lengths(firsts, len(slots)))


def split_blocks(runs: Runs, segment_pages: int, least_segments: int) -> tuple[Runs, Blocks]:
    """Take the runs out that are whole segments and follow each other, at least so many of them.

    Args:
        runs: In the order of their slots, as `join_runs` has them.
        segment_pages: Slots in a segment.
        least_segments: What is less stays a run.
    """
    is_whole = (runs.lengths == segment_pages) & (runs.slots % segment_pages == 0)
    if np.count_nonzero(is_whole) < least_segments:
        nothing = runs.pages[:0]
        return runs, Blocks(nothing, nothing, nothing)
    goes_on = np.zeros(len(is_whole), np.bool_)
    goes_on[1:] = (
        is_whole[1:]
        & is_whole[:-1]
        & (runs.slots[1:] - runs.slots[:-1] == segment_pages)
        & (runs.pages[1:] - runs.pages[:-1] == segment_pages)
    )
    firsts = np.flatnonzero(~goes_on)
    segments = _lengths(firsts, len(goes_on))
    taken = is_whole[firsts] & (segments >= least_segments)
    stays = np.repeat(~taken, segments)
    left = Runs(runs.pages[stays], runs.slots[stays], runs.lengths[stays])
    return left, Blocks(runs.pages[firsts[taken]], runs.slots[firsts[taken]], segments[taken])


def _lengths(firsts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Return how long each part of `count` things is, by where the parts begin."""
    lengths = np.empty_like(firsts)
    lengths[:-1] = firsts[1:] - firsts[:-1]
    lengths[-1:] = count - firsts[-1:]
    return lengths
