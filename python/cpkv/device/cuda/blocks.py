"""Whole segments that follow each other: a call of the driver for each block, with two pitches."""

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from cpkv.device.cuda.abi import Copy2D
from cpkv.device.cuda.arrays import BlockArrays
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import refused

if TYPE_CHECKING:
    from cpkv.device.cuda.stream import CopyStream

QueueBlocks = Callable[[BlockArrays, int, int, "CopyStream"], None]

_BYTES: Final = ctypes.sizeof(Copy2D)


def block_copies(driver: Driver) -> QueueBlocks:
    """Return what queues the blocks of rows."""

    def queue(lines: BlockArrays, first_row: int, end_row: int, stream: "CopyStream") -> None:
        begin = lines.at + first_row * lines.blocks * _BYTES
        end = lines.at + end_row * lines.blocks * _BYTES
        for description in range(begin, end, _BYTES):
            code = driver.cuMemcpy2DAsync(description, stream.handle)
            if code:
                raise refused(driver, f"cuMemcpy2DAsync {(description - begin) // _BYTES}", code)

    return queue
