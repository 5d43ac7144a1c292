"""Points in streams, to be waited for: made once, used again."""

import ctypes
import weakref
from contextlib import ExitStack
from typing import Final

from cpkv.device.cuda.abi import EVENT_DISABLE_TIMING
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import check, refused, release
from cpkv.device.engine import ComputeStream


class EventPool:
    """Events without times, all of them destroyed when `stack` is closed.

    A wait that was queued keeps the point that the event had then. So an event may be recorded again as
    soon as nobody will ask for its old point any more, whether or not the stream has reached it.
    """

    def __init__(self, driver: Driver, stack: ExitStack) -> None:
        self._driver = driver
        self._stack = stack
        self._free: list[int] = []

    def take(self) -> int:
        """Return an event that nobody else has.

        Raises:
            CudaError: No other can be made.
        """
        if self._free:
            return self._free.pop()
        return new_event(self._driver, EVENT_DISABLE_TIMING, self._stack)

    def give(self, event: int) -> None:
        """Take an event back whose point nobody will ask for."""
        self._free.append(event)


class Mark:
    """A point of a stream, to be waited for any number of times. Its event goes back to the pool with it.

    Args:
        pool: Whose event it takes.
    """

    def __init__(self, pool: EventPool) -> None:
        self.event: Final = pool.take()
        weakref.finalize(self, pool.give, self.event)

    def record(self, driver: Driver, compute: ComputeStream) -> None:
        """Stand for what is queued on a stream by now.

        Raises:
            CudaError: The driver refuses.
        """
        code = driver.cuEventRecord(self.event, compute)
        if code:
            raise refused(driver, f"cuEventRecord on the compute stream {compute}", code)


def new_event(driver: Driver, flags: int, stack: ExitStack) -> int:
    """Return an event of the current context that is destroyed when `stack` is closed.

    Raises:
        CudaError: It cannot be made.
    """
    event = ctypes.c_void_p()
    check(driver, "cuEventCreate", driver.cuEventCreate(ctypes.byref(event), flags))
    stack.callback(release, driver, "cuEventDestroy", event.value)
    return event.value or 0
