"""What is raised when the CUDA driver refuses a call, or a stream has failed."""

import ctypes
import logging
from typing import Final

from cpkv.device.cuda.abi import DEINITIALIZED, SUCCESS
from cpkv.device.cuda.driver import Driver
from cpkv.errors import CopyError

_logger: Final = logging.getLogger("cpkv.device")


class CudaError(CopyError):
    """A call of the CUDA driver has failed.

    Args:
        message: What was to be done, and what the driver said.
        code: What the driver returned.
    """

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class CudaStreamError(CudaError):
    """A copy stream has failed: what was queued on it is not known to end."""


def described(driver: Driver, code: int) -> str:
    """Return the name of a code and the driver's sentence about it."""
    texts = []
    for look_up in (driver.cuGetErrorName, driver.cuGetErrorString):
        text = ctypes.c_char_p()
        known = look_up(code, ctypes.byref(text)) == 0 and text.value is not None
        texts.append((text.value or b"").decode() if known else "unknown to this driver")
    return f"{texts[0]} ({code}: {texts[1]})"


def refused(driver: Driver, call: str, code: int, hint: str = "") -> CudaError:
    """Return the error for a call that returned `code`."""
    return CudaError(f"{call} failed with {described(driver, code)}{hint}", code)


def release(driver: Driver, call: str, *arguments: int | None) -> int:
    """Make a call that gives something back, and log if it fails. Return 0 if not, or if the driver has gone."""
    code: int = getattr(driver, call)(*arguments)
    if code in (SUCCESS, DEINITIALIZED):
        return SUCCESS
    _logger.warning("%s failed with %s", call, described(driver, code))
    return code


def check(driver: Driver, call: str, code: int) -> None:
    """Raise unless a call has returned 0.

    Raises:
        CudaError: It has not.
    """
    if code:
        raise refused(driver, call, code)
