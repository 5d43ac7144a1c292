"""Host memory that a GPU reads and writes directly."""

import mmap
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import numpy as np

from cpkv.bench.copy.cuda_runtime import CudaRuntime

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOUCHING: Final = 8
"""Threads that touch the memory: one of them takes a second for a few gigabytes."""


class PinnedMemory:
    """Anonymous memory in huge pages where they can be had, touched and pinned.

    Args:
        runtime: Pins it.
        size: Bytes.
    """

    def __init__(self, runtime: CudaRuntime, size: int) -> None:
        self._runtime = runtime
        self._mapping = mmap.mmap(-1, size)
        with suppress(OSError):  # only slower
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self.array: NDArray[np.uint8] = np.frombuffer(self._mapping, np.uint8)
        with ThreadPoolExecutor(TOUCHING) as threads:
            list(threads.map(lambda part: part.fill(0), np.array_split(self.array, TOUCHING)))
        self.address = self.array.ctypes.data
        runtime.register(self.address, size)

    def close(self) -> None:
        """Unpin it. It is unmapped when nothing refers to it any more."""
        self._runtime.unregister(self.address)
