"""Both sides of the memory that a measurement copies between, laid over what the platform has."""

import ctypes
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cpkv.bench.copy.platform import Platform
from cpkv.bench.copy.settings import PAGE_SIZE, SEGMENT_PAGES
from cpkv.errors import CopyError
from cpkv.layout import Buffers, DevicePool, HostPool, PageLayout

ALIGNMENT: Final = 512
CHECKED_ROWS: Final = 16


def mla_layout(layers: int, *, draft_layers: int = 0) -> PageLayout:
    """Return MLA in bf16 with an indexer in every layer: rows of 73,728 and of 8,448 bytes."""
    return PageLayout.mla(target_layers=layers, draft_layers=draft_layers, page_size=PAGE_SIZE, index_layers=None)


def device_bytes(layout: PageLayout, pages: int) -> int:
    """Return what the device pages take."""
    return sum(_aligned(row.component.row_bytes * pages) for row in layout.rows)


def whole_segments(slots: int) -> int:
    """Return the slots of the segments that have at least so many."""
    return -(-slots // SEGMENT_PAGES) * SEGMENT_PAGES


class Pools:
    """Device pages and host slots of one layout. Nothing else may use the platform's memory meanwhile.

    Args:
        platform: Whose memory.
        layout: What a page has.
        pages: Device pages.
        slots: Host slots, in whole segments.

    Raises:
        ConfigError: The platform has not so much memory.
    """

    def __init__(self, platform: Platform, layout: PageLayout, *, pages: int, slots: int) -> None:
        self.platform = platform
        self.layout = layout
        offset, buffers = 0, {}
        for component in layout.components:
            views = []
            for _ in component.layers:
                views.append(platform.device_view(offset, pages, component.row_bytes))
                offset += _aligned(pages * component.row_bytes)
            buffers[component.name] = Buffers.of(views)
        self.device = DevicePool(layout, buffers)
        self.host = HostPool(layout=layout, slots=slots, segment_pages=SEGMENT_PAGES, address=platform.host_address)

    def check_equal(self, pages: NDArray[np.int64], slots: NDArray[np.int64]) -> None:
        """Look at some rows, those of the first and the last pair among them, whether both sides have the same bytes.

        Raises:
            CopyError: They have not.
        """
        random = np.random.default_rng(0)
        rows = len(self.layout.rows)
        places = [(0, 0), (rows - 1, len(pages) - 1)]
        places += [(int(random.integers(rows)), int(random.integers(len(pages)))) for _ in range(CHECKED_ROWS)]
        for row, place in places:
            on_device = self.device.addresses(pages[place : place + 1], row, row + 1).item()
            on_host = self.host.addresses(slots[place : place + 1], row, row + 1).item()
            size = int(self.layout.row_bytes[row])
            if self.platform.read_device(on_device, size) != ctypes.string_at(on_host, size):
                message = f"row {row} of device page {pages[place]} is not what host slot {slots[place]} has"
                raise CopyError(message)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
