"""A short measurement of what copies cost here: both directions, short and long runs, every path.

Runs lie at shuffled places on both sides of scratch memory. Takes some tenths of a second and 100 MB, and
what else runs on the GPU or the link at that time is measured along.
"""

import ctypes
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numpy.typing import NDArray

from cpkv.device.cuda.abi import EVENT_DEFAULT, STREAM_NON_BLOCKING
from cpkv.device.cuda.arrays import BlockArrays, CopyArrays, Path, Queue
from cpkv.device.cuda.blocks import QueueBlocks
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.events import new_event
from cpkv.device.cuda.failures import check, release
from cpkv.device.cuda.figures import DIRECTIONS, Figure, Figures
from cpkv.device.cuda.ring import allocate_device, allocate_host
from cpkv.device.plan import BlockCopies, Direction

if TYPE_CHECKING:
    from cpkv.device.cuda.stream import CopyStream

SCRATCH_BYTES: Final = 48 << 20
ROW_BYTES: Final = (8_448, 73_728)
"""An index row and an MLA row of 64 tokens in bf16: the short and the long end of what there is."""
RUN_PAGES: Final = (1, 4, 16, 32)
MOST_COPIES: Final = 512
BLOCK_LINES: Final = 8
REPEATS: Final = 3
"""Calls in a row, so that the link does not wait for the first of them to be made."""
ROUNDS: Final = 2
"""The better one counts."""

_logger: Final = logging.getLogger("cpkv.device")


class ScratchStream:
    """A stream of the measurement alone, as a path wants to see one."""

    def __init__(self, driver: Driver, stack: ExitStack) -> None:
        handle = ctypes.c_void_p()
        code = driver.cuStreamCreateWithPriority(ctypes.byref(handle), STREAM_NON_BLOCKING, 0)
        check(driver, "cuStreamCreateWithPriority", code)
        stack.callback(release, driver, "cuStreamDestroy", handle.value)
        self.handle = handle.value or 0
        self.last = 0
        self.ended = 0

    def reached(self) -> int:
        """Return the last call that has ended."""
        return self.ended


class Calibration:
    """Scratch memory, a stream and a clock on it.

    Args:
        driver: The driver; the context is current.
        stack: Gives everything back.

    Raises:
        CudaError: There is not so much memory, or the driver refuses.
    """

    def __init__(self, driver: Driver, stack: ExitStack) -> None:
        self._driver = driver
        self._host = allocate_host(driver, SCRATCH_BYTES, stack)
        self._device = allocate_device(driver, SCRATCH_BYTES, stack)
        self._begin = new_event(driver, EVENT_DEFAULT, stack)
        self._end = new_event(driver, EVENT_DEFAULT, stack)
        self.stream = ScratchStream(driver, stack)

    def measure(self, machine: str, paths: Mapping[Path, Queue], blocks: QueueBlocks) -> Figures:
        """Measure every path in both directions.

        Raises:
            CudaError: The driver refuses.
        """
        begun = time.perf_counter()
        sizes = sorted({row * pages for row in ROW_BYTES for pages in RUN_PAGES})
        figures = Figures(
            source=f"measured on {machine}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            runs={
                direction: {
                    path: tuple(self._runs(direction, queue, size) for size in sizes) for path, queue in paths.items()
                }
                for direction in DIRECTIONS
            },
            blocks={direction: self._block(direction, blocks) for direction in DIRECTIONS},
        )
        _logger.info("the cost of copies was measured in %.2f s", time.perf_counter() - begun)
        return figures

    def _runs(self, direction: Direction, queue: Queue, size: int) -> Figure:
        copies = min(SCRATCH_BYTES // size, MOST_COPIES)
        random = np.random.default_rng(size)
        host = self._host + random.permutation(copies).reshape(1, -1) * size
        device = self._device + random.permutation(copies).reshape(1, -1) * size
        arrays = CopyArrays(*_ordered(direction, host, device), np.full((1, copies), size, np.int64))
        stream = cast("CopyStream", self.stream)
        link_us, submit_us = self._time(lambda: queue(arrays, 0, 1, stream))
        return Figure(size, link_us / copies, submit_us / copies)

    def _block(self, direction: Direction, queue: QueueBlocks) -> Figure:
        width = ROW_BYTES[-1] * RUN_PAGES[-1]
        one = np.ones((1, 1), np.int64)
        sides = _ordered(direction, one * self._host, one * self._device)
        # Half of the scratch memory on the host lies between the lines.
        pitches = _ordered(direction, one * 2 * width, one * width)
        copies = BlockCopies(*sides, *pitches, one * width, one * BLOCK_LINES)
        lines = BlockArrays(copies, direction)
        stream = cast("CopyStream", self.stream)
        link_us, submit_us = self._time(lambda: queue(lines, 0, 1, stream))
        return Figure(width, link_us / BLOCK_LINES, submit_us)

    def _time(self, submit: Callable[[], None]) -> tuple[float, float]:
        """Return the microseconds of the link and of this thread for one call."""
        self._one(submit)
        rounds = [self._one(submit) for _ in range(ROUNDS)]
        return min(link for link, _ in rounds), min(cpu for _, cpu in rounds)

    def _one(self, submit: Callable[[], None]) -> tuple[float, float]:
        driver, stream = self._driver, self.stream
        check(driver, "cuEventRecord", driver.cuEventRecord(self._begin, stream.handle))
        begun = time.perf_counter_ns()
        for _ in range(REPEATS):
            stream.last += 1
            submit()
        spent_us = (time.perf_counter_ns() - begun) / 1e3
        check(driver, "cuEventRecord", driver.cuEventRecord(self._end, stream.handle))
        check(driver, "cuEventSynchronize", driver.cuEventSynchronize(self._end))
        stream.ended = stream.last
        elapsed_ms = ctypes.c_float()
        code = driver.cuEventElapsedTime(ctypes.byref(elapsed_ms), self._begin, self._end)
        check(driver, "cuEventElapsedTime", code)
        return elapsed_ms.value * 1e3 / REPEATS, spent_us / REPEATS


def _ordered(
    direction: Direction, host: NDArray[np.int64], device: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return destination and source."""
    return (host, device) if direction == "to_host" else (device, host)
