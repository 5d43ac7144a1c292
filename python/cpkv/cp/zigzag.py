"""The zigzag split: each request in `2 * cp_size` segments, of which rank r computes r and `2 * cp_size - 1 - r`.

A late token reads more keys than an early one; a rank with an early and a late segment has its share of
both. Segments begin where pages do, so each page is computed by one rank, which can write it where it is.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpkv.cp.batch import ExtendBatch, check_sizes
from cpkv.cp.split import CpSplit
from cpkv.errors import InputError

UNKNOWN: int = -1
"""Nobody knows which rank has begun a page."""


def zigzag_split(
    prefix_tokens: Sequence[int] | ArrayLike,
    extend_tokens: Sequence[int] | ArrayLike,
    *,
    cp_size: int,
    page_size: int,
    open_page_ranks: Sequence[int] | ArrayLike | None = None,
) -> CpSplit:
    """Split a batch in segments.

    A request is page-aligned if it has at least one page for each segment, and if a page that an earlier
    chunk has begun stays with the rank that began it; that has to be rank 0, which computes the first
    segment. It has begun it if the chunk before was page-aligned too, as it computes the last segment. With
    one rank, all are. The tokens of two ranks then differ by no more than a page, unless there is exactly
    one page for each segment and rank 0 has two that are not whole. Other requests are split by tokens as
    evenly as can be, and are not page-aligned.

    Args:
        prefix_tokens: What each request has in its cache, shape `(batch,)`.
        extend_tokens: What is computed of it, real tokens, at least 1, shape `(batch,)`.
        cp_size: Ranks.
        page_size: Tokens of a page. Pages are those of absolute positions, also behind a prefix.
        open_page_ranks: For each request the rank that has begun the page in which its prefix ends, which is
            the lane of that page, `page_id % cp_size`; shape `(batch,)`. `UNKNOWN`, or not given, means that
            such a page is not page-aligned. Where a prefix ends with its page, what is said is not read.

    Raises:
        ConfigError: A size is not positive.
        InputError, InputTypeError: See `ExtendBatch.of`; or a rank that there is not.
    """
    check_sizes(cp_size=cp_size, page_size=page_size)
    batch = ExtendBatch.of(prefix_tokens, extend_tokens)
    segments = 2 * cp_size
    prefix, ends = batch.prefix_tokens, batch.prefix_tokens + batch.extend_tokens
    first_pages = prefix // page_size
    pages = -(-ends // page_size) - first_pages
    is_long = pages >= segments
    is_aligned = (is_long & _open_pages_stay(batch, page_size, cp_size, open_page_ranks)) | (cp_size == 1)

    # Of the first and of the last page, which are both rank 0's.
    missing = (first_pages + pages) * page_size - ends + prefix % page_size
    is_first_light = is_aligned & (missing >= page_size) & (pages > segments)
    # Dealt in units, pages or tokens, of which the first begins where a page does or where the prefix ends.
    bounds = _segment_bounds(np.where(is_aligned, pages, batch.extend_tokens), is_first_light, cp_size)
    bounds *= np.where(is_aligned, page_size, 1)[:, None]
    bounds += np.where(is_aligned, first_pages * page_size, prefix)[:, None]
    bounds = bounds.clip(prefix[:, None], ends[:, None])

    return CpSplit(
        mode="zigzag",
        cp_size=cp_size,
        page_size=page_size,
        batch=batch,
        firsts=_by_ranks(bounds[:, :-1], cp_size),
        counts=_by_ranks(bounds[:, 1:] - bounds[:, :-1], cp_size),
        step=1,
        are_page_aligned=is_aligned,
    )


def _by_ranks(of_segments: NDArray[np.int64], cp_size: int) -> NDArray[np.int64]:
    """Turn `(batch, 2 * cp_size)` into `(cp_size, 2, batch)`: for each rank its front and its back segment."""
    of_ranks = np.empty((cp_size, 2, len(of_segments)), np.int64)
    of_ranks[:, 0] = of_segments[:, :cp_size].T
    of_ranks[:, 1] = of_segments[:, : cp_size - 1 : -1].T
    return of_ranks


def _segment_bounds(units: NDArray[np.int64], is_first_light: NDArray[np.bool_], cp_size: int) -> NDArray[np.int64]:
    """Deal pages or tokens to ranks, and those of a rank to its two segments: the bounds, `(batch, segments + 1)`.

    Where rank 0 has a page less than it seems, it gets one first. All have the same number of the others, or
    the first ranks one more.
    """
    given = is_first_light.astype(np.int64)
    base, more = np.divmod(units - given, cp_size)
    of_rank = base[:, None] + (np.arange(cp_size) < more[:, None])
    of_rank[:, 0] += given
    back = of_rank // 2
    bounds = np.zeros((len(units), 2 * cp_size + 1), np.int64)
    sizes = bounds[:, 1:]
    sizes[:, :cp_size] = of_rank - back
    sizes[:, cp_size:] = back[:, ::-1]
    return bounds.cumsum(1)


def _open_pages_stay(
    batch: ExtendBatch, page_size: int, cp_size: int, ranks: Sequence[int] | ArrayLike | None
) -> NDArray[np.bool_]:
    """Return for which requests no page that was begun before goes over to another rank."""
    is_whole: NDArray[np.bool_] = batch.prefix_tokens % page_size == 0
    if ranks is None:
        return is_whole
    given = np.array(ranks)
    if given.shape != (len(batch),) or given.dtype.kind not in "iu":
        message = f"open_page_ranks are {given.dtype} of shape {given.shape}, want integers of shape ({len(batch)},)"
        raise InputError(message)
    wrong = np.flatnonzero((given < UNKNOWN) | (given >= cp_size))
    if len(wrong):
        first = int(wrong[0])
        message = f"open_page_ranks[{first}] is {given[first]}, want 0 to {cp_size - 1}, or {UNKNOWN} for unknown"
        raise InputError(message)
    is_kept: NDArray[np.bool_] = is_whole | (given == 0)
    return is_kept
