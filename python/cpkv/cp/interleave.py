"""The interleaved split: the tokens of a request go to the ranks in turns, by their positions."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from cpkv.cp.batch import ExtendBatch, check_sizes
from cpkv.cp.split import CpSplit


def interleave_split(
    prefix_tokens: Sequence[int] | ArrayLike,
    extend_tokens: Sequence[int] | ArrayLike,
    *,
    cp_size: int,
    page_size: int,
) -> CpSplit:
    """Split a batch so that rank r computes positions r, r + cp_size, and so on, of what is computed of a request.

    Every rank computes a share of each page, so a batch is page-aligned only with one rank, or with pages of
    one token.

    Args:
        prefix_tokens: What each request has in its cache, shape `(batch,)`.
        extend_tokens: What is computed of it, real tokens, at least 1, shape `(batch,)`.
        cp_size: Ranks.
        page_size: Tokens of a page.

    Raises:
        ConfigError: A size is not positive.
        InputError, InputTypeError: See `ExtendBatch.of`.
    """
    check_sizes(cp_size=cp_size, page_size=page_size)
    batch = ExtendBatch.of(prefix_tokens, extend_tokens)
    # From the prefix to the first position that is the rank's.
    skipped = (np.arange(cp_size)[:, None] - batch.prefix_tokens) % cp_size
    return CpSplit(
        mode="interleave",
        cp_size=cp_size,
        page_size=page_size,
        batch=batch,
        firsts=(batch.prefix_tokens + skipped)[:, None],
        counts=((batch.extend_tokens - skipped + cp_size - 1) // cp_size).clip(0)[:, None],
        step=cp_size,
        are_page_aligned=np.full(len(batch), cp_size == 1 or page_size == 1),
    )
