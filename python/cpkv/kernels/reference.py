"""What the kernel has to do, one row at a time, with indexing of tensors and no address.

The oracle of the kernel's tests: it shares no formula with it. Too slow for anything else.
"""

from collections.abc import Iterable

import torch

from cpkv.kernels.layout import HostSegments, LayerRows


def host_row(pool: torch.Tensor, host: HostSegments, rows: LayerRows, slot: int) -> torch.Tensor:
    """View the row of a slot in the host pool.

    Args:
        pool: The whole pool, uint8 of shape `(host.pool_bytes,)`.
        host: How it is divided.
        rows: Which of the rows of a slot.
        slot: The slot.

    Returns:
        A view, uint8 of shape `(rows.row_bytes,)`.
    """
    in_segments = pool.view(host.slots // host.segment_pages, host.segment_pages * host.slot_bytes)
    behind = rows.offset_bytes + rows.row_bytes
    side_by_side = in_segments[:, rows.offset_bytes * host.segment_pages : behind * host.segment_pages]
    by_column = side_by_side.unflatten(1, (host.segment_pages, rows.row_bytes))
    return by_column[slot // host.segment_pages, slot % host.segment_pages]


def backup(
    buffer: torch.Tensor, pool: torch.Tensor, host: HostSegments, rows: LayerRows, pairs: Iterable[tuple[int, int]]
) -> None:
    """Copy pages to slots.

    Args:
        buffer: The layer's buffer, uint8 of shape `(pages, stride_bytes)`.
        pool: The whole host pool, uint8 of shape `(host.pool_bytes,)`.
        host: How the pool is divided.
        rows: Which rows.
        pairs: Pages and slots.
    """
    for page, slot in pairs:
        host_row(pool, host, rows, slot).copy_(buffer[page, : rows.row_bytes])


def restore(
    buffer: torch.Tensor, pool: torch.Tensor, host: HostSegments, rows: LayerRows, pairs: Iterable[tuple[int, int]]
) -> None:
    """Copy slots to pages; arguments as for `backup`."""
    for page, slot in pairs:
        buffer[page, : rows.row_bytes].copy_(host_row(pool, host, rows, slot))
