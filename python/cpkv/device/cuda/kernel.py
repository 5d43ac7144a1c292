"""Runs by a kernel on a few multiprocessors: one launch for a layer, however short its runs are.

It costs the forward the multiprocessors it runs on, so it is chosen only where the copy engines of the
GPU are much slower. Its arrays have to lie where the device sees them: they go through a ring.
"""

import ctypes
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from cpkv.device.cuda.abi import FUNCTION_REGISTERS
from cpkv.device.cuda.arrays import WORD_BYTES, CopyArrays, Queue
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import check, refused, release
from cpkv.device.cuda.kernel_code import CODE, NAME, THREADS
from cpkv.device.cuda.ring import Ring

if TYPE_CHECKING:
    from cpkv.device.cuda.stream import CopyStream

RING_BYTES: Final = 4 << 20
"""For each stream: the arrays of 174,762 copies under way."""

_move = ctypes.memmove


class CopyKernel:
    """The loaded kernel, and a ring for each stream.

    Args:
        driver: The driver.
        quota: Blocks of the grid, one on a multiprocessor.
        instead: What queues copies when so many are under way that a ring is full.
        stack: Unloads it.

    Raises:
        CudaError: It cannot be loaded.
    """

    def __init__(self, driver: Driver, quota: int, instead: Queue, stack: ExitStack) -> None:
        self._driver = driver
        self._quota = quota
        self._instead = instead
        self._rings: dict[int, Ring] = {}
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver, "cuModuleLoadData", driver.cuModuleLoadData(ctypes.byref(module), CODE))
        stack.callback(release, driver, "cuModuleUnload", module.value)
        check(
            driver,
            "cuModuleGetFunction",
            driver.cuModuleGetFunction(ctypes.byref(function), module.value, NAME),
        )
        self._function = function.value
        # Asked so that the kernel is loaded now: at its first launch that could wait for the whole GPU.
        registers = ctypes.c_int()
        code = driver.cuFuncGetAttribute(ctypes.byref(registers), FUNCTION_REGISTERS, self._function)
        check(driver, "cuFuncGetAttribute", code)
        self._arrays = ctypes.c_uint64()
        self._count = ctypes.c_uint64()
        # The driver reads the arguments during the launch.
        self._arguments = (ctypes.c_void_p * 2)(ctypes.addressof(self._arrays), ctypes.addressof(self._count))

    def prepare(self, stream: "CopyStream", stack: ExitStack) -> None:
        """Get the memory of a stream's ring, so that no submission has to. `stack` frees it.

        Raises:
            CudaError: There is not so much memory.
        """
        if stream.handle not in self._rings:
            self._rings[stream.handle] = Ring(self._driver, RING_BYTES, stack)

    def forget(self, stream: "CopyStream") -> None:
        """Use a stream's ring no more, as it is about to be freed."""
        self._rings.pop(stream.handle, None)

    def queue(self, arrays: CopyArrays, first_row: int, end_row: int, stream: "CopyStream") -> None:
        """Queue the copies of rows."""
        count = (end_row - first_row) * arrays.runs
        if not count:
            return
        ring = self._rings.get(stream.handle)
        column = count * WORD_BYTES
        offset = None if ring is None else ring.take(3 * column, stream.last, stream.reached())
        if ring is None or offset is None:
            self._instead(arrays, first_row, end_row, stream)
            return
        skipped = first_row * arrays.runs * WORD_BYTES
        on_host = ring.host + offset
        _move(on_host, arrays.destinations_at + skipped, column)
        _move(on_host + column, arrays.sources_at + skipped, column)
        _move(on_host + 2 * column, arrays.sizes_at + skipped, column)
        driver = self._driver
        code = driver.cuMemcpyAsync(ring.device + offset, on_host, 3 * column, stream.handle)
        if code:
            raise refused(driver, "cuMemcpyAsync of the kernel's arrays", code)
        self._arrays.value = ring.device + offset
        self._count.value = count
        code = driver.cuLaunchKernel(
            self._function, self._quota, 1, 1, THREADS, 1, 1, 0, stream.handle, self._arguments, None
        )
        if code:
            raise refused(driver, f"cuLaunchKernel for {count} copies", code)
