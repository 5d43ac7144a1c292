"""A little pinned memory and as much on the device, given out in turns until a stream has passed."""

import ctypes
from collections import deque
from contextlib import ExitStack

from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import check, release


class Ring:
    """The same bytes on the host and on the device, freed when `stack` is closed.

    Args:
        driver: The driver.
        size: Bytes.
        stack: Frees them.

    Raises:
        CudaError: There is not so much memory.
    """

    def __init__(self, driver: Driver, size: int, stack: ExitStack) -> None:
        self.size = size
        self.host = allocate_host(driver, size, stack)
        self.device = allocate_device(driver, size, stack)
        self._begin = self._end = 0
        """Bytes given back, and given out, since all were free."""
        self._taken: deque[tuple[int, int]] = deque()
        """Number of the submission and end of each piece."""

    def take(self, size: int, sequence: int, reached: int) -> int | None:
        """Return the offset of `size` bytes, or `None` if so many are in use.

        Args:
            size: Bytes, side by side.
            sequence: The submission that uses them.
            reached: The submission up to which all have ended.
        """
        while self._taken and self._taken[0][0] <= reached:
            self._begin = self._taken.popleft()[1]
        if not self._taken:
            self._begin = self._end = 0
        begin = self._end
        if begin % self.size + size > self.size:
            begin += self.size - begin % self.size
        if begin + size - self._begin > self.size:
            return None
        self._end = begin + size
        self._taken.append((sequence, self._end))
        return begin % self.size


def allocate_host(driver: Driver, size: int, stack: ExitStack) -> int:
    """Return the address of pinned memory that is freed when `stack` is closed.

    Raises:
        CudaError: There is not so much.
    """
    memory = ctypes.c_void_p()
    check(driver, f"cuMemHostAlloc of {size} bytes", driver.cuMemHostAlloc(ctypes.byref(memory), size, 0))
    stack.callback(release, driver, "cuMemFreeHost", memory.value)
    return memory.value or 0


def allocate_device(driver: Driver, size: int, stack: ExitStack) -> int:
    """Return the address of device memory that is freed when `stack` is closed.

    Raises:
        CudaError: There is not so much.
    """
    memory = ctypes.c_uint64()
    check(driver, f"cuMemAlloc of {size} bytes", driver.cuMemAlloc(ctypes.byref(memory), size))
    stack.callback(release, driver, "cuMemFree", memory.value)
    return memory.value
