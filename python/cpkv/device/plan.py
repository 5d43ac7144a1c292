"""What a forward copies, prepared once: three arrays that a layer's copy takes a slice of."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cpkv.layout import DevicePool, HostPool, PageLayout, join_runs
from cpkv.layout.runs import Blocks, split_blocks

Direction = Literal["to_host", "to_device"]


@dataclass(frozen=True, slots=True)
class BlockCopies:
    """Whole segments that follow each other, each a copy with two pitches; arrays of shape `(rows, blocks)`.

    A line is a segment's part of a row: `widths` bytes, as many lines as segments.
    """

    destinations: NDArray[np.int64]
    sources: NDArray[np.int64]
    destination_pitches: NDArray[np.int64]
    source_pitches: NDArray[np.int64]
    widths: NDArray[np.int64]
    heights: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """The copies of a batch of pages, in the order of the rows of their layout, which is by layer.

    All arrays are contiguous `int64` of shape `(rows, runs)`: what layers `first` to `end` need is
    one block of memory.

    Args:
        layout: What a page has.
        direction: Where to.
        pages: Device pages, physical ones, shape `(n,)`, for engines that copy by page.
        slots: The host slot of each.
        destinations: Addresses.
        sources: Addresses.
        sizes: Bytes.
        blocks: What is copied segment by segment instead; `None` if nothing is.
    """

    layout: PageLayout
    direction: Direction
    pages: NDArray[np.int64]
    slots: NDArray[np.int64]
    destinations: NDArray[np.int64]
    sources: NDArray[np.int64]
    sizes: NDArray[np.int64]
    blocks: BlockCopies | None = None

    def rows(self, first_layer: int, end_layer: int) -> slice:
        """Return which rows belong to the layers from `first_layer` to before `end_layer`."""
        firsts = self.layout.first_rows
        return slice(firsts[first_layer], firsts[end_layer])

    def bytes(self, first_layer: int, end_layer: int) -> int:
        """Return the bytes that layers copy; 0 if there is nothing to do."""
        firsts = self.layout.first_bytes
        return len(self.pages) * (firsts[end_layer] - firsts[first_layer])


def plan_copies(  # noqa: PLR0913 - both sides, and what of them
    device: DevicePool,
    host: HostPool,
    pages: NDArray[np.int64],
    slots: NDArray[np.int64],
    *,
    direction: Direction,
    least_block: int | None = None,
) -> CopyPlan:
    """Prepare the copies of pages, each with every row it has.

    Args:
        device: Where the pages are.
        host: Where the slots are.
        pages: Device pages, physical ones of this lane, shape `(n,)`.
        slots: The host slot of each, none of them twice.
        direction: Where to.
        least_block: Segments that have to follow each other, whole and on both sides, to be copied as
            one block; `None` for no blocks.

    Raises:
        PageError: There is no such page or slot.
    """
    runs = join_runs(pages, slots, host.segment_pages if device.is_dense else 1)
    blocks = None
    if least_block is not None and device.is_dense:
        runs, found = split_blocks(runs, host.segment_pages, least_block)
        blocks = _block_copies(device, host, found, direction) if found.pages.size else None
    on_device, on_host = device.addresses(runs.pages), host.addresses(runs.slots)
    to_host = direction == "to_host"
    return CopyPlan(
        layout=host.layout,
        direction=direction,
        pages=pages,
        slots=slots,
        destinations=on_host if to_host else on_device,
        sources=on_device if to_host else on_host,
        sizes=host.layout.row_bytes[:, None] * runs.lengths,
        blocks=blocks,
    )


def _block_copies(device: DevicePool, host: HostPool, blocks: Blocks, direction: Direction) -> BlockCopies:
    on_device, on_host = device.addresses(blocks.pages), host.addresses(blocks.slots)
    shape = on_host.shape
    lines = np.ascontiguousarray(np.broadcast_to(host.layout.row_bytes[:, None] * host.segment_pages, shape))
    host_pitches = np.full(shape, host.segment_bytes, np.int64)
    heights = np.ascontiguousarray(np.broadcast_to(blocks.segments, shape))
    if direction == "to_host":
        return BlockCopies(on_host, on_device, host_pitches, lines, lines, heights)
    return BlockCopies(on_device, on_host, lines, host_pitches, lines, heights)
