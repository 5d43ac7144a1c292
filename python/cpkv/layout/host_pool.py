"""Where a row lies in the host memory of a lane: the one address formula, and its inverse."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cpkv.errors import ConfigError, PageError
from cpkv.layout.page_layout import MOST_BYTES, PageLayout, Row


@dataclass(frozen=True, slots=True)
class Place:
    """What a byte of the host pool belongs to."""

    slot: int
    row: Row
    byte: int
    """Within the row."""


@dataclass(frozen=True, kw_only=True)
class HostPool:
    """The slots of one lane in segments: the rows of one component and layer lie side by side in each.

    Args:
        layout: What a slot holds.
        slots: Slots of this lane, in whole segments.
        segment_pages: Slots in a segment: 1 is page-first, `slots` is layer-first.
        address: Where the memory of `bytes` bytes begins; 0 for offsets, which a `HostTier` refuses.

    Raises:
        ConfigError: With everything that is wrong.
    """

    layout: PageLayout
    slots: int
    segment_pages: int = 32
    address: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be laid out or addressed."""
        conflicts = []
        if self.segment_pages < 1:
            conflicts.append(f"segment_pages is {self.segment_pages}, want at least 1")
        elif self.slots < 1 or self.slots % self.segment_pages:
            conflicts.append(f"slots is {self.slots}, want whole segments of {self.segment_pages}")
        if self.address < 0 or self.address + self.bytes > MOST_BYTES:
            conflicts.append(f"the pool ends at byte {self.address + self.bytes}, want at most {MOST_BYTES}")
        if conflicts:
            raise ConfigError("; ".join(conflicts))

    @property
    def bytes(self) -> int:
        """Bytes of all slots."""
        return self.slots * self.layout.slot_bytes

    @property
    def segment_bytes(self) -> int:
        """Bytes of a segment: the unit in which memory may be registered."""
        return self.segment_pages * self.layout.slot_bytes

    def addresses(self, slots: NDArray[np.int64], first_row: int = 0, end_row: int | None = None) -> NDArray[np.int64]:
        """Return the addresses of rows in slots, shape `(rows, slots)`.

        Segment by segment; in it row by row of the layout; in that slot by slot.

        Args:
            slots: Slots of this lane, shape `(n,)`.
            first_row: The first row of the layout that is wanted.
            end_row: The one after the last; all others if not given.

        Raises:
            PageError: There is no such slot.
        """
        if slots.size and (slots.min() < 0 or slots.max() >= self.slots):
            wrong = slots[(slots < 0) | (slots >= self.slots)]
            message = f"host slot is {wrong[0]}, want 0 to {self.slots - 1}"
            raise PageError(message)
        rows = slice(first_row, end_row)
        segments, columns = np.divmod(slots, self.segment_pages)
        in_front = self.address + segments * self.segment_bytes
        offsets = self.layout.row_offsets[rows, None] * self.segment_pages
        addresses: NDArray[np.int64] = offsets + self.layout.row_bytes[rows, None] * columns + in_front
        return addresses

    def place(self, address: int) -> Place:
        """Return what an address belongs to: the inverse of `addresses`.

        Raises:
            PageError: It lies outside.
        """
        offset = address - self.address
        if not 0 <= offset < self.bytes:
            message = f"address is {address}, want {self.address} to {self.address + self.bytes - 1}"
            raise PageError(message)
        segment, offset = divmod(offset, self.segment_bytes)
        index = int(np.searchsorted(self.layout.row_offsets * self.segment_pages, offset, side="right")) - 1
        row = self.layout.rows[index]
        column, byte = divmod(offset - row.offset * self.segment_pages, row.component.row_bytes)
        return Place(segment * self.segment_pages + column, row, byte)
