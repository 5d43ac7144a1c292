"""The engine's own device memory, described by addresses and strides, never copied or laid out anew."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpkv.errors import ConfigError, PageError
from cpkv.layout.component import Component
from cpkv.layout.page_layout import MOST_BYTES, PageLayout


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """The buffers of one component, one for each layer that owns one, in the order of its layers.

    Args:
        addresses: Where page 0 begins.
        stride_bytes: From a page to the next.
        row_bytes: Bytes of a page.
        pages: Pages in each.
        owners: What keeps the memory alive; held on to.
    """

    addresses: tuple[int, ...]
    stride_bytes: int
    row_bytes: int
    pages: int
    owners: tuple[Any, ...] = field(default=(), repr=False, compare=False)
    _where: tuple[Callable[[], int], ...] = field(init=False, repr=False, compare=False)
    """For each owner what tells its address: looked up once, as it is called with every layer."""

    def __post_init__(self) -> None:
        """Look up what tells the owners' addresses."""
        object.__setattr__(self, "_where", tuple(map(_teller, self.owners)))

    @classmethod
    def of(cls, tensors: Sequence[Any], *, tokens_per_page: int = 1) -> "Buffers":
        """Describe torch tensors or numpy arrays, alike in shape and strides.

        Args:
            tensors: One for each layer. The first dimension counts pages, or tokens.
            tokens_per_page: Entries of the first dimension that make a page: 1 if it counts pages.

        Raises:
            ConfigError: They differ, cannot be written, or the bytes of a page do not lie side by side.
        """
        if tokens_per_page < 1:
            message = f"tokens_per_page is {tokens_per_page}, want at least 1"
            raise ConfigError(message)
        if not tensors:
            return cls(addresses=(), stride_bytes=0, row_bytes=0, pages=0)
        shapes = [_shape(tensor) for tensor in tensors]
        if len(set(shapes)) > 1:
            other = next(index for index, shape in enumerate(shapes) if shape != shapes[0])
            message = f"tensor {other} has {shapes[other]}, want {shapes[0]} like the first"
            raise ConfigError(message)
        shape = shapes[0]
        inner = shape.element_bytes
        for size, stride in reversed(list(zip(shape.sizes[1:], shape.strides_bytes[1:], strict=True))):
            if size > 1 and stride != inner:
                message = f"a tensor has {shape}, want the bytes of a page side by side"
                raise ConfigError(message)
            inner *= size
        if tokens_per_page > 1 and shape.strides_bytes[0] != inner:
            message = f"a tensor has {shape}, want {inner} bytes from a token to the next"
            raise ConfigError(message)
        return cls(
            addresses=tuple(_teller(tensor)() for tensor in tensors),
            stride_bytes=shape.strides_bytes[0] * tokens_per_page,
            row_bytes=inner * tokens_per_page,
            pages=shape.sizes[0] // tokens_per_page,
            owners=tuple(tensors),
        )

    def end(self, place: int) -> int:
        """Return the address behind the last page of a buffer."""
        return self.addresses[place] + (self.pages - 1) * self.stride_bytes + self.row_bytes

    def devices(self) -> set[str]:
        """Return where its torch tensors are, such as `cuda:0`; nothing if they do not say so."""
        return {str(one.device) for one in self.owners if hasattr(one, "data_ptr") and hasattr(one, "device")}

    def teller(self, place: int) -> Callable[[], int] | None:
        """Return what tells where a buffer is now; `None` if nobody knows."""
        return self._where[place] if self._where else None


