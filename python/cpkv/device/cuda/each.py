"""Runs one by one: a call of the driver for each. For drivers without a batch call, and for comparison."""

from typing import TYPE_CHECKING

from cpkv.device.cuda.arrays import CopyArrays, Queue
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import refused

if TYPE_CHECKING:
    from cpkv.device.cuda.stream import CopyStream


def each_copy(driver: Driver) -> Queue:
    """Return what queues runs one by one."""

    def queue(arrays: CopyArrays, first_row: int, end_row: int, stream: "CopyStream") -> None:
        rows = slice(first_row, end_row)
        destinations, sources, sizes = (
            array[rows].ravel().tolist() for array in (arrays.destinations, arrays.sources, arrays.sizes)
        )
        for place, (destination, source, size) in enumerate(zip(destinations, sources, sizes, strict=True)):
            code = driver.cuMemcpyAsync(destination, source, size, stream.handle)
            if code:
                raise refused(driver, f"cuMemcpyAsync {place} of {len(sizes)}", code)

    return queue
