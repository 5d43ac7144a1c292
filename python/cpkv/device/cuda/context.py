"""The context of a GPU that everyone in the process shares, and being in it.

The driver acts on the context that is current in the calling thread. Torch makes the same one current,
so usually there is nothing to do; if another one is, it is put back afterwards.
"""

import ctypes
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cpkv.device.cuda.abi import CAPTURE_MODE_RELAXED
from cpkv.device.cuda.driver import Call, Driver
from cpkv.device.cuda.failures import check, refused, release
from cpkv.errors import ConfigError


class Context:
    """The primary context of a device, held until `stack` is closed.

    Args:
        driver: The driver.
        device: Which GPU, as the process counts them; `None` for that of the current context, or the
            first.
        stack: Lets go of it.

    Raises:
        ConfigError: There is no such GPU.
        CudaError: The driver refuses.
    """

    def __init__(self, driver: Driver, device: int | None, stack: ExitStack) -> None:
        self._driver = driver
        self._seen = ctypes.c_void_p()
        self._seen_at = ctypes.byref(self._seen)
        self.device = self._current_device() if device is None else device
        self._device = ctypes.c_int()
        code = driver.cuDeviceGet(ctypes.byref(self._device), self.device)
        if code:
            raise ConfigError(str(refused(driver, f"device {self.device}: cuDeviceGet", code)))
        context = ctypes.c_void_p()
        check(
            driver,
            "cuDevicePrimaryCtxRetain",
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), self._device.value),
        )
        stack.callback(release, driver, "cuDevicePrimaryCtxRelease", self._device.value)
        self.handle = context.value

    def _current_device(self) -> int:
        device = ctypes.c_int()
        return device.value if self._driver.cuCtxGetDevice(ctypes.byref(device)) == 0 else 0

    def enter(self) -> bool:
        """Make it current in the calling thread; whether another one was, and `leave` has to be called.

        Raises:
            CudaError: The driver refuses.
        """
        code = self._driver.cuCtxGetCurrent(self._seen_at)
        if not code and self._seen.value == self.handle:
            return False
        check(self._driver, "cuCtxPushCurrent", self._driver.cuCtxPushCurrent(self.handle))
        return True

    def leave(self) -> None:
        """Make current what was so before `enter`."""
        self._driver.cuCtxPopCurrent(ctypes.byref(ctypes.c_void_p()))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Be in it, and let calls through that a capture in another place would forbid.

        A capture forbids what it cannot see to every thread, waits and look-ups of other streams among
        them, and is spoilt by it. What is done here has nothing to do with any graph.
        """
        was_other = self.enter()
        mode = ctypes.c_int(CAPTURE_MODE_RELAXED)
        try:
            check(
                self._driver,
                "cuThreadExchangeStreamCaptureMode",
                self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)),
            )
            try:
                yield
            finally:
                self._driver.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))
        finally:
            if was_other:
                self.leave()

    def attribute(self, number: int) -> int:
        """Return an attribute of the device; 0 if this driver does not know it."""
        value = ctypes.c_int()
        code = self._driver.cuDeviceGetAttribute(ctypes.byref(value), number, self._device.value)
        return 0 if code else value.value

    def name(self) -> str:
        """Return what the GPU is called."""
        return self._text(self._driver.cuDeviceGetName, 256)

    def bus_id(self) -> str:
        """Return where the GPU is plugged in, such as `0000:1b:00.0`."""
        return self._text(self._driver.cuDeviceGetPCIBusId, 32).lower()

    def _text(self, look_up: Call, size: int) -> str:
        text = ctypes.create_string_buffer(size)
        return "unknown" if look_up(text, size, self._device.value) else text.value.decode()