@dataclass(frozen=True)
class DevicePool:
    """The device pages of a lane, layer by layer as the engine has them.

    Args:
        layout: What a page has.
        buffers: For each component its buffers, by its name.

    Raises:
        ConfigError: With everything that does not fit.
    """

    layout: PageLayout
    buffers: Mapping[str, Buffers]
    pages: int = field(init=False)
    row_addresses: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    row_strides: NDArray[np.int64] = field(init=False, repr=False, compare=False)
    is_dense: bool = field(init=False)
    """Whether neighbouring pages lie side by side in every buffer, so that runs of them are one copy."""
    _tellers: tuple[tuple[tuple[Callable[[], int], int, str], ...], ...] = field(init=False, repr=False, compare=False)
    """For each layer of the forward its tensors: what tells the address, what it was, and the component."""

    def __post_init__(self) -> None:
        """Refuse what does not fit, and look every row up once."""
        conflicts = list(self._conflicts())
        if conflicts:
            raise ConfigError("; ".join(conflicts))
        addresses, strides = [], []
        tellers: list[list[tuple[Callable[[], int], int, str]]] = []
        for layer in range(self.layout.layers):
            tellers.append([])
            for row in self.layout.rows_of(layer):
                buffers, place = self.buffers[row.component.name], row.component.layers.index(row.layer)
                addresses.append(buffers.addresses[place])
                strides.append(buffers.stride_bytes)
                tell = buffers.teller(place)
                if tell is not None:
                    tellers[layer].append((tell, buffers.addresses[place], row.component.name))
        object.__setattr__(self, "_tellers", tuple(map(tuple, tellers)))
        owned = [buffers.pages for buffers in self.buffers.values() if buffers.addresses]
        object.__setattr__(self, "pages", min(owned, default=0))
        object.__setattr__(self, "row_addresses", np.array(addresses, np.int64))
        object.__setattr__(self, "row_strides", np.array(strides, np.int64))
        object.__setattr__(self, "is_dense", bool((self.row_strides == self.layout.row_bytes).all()))

    def _conflicts(self) -> list[str]:
        wanted = {component.name for component in self.layout.components}
        wrong = [f"there are buffers {name!r}, which no component has" for name in sorted(self.buffers.keys() - wanted)]
        pages = {name: buffers.pages for name, buffers in self.buffers.items() if buffers.addresses}
        if len(set(pages.values())) > 1:
            listed = ", ".join(f"{name} {count}" for name, count in pages.items())
            wrong.append(f"buffers have different numbers of pages ({listed}), want the same")
        for component in self.layout.components:
            buffers = self.buffers.get(component.name)
            if buffers is None:
                wrong.append(f"{component.name} has no buffers")
                continue
            if len(buffers.addresses) != len(component.layers):
                wrong.append(
                    f"{component.name} has {len(buffers.addresses)} buffers, want {len(component.layers)}, "
                    "one for each layer that owns one"
                )
            if component.layers:
                wrong += _misfits(component, buffers)
        return wrong + self._overlaps()

    def _overlaps(self) -> list[str]:
        """Two buffers that share bytes: one page would be written over by another component's.

        Buffers that take turns, page by page, such as K and V in one tensor, share none.
        """
        ranges = sorted(
            (address, name, place, buffers)
            for name, buffers in self.buffers.items()
            if buffers.pages > 0
            for place, address in enumerate(buffers.addresses)
        )
        wrong = []
        for index, (begin, name, place, buffers) in enumerate(ranges):
            end = buffers.end(place)
            for other_begin, other, other_place, others in ranges[index + 1 :]:
                if other_begin >= end:
                    break
                if not _take_turns(other_begin - begin, buffers, others):
                    wrong.append(f"buffers {place} of {name} and {other_place} of {other} overlap")
        return wrong

    def addresses(self, pages: NDArray[np.int64], first_row: int = 0, end_row: int | None = None) -> NDArray[np.int64]:
        """Return the addresses of rows in pages, shape `(rows, pages)`.

        Args:
            pages: Physical pages of this lane, shape `(n,)`.
            first_row: The first row of the layout that is wanted.
            end_row: The one after the last; all others if not given.

        Raises:
            PageError: There is no such page.
        """
        if pages.size and (pages.min() < 0 or pages.max() >= self.pages):
            wrong = pages[(pages < 0) | (pages >= self.pages)]
            message = f"device page is {wrong[0]}, want 0 to {self.pages - 1}"
            raise PageError(message)
        rows = slice(first_row, end_row)
        return self.row_strides[rows, None] * pages + self.row_addresses[rows, None]

    def check_alive(self, first_layer: int = 0, end_layer: int | None = None) -> None:
        """Look whether the tensors of some layers still have the memory that was described. Cheap.

        Args:
            first_layer: The first layer of the forward that is looked at.
            end_layer: The one after the last; all others if not given.

        Raises:
            ConfigError: With the components whose memory was given up or moved.
        """
        moved = {
            name
            for tensors in self._tellers[first_layer:end_layer]
            for tell, address, name in tensors
            if tell() != address
        }
        if moved:
            names = ", ".join(sorted(moved))
            message = f"the device memory of {names} has moved or was freed: describe the pool anew"
            raise ConfigError(message)


def _misfits(component: Component, buffers: Buffers) -> list[str]:
    """What of the buffers of a component that owns layers does not fit it, or cannot be addressed."""
    wrong = []
    if buffers.row_bytes != component.row_bytes:
        wrong.append(
            f"{component.name} has pages of {buffers.row_bytes} bytes on the device, want {component.row_bytes}"
        )
    if buffers.stride_bytes < buffers.row_bytes:
        wrong.append(
            f"{component.name} has {buffers.stride_bytes} bytes from a page to the next, "
            f"want at least {buffers.row_bytes}"
        )
    if buffers.pages < 1:
        wrong.append(f"{component.name} has {buffers.pages} pages, want at least 1")
    ends = [buffers.end(place) for place in range(len(buffers.addresses))]
    if max(ends, default=0) > MOST_BYTES:
        wrong.append(f"{component.name} has a buffer that ends at byte {max(ends)}, want at most {MOST_BYTES}")
    if min(buffers.addresses, default=1) < 1:
        wrong.append(f"{component.name} has a buffer at address {min(buffers.addresses)}: it has no memory")
    return wrong


def _take_turns(distance: int, first: Buffers, second: Buffers) -> bool:
    """Whether the rows of a buffer, so far behind another, lie between the rows of that one."""
    stride = first.stride_bytes
    if second.stride_bytes != stride or not stride:
        return False
    offset = distance % stride
    return first.row_bytes <= offset <= stride - second.row_bytes


@dataclass(frozen=True, slots=True)
class _Shape:
    sizes: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    element_bytes: int

    def __str__(self) -> str:
        return f"shape {self.sizes} and strides of {self.strides_bytes} bytes"


def _shape(tensor: Any) -> _Shape:  # noqa: ANN401 - torch or numpy
    if hasattr(tensor, "data_ptr"):
        element_bytes = tensor.element_size()
        strides = tuple(stride * element_bytes for stride in tensor.stride())
    elif not hasattr(tensor, "__array_interface__"):
        message = f"a buffer is a {type(tensor).__name__}, want a torch tensor or a numpy array"
        raise ConfigError(message)
    elif tensor.__array_interface__["data"][1]:
        message = "an array is read-only, want one that restores can write to"
        raise ConfigError(message)
    else:
        element_bytes = tensor.itemsize
        strides = tuple(tensor.strides)
    shape = _Shape(tuple(tensor.shape), strides, element_bytes)
    if not shape.sizes:
        message = f"a tensor has {shape}, want pages in its first dimension"
        raise ConfigError(message)
    return shape


def _teller(tensor: Any) -> Callable[[], int]:  # noqa: ANN401 - torch or numpy
    if hasattr(tensor, "data_ptr"):
        tell: Callable[[], int] = tensor.data_ptr
        return tell
    return lambda: int(tensor.__array_interface__["data"][0])
