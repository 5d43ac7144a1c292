"""Device and host memory of one rank, filled with bytes that say what they are.

What a page holds in a row depends on the component, the layer and a stamp: the prompt that was
computed, say. What nobody uses is scribbled.
"""

import hashlib
from functools import cache

import numpy as np

from cpkv.layout import Buffers, Component, DevicePool, HostPool, PageLayout

SCRIBBLE = 0xEE


def small_layout(*, draft=True, index=True, page_size=2, target_layers=3):
    """A model with shared indexers (layer 1 has none of its own) and rows of odd sizes."""
    components = [
        Component(name="target_kv", model="target", layers=tuple(range(target_layers)), row_bytes=24),
    ]
    if index:
        owners = tuple(layer for layer in range(target_layers) if layer != 1)
        components.append(Component(name="target_index", model="target", layers=owners, row_bytes=9))
    if draft:
        components.append(Component(name="draft_kv", model="draft", layers=(0,), row_bytes=24))
    if draft and index:
        components.append(Component(name="draft_index", model="draft", layers=(0,), row_bytes=9))
    return PageLayout(
        page_size=page_size, target_layers=target_layers, draft_layers=int(draft), components=tuple(components)
    )


@cache
def content(row, stamp):
    """What a row of a page holds."""
    said = f"{row.component.name} {row.layer} {stamp}".encode()
    return hashlib.shake_128(said).digest(row.component.row_bytes)


def naive_offsets(layout, slots, segment_pages):
    """Where each row of each slot begins, counted byte by byte."""
    offsets, offset = {}, 0
    for first in range(0, slots, segment_pages):
        for row in layout.rows:
            for column in range(segment_pages):
                offsets[first + column, row] = offset
                offset += row.component.row_bytes
    return offsets


class Pools:
    """Both sides of one rank's memory. A device page has `gap` bytes behind it in every buffer."""

    def __init__(self, layout, *, pages, slots, segment_pages=1, gap=0):
        self.layout = layout
        self.gap = gap
        self.arrays = {
            component.name: [np.full((pages, component.row_bytes + gap), SCRIBBLE, np.uint8) for _ in component.layers]
            for component in layout.components
        }
        buffers = {
            name: Buffers.of([array[:, : array.shape[1] - gap] for array in arrays])
            for name, arrays in self.arrays.items()
        }
        self.device = DevicePool(layout, buffers)
        self.memory = np.full(slots * layout.slot_bytes, SCRIBBLE, np.uint8)
        self.host = HostPool(layout=layout, slots=slots, segment_pages=segment_pages, address=self.memory.ctypes.data)
        self._offsets = naive_offsets(layout, slots, segment_pages)

    def device_row(self, page, row):
        array = self.arrays[row.component.name][row.component.layers.index(row.layer)]
        return array[page, : row.component.row_bytes]

    def host_row(self, slot, row):
        offset = self._offsets[slot, row]
        return self.memory[offset : offset + row.component.row_bytes]

    def compute(self, page, stamp, layers=None):
        """What a forward writes into a page, in some layers or in all."""
        for layer in range(self.layout.layers) if layers is None else layers:
            for row in self.layout.rows_of(layer):
                self.device_row(page, row)[:] = np.frombuffer(content(row, stamp), np.uint8)

    def scribble_pages(self, pages):
        for page in pages:
            for row in self.layout.rows:
                self.device_row(page, row)[:] = SCRIBBLE

    def scribble_slots(self, slots):
        for slot in slots:
            for row in self.layout.rows:
                self.host_row(slot, row)[:] = SCRIBBLE

    def on_device(self, page, stamp, layers=None):
        """Whether a page holds what belongs there, whole."""
        rows = [
            row
            for layer in range(self.layout.layers)
            if layers is None or layer in layers
            for row in self.layout.rows_of(layer)
        ]
        return all(self.device_row(page, row).tobytes() == content(row, stamp) for row in rows)

    def on_host(self, slot, stamp):
        """Whether a slot holds what belongs there, whole."""
        return all(self.host_row(slot, row).tobytes() == content(row, stamp) for row in self.layout.rows)

    def gaps_are_untouched(self):
        return all(
            (array[:, array.shape[1] - self.gap :] == SCRIBBLE).all()
            for arrays in self.arrays.values()
            for array in arrays
        )
