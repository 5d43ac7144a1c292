"""Points in streams, to be waited for: made once, used again."""

import ctypes
from contextlib import ExitStack

from cpkv.device.cuda.abi import EVENT_DISABLE_TIMING
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import check, release


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


def new_event(driver: Driver, flags: int, stack: ExitStack) -> int:
    """Return an event of the current context that is destroyed when `stack` is closed.

    Raises:
        CudaError: It cannot be made.
    """
    event = ctypes.c_void_p()
    check(driver, "cuEventCreate", driver.cuEventCreate(ctypes.byref(event), flags))
    stack.callback(release, driver, "cuEventDestroy", event.value)
    return event.value or 0
