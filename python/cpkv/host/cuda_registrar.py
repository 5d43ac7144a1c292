"""Host memory pinned for CUDA, so that a GPU copies from and to it by itself.

Works in any thread and leaves its current context as it was. The primary context of the device is kept until the
process ends, as the CUDA runtime keeps it.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from cpkv.errors import DriverError, RegistrationError
from cpkv.host.driver import DEINITIALIZED, Driver

PORTABLE: Final = 1
"""Pinned for the contexts of all devices."""


class CudaRegistrar:
    """Pins memory by `cuMemHostRegister`. `RLIMIT_MEMLOCK` does not hold for that."""

    locks_memory = False

    def __init__(self, device: int = 0, driver: Driver | None = None) -> None:
        """Take the primary context of a device.

        Raises:
            DriverError: There is no driver, or no such device.
        """
        self._driver = Driver() if driver is None else driver
        self._context = ctypes.c_void_p()
        self.device = self._driver.device(device)
        self._driver.call(
            "cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._driver.handle(device)
        )  # fmt: skip

    def register(self, address: int, size_bytes: int) -> None:
        """Pin a range."""
        with self._current(), _refused():
            self._driver.call(
                "cuMemHostRegister_v2",
                ctypes.c_void_p(address), ctypes.c_size_t(size_bytes), ctypes.c_uint(PORTABLE),
            )  # fmt: skip

    def unregister(self, address: int, size_bytes: int) -> None:  # noqa: ARG002 - the driver knows the size
        """Unpin a range. A driver that has shut down, at the end of the process, has done so."""
        try:
            with self._current():
                self._driver.call("cuMemHostUnregister", ctypes.c_void_p(address))
        except DriverError as error:
            if error.code != DEINITIALIZED:
                raise RegistrationError(str(error)) from error

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except DriverError as error:
        raise RegistrationError(str(error)) from error
