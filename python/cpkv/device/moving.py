"""Copies by the CPU, for engines without a GPU."""

import ctypes
from collections.abc import Iterator

from cpkv.device.plan import CopyPlan

_move = ctypes.memmove
"""Lets other Python threads run while it copies."""


def pieces(plan: CopyPlan, first_layer: int, end_layer: int) -> Iterator[tuple[int, int, int]]:
    """Yield every contiguous copy of some layers as `(destination, source, bytes)`."""
    rows = plan.rows(first_layer, end_layer)
    yield from zip(
        plan.destinations[rows].ravel().tolist(),
        plan.sources[rows].ravel().tolist(),
        plan.sizes[rows].ravel().tolist(),
        strict=True,
    )
    if plan.blocks is None:
        return
    blocks = plan.blocks
    for destination, source, destination_pitch, source_pitch, width, height in zip(
        blocks.destinations[rows].ravel().tolist(),
        blocks.sources[rows].ravel().tolist(),
        blocks.destination_pitches[rows].ravel().tolist(),
        blocks.source_pitches[rows].ravel().tolist(),
        blocks.widths[rows].ravel().tolist(),
        blocks.heights[rows].ravel().tolist(),
        strict=True,
    ):
        for line in range(height):
            yield destination + line * destination_pitch, source + line * source_pitch, width


def move(destination: int, source: int, size: int) -> None:
    """Copy `size` bytes between addresses."""
    _move(destination, source, size)
