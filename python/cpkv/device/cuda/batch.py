"""Runs by one call: the driver takes all copies of a layer at once and orders none of them.

The call needs a stream that is not the legacy one and not captured. It had a place for the index of the
copy that failed in CUDA 12.8 and 12.9, and has none since 13.0.
"""

import ctypes
from typing import TYPE_CHECKING

from cpkv.device.cuda.abi import BATCH_WITHOUT_INDEX_VERSION, SOURCE_IN_STREAM_ORDER, CopyAttributes
from cpkv.device.cuda.arrays import WORD_BYTES, CopyArrays, Queue
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import refused

if TYPE_CHECKING:
    from cpkv.device.cuda.stream import CopyStream


def batch_copies(driver: Driver) -> Queue | None:
    """Return what queues runs in one call; `None` if the driver has no such call."""
    copy = driver.cuMemcpyBatchAsync
    if copy is None:
        return None
    # All copies have the same attributes: the first set begins at the first copy.
    attributes = CopyAttributes(source_access_order=SOURCE_IN_STREAM_ORDER)
    first = ctypes.c_size_t(0)
    failed = ctypes.c_size_t()
    attributes_at, first_at, failed_at = ctypes.byref(attributes), ctypes.byref(first), ctypes.byref(failed)

    def queue(arrays: CopyArrays, first_row: int, end_row: int, stream: "CopyStream") -> None:
        count = (end_row - first_row) * arrays.runs
        if not count:
            return
        skipped = first_row * arrays.runs * WORD_BYTES
        code = copy(
            arrays.destinations_at + skipped,
            arrays.sources_at + skipped,
            arrays.sizes_at + skipped,
            count,
            attributes_at,
            first_at,
            1,
            stream.handle,
        )
        if code:
            raise refused(driver, f"cuMemcpyBatchAsync of {count} copies", code)

    def queue_with_index(arrays: CopyArrays, first_row: int, end_row: int, stream: "CopyStream") -> None:
        count = (end_row - first_row) * arrays.runs
        if not count:
            return
        skipped = first_row * arrays.runs * WORD_BYTES
        code = copy(
            arrays.destinations_at + skipped,
            arrays.sources_at + skipped,
            arrays.sizes_at + skipped,
            count,
            attributes_at,
            first_at,
            1,
            failed_at,
            stream.handle,
        )
        if code:
            # A failure that is not one copy's own has the highest number there is.
            hint = f", at copy {failed.value}" if failed.value < count else ""
            raise refused(driver, f"cuMemcpyBatchAsync of {count} copies", code, hint)

    return queue if driver.version >= BATCH_WITHOUT_INDEX_VERSION else queue_with_index
