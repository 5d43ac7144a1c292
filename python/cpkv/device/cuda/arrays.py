"""The arrays of a plan as the driver takes them: where they begin, and how far it is to a row.

A layer's copies are one slice of each array, so a submission needs no more than additions. Nothing here
copies an array that is contiguous, as those of `plan_copies` are.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from cpkv.device.cuda.abi import MEMORY_DEVICE, MEMORY_HOST, Copy2D
from cpkv.device.plan import BlockCopies, CopyPlan, Direction

if TYPE_CHECKING:
    from cpkv.device.cuda.stream import CopyStream

Path = Literal["batch", "kernel", "each"]
"""How runs are copied: one call of the driver for all, a kernel, or one call for each."""
PATHS: Final[tuple[Path, ...]] = ("batch", "kernel", "each")

WORD_BYTES: Final = 8

_FORMATS: Final = {ctypes.c_int: np.int32, ctypes.c_size_t: np.uint64, ctypes.c_void_p: np.uint64}

_DESCRIPTION: Final = np.dtype(
    {
        "names": [name for name, _ in Copy2D._fields_],
        "formats": [_FORMATS[kind] for _, kind in Copy2D._fields_],
        "offsets": [getattr(Copy2D, name).offset for name, _ in Copy2D._fields_],
        "itemsize": ctypes.sizeof(Copy2D),
    }
)
"""`Copy2D` for numpy, so that all descriptions of a plan are written at once."""


def address_of(array: NDArray[Any]) -> int:
    """Return where an array begins."""
    address: int = array.__array_interface__["data"][0]
    return address


class CopyArrays:
    """Contiguous copies: three arrays of shape `(rows, runs)`, `int64`, kept alive.

    Args:
        destinations: Addresses.
        sources: Addresses.
        sizes: Bytes.
    """

    __slots__ = ("destinations", "destinations_at", "runs", "sizes", "sizes_at", "sources", "sources_at")

    def __init__(self, destinations: NDArray[np.int64], sources: NDArray[np.int64], sizes: NDArray[np.int64]) -> None:
        self.destinations = np.ascontiguousarray(destinations, np.int64)
        self.sources = np.ascontiguousarray(sources, np.int64)
        self.sizes = np.ascontiguousarray(sizes, np.int64)
        self.runs = int(self.destinations.shape[1])
        self.destinations_at = address_of(self.destinations)
        self.sources_at = address_of(self.sources)
        self.sizes_at = address_of(self.sizes)


class BlockArrays:
    """Copies with two pitches, each described as the driver wants it: `blocks` for each row.

    Args:
        copies: What is copied.
        direction: Where to.
    """

    __slots__ = ("at", "blocks", "descriptions")

    def __init__(self, copies: BlockCopies, direction: Direction) -> None:
        to_host = direction == "to_host"
        shape = copies.destinations.shape
        lines = np.zeros(shape, _DESCRIPTION)
        source, destination = ("device", "host") if to_host else ("host", "device")
        lines["source_memory"] = MEMORY_DEVICE if to_host else MEMORY_HOST
        lines[f"source_{source}"] = copies.sources
        lines["source_pitch"] = copies.source_pitches
        lines["destination_memory"] = MEMORY_HOST if to_host else MEMORY_DEVICE
        lines[f"destination_{destination}"] = copies.destinations
        lines["destination_pitch"] = copies.destination_pitches
        lines["width"] = copies.widths
        lines["height"] = copies.heights
        self.descriptions = lines
        self.blocks = int(shape[1])
        self.at = address_of(lines)


Queue = Callable[[CopyArrays, int, int, "CopyStream"], None]
"""Queues the copies from one row to before another on a stream; raises `CudaError`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedPlan(CopyPlan):
    """A plan that the engine `cuda` has prepared.

    Args:
        path: How its runs are copied.
        queue: What does that.
        arrays: The runs.
        lines: The blocks, if there are any.
    """

    path: Path
    queue: Queue
    arrays: CopyArrays
    lines: BlockArrays | None = None
