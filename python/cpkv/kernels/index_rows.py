"""Index keys and their scales, which share a row: first the keys of all tokens, then the scales of all.

Copies move the whole row, so a key cannot be without its scale. These views are for looking into one.
"""

from typing import NamedTuple

import torch

from cpkv.errors import InputTypeError

SCALE_BYTES = 4
"""One float32 for the key of a token."""


class IndexRows(NamedTuple):
    """The two parts of an index buffer.

    Attributes:
        keys: Shape `(pages, page_size, key_bytes)`, float8_e4m3fn (or uint8, as asked).
        scales: Shape `(pages, page_size)`, float32.
    """

    keys: torch.Tensor
    scales: torch.Tensor


def split_index_rows(
    rows: torch.Tensor, *, page_size: int = 64, key_dtype: torch.dtype = torch.float8_e4m3fn
) -> IndexRows:
    """View the keys and the scales of an index buffer; writing to them writes to it.

    Args:
        rows: uint8 of shape `(pages, page_size * (key_bytes + 4))`, rows without gaps.
        page_size: Tokens of one page.
        key_dtype: A type of one byte.

    Raises:
        InputTypeError: The buffer is not of this kind.
    """
    if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.stride(1) != 1:  # noqa: PLR2004 - pages and bytes
        message = f"index rows: {rows.dtype} of shape {tuple(rows.shape)} and strides {rows.stride()}, want uint8 rows"
        raise InputTypeError(message)
    token_bytes, rest = divmod(rows.shape[1], page_size)
    key_bytes = token_bytes - SCALE_BYTES
    if rest or key_bytes < 1 or key_dtype.itemsize != 1:
        message = f"index rows of {rows.shape[1]} bytes, want {page_size} keys of bytes and {page_size} float32"
        raise InputTypeError(message)
    end_of_keys = page_size * key_bytes
    try:
        scales = rows[:, end_of_keys:].view(torch.float32)
    except RuntimeError as error:
        message = f"index rows whose scales begin at byte {end_of_keys}, with strides {rows.stride()}: {error}"
        raise InputTypeError(message) from error
    return IndexRows(rows[:, :end_of_keys].unflatten(1, (page_size, key_bytes)).view(key_dtype), scales)


def join_index_rows(keys: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Make rows of keys and scales: the inverse of `split_index_rows`, in new memory.

    Args:
        keys: Shape `(pages, page_size, key_bytes)`, a type of one byte.
        scales: Shape `(pages, page_size)`, float32.

    Returns:
        uint8 of shape `(pages, page_size * (key_bytes + 4))`.

    Raises:
        InputTypeError: The two do not belong together.
    """
    bytes_each = keys.element_size() == 1 and keys.dim() == 3  # noqa: PLR2004 - pages, tokens, bytes
    if not bytes_each or scales.dtype != torch.float32 or scales.shape != keys.shape[:2]:
        message = (
            f"keys {keys.dtype} of shape {tuple(keys.shape)} and scales {scales.dtype} of shape {tuple(scales.shape)}, "
            f"want one-byte (pages, tokens, key) and float32 (pages, tokens)"
        )
        raise InputTypeError(message)
    return torch.cat([keys.contiguous().view(torch.uint8).flatten(1), scales.contiguous().view(torch.uint8)], dim=1)
