"""Where rows lie, as plain integers: on the device page by page, on the host in segments.

Owns the one formula for addresses that the kernel and its callers share, and checks what goes into it,
so that no launch can leave the pools it was described. All of it is Python integers, which do not
overflow, and the kernel computes in 64 bits.
"""

from dataclasses import dataclass
from typing import Any

from cpkv.errors import ConfigError, InputTypeError
from cpkv.layout import DevicePool, HostPool

MAX_ROW_BYTES = 1 << 30
"""Inside a row and a tile behind it the kernel counts words in 32 bits."""
ADDRESS_SPACE_BYTES = 1 << 63


def check_integers(owner: str, values: dict[str, Any], at_least: dict[str, int]) -> list[str]:
    """List what is too small; raise `InputTypeError` for what is no integer."""
    wrong = {name: value for name, value in values.items() if type(value) is not int}
    if wrong:
        seen = ", ".join(f"{name} {value!r}" for name, value in wrong.items())
        message = f"{owner} wants integers, not {seen}"
        raise InputTypeError(message)
    return [
        f"{name} is {values[name]}, want {least} or more" for name, least in at_least.items() if values[name] < least
    ]


def refuse(owner: str, conflicts: list[str]) -> None:
    """Raise one `ConfigError` for all conflicts, if there are any."""
    if conflicts:
        message = f"{owner}: {'; '.join(conflicts)}"
        raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSegments:
    """The host pool of one lane.

    Attributes:
        base: Address of its first byte, for pinned memory the one that the GPU uses too.
        slots: Number of slots, whole segments.
        segment_pages: Slots of one segment; 1 is page-first, `slots` is layer-first.
        slot_bytes: Bytes of one slot: all components and layers.
    """

    base: int
    slots: int
    segment_pages: int
    slot_bytes: int

    def __post_init__(self) -> None:
        """Refuse what is no pool."""
        values = {
            "base": self.base,
            "slots": self.slots,
            "segment_pages": self.segment_pages,
            "slot_bytes": self.slot_bytes,
        }
        least = {"base": 0, "slots": 1, "segment_pages": 1, "slot_bytes": 1}
        conflicts = check_integers("HostSegments", values, least)
        if not conflicts and self.slots % self.segment_pages:
            conflicts.append(f"slots is {self.slots}, want whole segments of {self.segment_pages}")
        if not conflicts and self.base + self.pool_bytes > ADDRESS_SPACE_BYTES:
            conflicts.append(f"{self.pool_bytes} bytes at {self.base:#x} end beyond 2**63")
        refuse("HostSegments", conflicts)

    @classmethod
    def of(cls, host: HostPool) -> "HostSegments":
        """Describe the host pool of a `cpkv.layout`."""
        return cls(
            base=host.address,
            slots=host.slots,
            segment_pages=host.segment_pages,
            slot_bytes=host.layout.slot_bytes,
        )

    @property
    def pool_bytes(self) -> int:
        """Bytes of the whole pool."""
        return self.slots * self.slot_bytes

    @property
    def segment_bytes(self) -> int:
        """Bytes of one segment."""
        return self.segment_pages * self.slot_bytes

    def row_address(self, slot: int, rows: "LayerRows") -> int:
        """Compute the address of the row of `rows` in a slot."""
        segment, column = divmod(slot, self.segment_pages)
        in_segment = rows.offset_bytes * self.segment_pages + column * rows.row_bytes
        return self.base + segment * self.segment_bytes + in_segment


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRows:
    """The rows of one component in one layer; K and V in buffers of their own are two of these.

    Attributes:
        base: Address of the row of page 0 on the device.
        pages: Number of pages there.
        stride_bytes: From one page's row to the next.
        row_bytes: Bytes of one page's row.
        offset_bytes: Bytes in front of the row in a slot, of other components and layers.
    """

    base: int
    pages: int
    stride_bytes: int
    row_bytes: int
    offset_bytes: int

    def __post_init__(self) -> None:
        """Refuse what are no rows."""
        values = {
            "base": self.base,
            "pages": self.pages,
            "stride_bytes": self.stride_bytes,
            "row_bytes": self.row_bytes,
            "offset_bytes": self.offset_bytes,
        }
        least = {"base": 0, "pages": 1, "row_bytes": 1, "offset_bytes": 0}
        conflicts = check_integers("LayerRows", values, least)
        if self.row_bytes > MAX_ROW_BYTES:
            conflicts.append(f"row_bytes is {self.row_bytes}, want {MAX_ROW_BYTES} or less")
        if self.stride_bytes < self.row_bytes:
            conflicts.append(f"stride_bytes is {self.stride_bytes}, want the {self.row_bytes} of a row or more")
        if not conflicts and self.base + self.pages * self.stride_bytes > ADDRESS_SPACE_BYTES:
            conflicts.append(f"{self.pages} pages of {self.stride_bytes} bytes at {self.base:#x} end beyond 2**63")
        refuse("LayerRows", conflicts)

    @classmethod
    def of(cls, buffer: Any, *, offset_bytes: int) -> "LayerRows":  # noqa: ANN401 - a torch tensor
        """Describe a layer's buffer, whose first dimension is pages.

        Args:
            buffer: Tensor of shape `(pages, ...)`, any dtype; the rest of a page has no gaps.
            offset_bytes: Bytes in front of the row in a slot.

        Raises:
            ConfigError: A page of the buffer is not one run of bytes.
        """
        if buffer.dim() < 2 or not buffer[:1].is_contiguous():  # noqa: PLR2004 - pages and what is in one
            shape, strides = tuple(buffer.shape), buffer.stride()
            refuse("LayerRows", [f"a buffer of shape {shape} and strides {strides}, want pages without gaps inside"])
        item = buffer.element_size()
        row_bytes = buffer[:1].numel() * item
        stride_bytes = buffer.stride(0) * item if len(buffer) > 1 else row_bytes
        return cls(
            base=buffer.data_ptr(),
            pages=len(buffer),
            stride_bytes=stride_bytes,
            row_bytes=row_bytes,
            offset_bytes=offset_bytes,
        )

    @classmethod
    def of_layer(cls, device: DevicePool, layer: int) -> "list[LayerRows]":
        """Describe what a layer of a forward has, in the order of its rows.

        Args:
            device: The device pool of a `cpkv.layout`.
            layer: Those of the target come first, then those of the draft.
        """
        layout = device.layout
        first = layout.first_rows[layer]
        return [
            cls(
                base=int(device.row_addresses[place]),
                pages=device.pages,
                stride_bytes=int(device.row_strides[place]),
                row_bytes=row.component.row_bytes,
                offset_bytes=row.offset,
            )
            for place, row in enumerate(layout.rows_of(layer), first)
        ]

    def page_address(self, page: int) -> int:
        """Compute the address of a page's row."""
        return self.base + page * self.stride_bytes
