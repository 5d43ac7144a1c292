"""The CUDA driver, through `libcuda.so.1` and nothing else: no toolkit and no package is needed.

Nothing is loaded before `Driver` is made. A process that forks after that cannot use CUDA in the child.
"""

import ctypes
from dataclasses import dataclass
from typing import Final

from cpkv.errors import DriverError

LIBRARY: Final = "libcuda.so.1"
DEINITIALIZED: Final = 4

_NAME_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU that this process may use."""

    ordinal: int
    name: str
    pci_address: str


class Driver:
    """The calls of the driver; each that fails is a `DriverError` with the name of the error."""

    def __init__(self, library: str = LIBRARY) -> None:
        """Load and start the driver.

        Raises:
            DriverError: There is none, or it does not start.
        """
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            message = f"{library} cannot be loaded ({error}), want the CUDA driver"
            raise DriverError(message) from error
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver.

        Raises:
            DriverError: It is missing or has failed; `code` is what it returned.
        """
        code = self._result(name, *arguments)
        if code:
            message = f"{name}: {self._error_name(code)}"
            raise DriverError(message, code)

    @property
    def version(self) -> tuple[int, int]:
        """The newest CUDA that the driver can run, as major and minor."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def devices(self) -> list[Device]:
        """Return the GPUs, in the driver's order."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self.device(ordinal) for ordinal in range(count.value)]

    def device(self, ordinal: int) -> Device:
        """Return one GPU."""
        handle = self.handle(ordinal)
        name, address = (ctypes.create_string_buffer(_NAME_BYTES) for _ in range(2))
        self.call("cuDeviceGetName", name, ctypes.c_int(_NAME_BYTES), handle)
        self.call("cuDeviceGetPCIBusId", address, ctypes.c_int(_NAME_BYTES), handle)
        return Device(ordinal, name.value.decode(errors="replace"), address.value.decode(errors="replace").lower())

    def handle(self, ordinal: int) -> ctypes.c_int:
        """Return what the driver names a GPU by."""
        handle = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(ordinal))
        return handle

    def _result(self, name: str, *arguments: object) -> int:
        try:
            function = getattr(self._library, name)
        except AttributeError:
            message = f"{LIBRARY} has no {name}, want a newer CUDA driver"
            raise DriverError(message) from None
        return int(function(*arguments))

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._result("cuGetErrorName", ctypes.c_int(code), ctypes.byref(text))
        return (text.value or b"").decode() or f"CUDA error {code}"
