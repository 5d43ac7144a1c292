"""What the link of a GPU carries: large copies one after the other, between scratch memory of both sides."""

import ctypes
from contextlib import ExitStack
from typing import Final

from cpkv.device import Direction
from cpkv.device.cuda.abi import EVENT_DEFAULT, STREAM_NON_BLOCKING
from cpkv.device.cuda.context import Context
from cpkv.device.cuda.driver import Driver, load_driver
from cpkv.device.cuda.events import new_event
from cpkv.device.cuda.failures import check, release
from cpkv.device.cuda.ring import allocate_device, allocate_host

SIZE: Final = 64 << 20
"""Bytes of a copy: half a millisecond and more on any link, beside which starting it is nothing."""
COPIES: Final = 8
ROUNDS: Final = 3
"""The best one counts; the first also wakes the link up."""
DIRECTIONS: Final[tuple[Direction, ...]] = ("to_host", "to_device")


def link_rates(device: int, driver: Driver | None = None) -> dict[Direction, float]:
    """Return GB/s (10⁹ bytes a second) for each direction. Takes some hundredths of a second.

    Args:
        device: Which GPU, as the process counts them.
        driver: The driver; loaded if not given.

    Raises:
        ConfigError: There is no driver, or no such GPU.
        CudaError: There is no memory for it, or the driver refuses.
    """
    driver = driver or load_driver()
    with ExitStack() as stack:
        context = Context(driver, device, stack)
        with context.current(), ExitStack() as scratch:
            sides = allocate_host(driver, SIZE, scratch), allocate_device(driver, SIZE, scratch)
            begin, end = (new_event(driver, EVENT_DEFAULT, scratch) for _ in range(2))
            stream = _stream(driver, scratch)
            # Whatever goes wrong: no memory is freed with copies under way.
            scratch.callback(release, driver, "cuStreamSynchronize", stream)
            return {
                direction: max(_rate(driver, stream, direction, sides, (begin, end)) for _ in range(ROUNDS))
                for direction in DIRECTIONS
            }


def _stream(driver: Driver, stack: ExitStack) -> int:
    handle = ctypes.c_void_p()
    code = driver.cuStreamCreateWithPriority(ctypes.byref(handle), STREAM_NON_BLOCKING, 0)
    check(driver, "cuStreamCreateWithPriority", code)
    stack.callback(release, driver, "cuStreamDestroy", handle.value)
    return handle.value or 0


def _rate(driver: Driver, stream: int, direction: Direction, sides: tuple[int, int], events: tuple[int, int]) -> float:
    host, device = sides
    destination, source = (host, device) if direction == "to_host" else (device, host)
    begin, end = events
    check(driver, "cuEventRecord", driver.cuEventRecord(begin, stream))
    for _ in range(COPIES):
        check(driver, "cuMemcpyAsync", driver.cuMemcpyAsync(destination, source, SIZE, stream))
    check(driver, "cuEventRecord", driver.cuEventRecord(end, stream))
    check(driver, "cuEventSynchronize", driver.cuEventSynchronize(end))
    elapsed_ms = ctypes.c_float()
    check(driver, "cuEventElapsedTime", driver.cuEventElapsedTime(ctypes.byref(elapsed_ms), begin, end))
    return COPIES * SIZE / max(elapsed_ms.value, 1e-6) / 1e6
