"""Pages lie where they are computed: which lane a page is taken from, and who may write it.

Page `id` is in lane `id % cp_size`, and rank r keeps lane r. A rank that writes the pages it computes sends
nothing. It may do so only if nobody else computes a part of them, and only in its own lane; both are
checked here and nowhere else.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpkv.cp.split import CpSplit
from cpkv.cp.view import LocalView
from cpkv.errors import DirectWriteError, InputError


def page_owners(split: CpSplit, request: int) -> NDArray[np.int64]:
    """Return the rank that computes each page that a request begins: the lanes to allocate its pages from.

    `cache.allocate(lanes=page_owners(split, request))` takes them. A page that an earlier chunk has begun is
    not among them.

    Returns:
        `int64`, shape `(new_pages,)`, in the order of the pages.

    Raises:
        DirectWriteError: The request is not page-aligned, so that its pages have no owner.
        InputError: There is no such request.
    """
    if not 0 <= request < len(split.batch):
        message = f"request is {request}, want 0 to {len(split.batch) - 1}"
        raise InputError(message)
    if not split.are_page_aligned[request]:
        raise DirectWriteError(_not_aligned(split, request))
    page_size = split.page_size
    firsts, counts = split.firsts[:, :, request], split.counts[:, :, request]
    first_new = -(-split.batch.prefix_tokens[request] // page_size)
    end = -(-(split.batch.prefix_tokens[request] + split.batch.extend_tokens[request]) // page_size)
    owners = np.empty(int(end - first_new), np.int64)
    for rank in range(split.cp_size):
        for first, count in zip(firsts[rank].tolist(), counts[rank].tolist(), strict=True):
            # Tokens of a run are a page each if they are not side by side.
            begin, stop = -(-first // page_size), -(-(first + count * split.step) // page_size)
            owners[slice(max(begin - first_new, 0), max(min(stop, end) - first_new, 0), split.step)] = rank
    return owners


@dataclass(frozen=True, slots=True)
class DirectWrites:
    """Where a rank writes the rows that it computes; made by `direct_writes`, so it has been checked.

    Args:
        view: Whose rows.
        local_locations: For each row its place in the rank's own pool, `page // cp_size * page_size` and its
            offset in the page; `int64`, shape `(tokens,)`.
    """

    view: LocalView
    local_locations: NDArray[np.int64]


def direct_writes(view: LocalView, locations: NDArray[np.int64]) -> DirectWrites:
    """Check that a rank may write what it computes directly.

    Args:
        view: The rank's.
        locations: For each of its rows where the token lies, `page_id * page_size` and its offset in the
            page, `int64`, shape `(tokens,)`: its rows of what SGLang calls `out_cache_loc`.

    Raises:
        DirectWriteError: A request is not page-aligned, or a page is in another rank's lane; the message
            names the first one.
        InputError: Locations are negative, not as many as rows, no integers, not at the offsets that the rows'
            positions have in their pages, or in one page for two pages of the batch.
    """
    split = view.split
    page_size, cp_size = split.page_size, split.cp_size
    if locations.shape != (view.tokens,) or locations.dtype.kind not in "iu":
        message = f"locations are {locations.dtype} of shape {locations.shape}, want integers of shape ({view.tokens},)"
        raise InputError(message)
    if not split.page_aligned:
        raise DirectWriteError(_not_aligned(split, int(np.flatnonzero(~split.are_page_aligned)[0])))
    pages, offsets = np.divmod(locations.astype(np.int64, copy=False), page_size)
    wrong = np.flatnonzero((locations < 0) | (offsets != view.positions % page_size))
    if len(wrong):
        row = int(wrong[0])
        message = (
            f"locations[{row}] is {locations[row]}, offset {offsets[row]} of page {pages[row]}, want a page of 0 "
            f"or more and offset {view.positions[row] % page_size}, as position {view.positions[row]} has"
        )
        raise InputError(message)
    local_pages, lanes = np.divmod(pages, cp_size)
    wrong = np.flatnonzero(lanes != view.rank)
    if len(wrong):
        row = int(wrong[0])
        message = (
            f"locations[{row}] is in page {pages[row]}, which is rank {lanes[row]}'s, want one of rank {view.rank}'s "
            f"for position {view.positions[row]} of request {view.requests[row]}"
        )
        raise DirectWriteError(message)
    _check_distinct(view, pages)
    return DirectWrites(view, local_pages * page_size + offsets)


def _check_distinct(view: LocalView, pages: NDArray[np.int64]) -> None:
    """Refuse one page where the batch has two: the second would be written over the first."""
    own = view.positions // view.split.page_size
    begins = np.ones(view.tokens, np.bool_)
    begins[1:] = (own[1:] != own[:-1]) | (view.requests[1:] != view.requests[:-1])
    rows = np.flatnonzero(begins)
    order = np.argsort(pages[rows], kind="stable")
    twice = np.flatnonzero(np.diff(pages[rows][order]) == 0)
    if len(twice):
        first, second = rows[order[twice[0]]], rows[order[twice[0] + 1]]
        message = (
            f"locations[{first}] and locations[{second}] are both in page {pages[first]}, want one each: they are "
            f"position {view.positions[first]} of request {view.requests[first]} and "
            f"position {view.positions[second]} of request {view.requests[second]}"
        )
        raise InputError(message)


def _not_aligned(split: CpSplit, request: int) -> str:
    return (
        f"request {request} is not page-aligned ({split.batch.extend_tokens[request]} tokens behind "
        f"{split.batch.prefix_tokens[request]}, {split.mode} over {split.cp_size} ranks, pages of {split.page_size}): "
        "several ranks compute parts of a page, so none may write it directly; gather its rows first"
    )
