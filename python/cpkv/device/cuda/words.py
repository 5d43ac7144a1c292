"""Ack words that streams of the GPU write: the memory pages they lie in are made known to the driver.

A driver registers whole pages of the system. Those of 4 KiB hold the words of one engine; on systems
with larger ones two engines may share a page, which is then registered by the first and unregistered by
the last. A page that somebody else in the process has registered is left alone: it could be taken away.
"""

import ctypes
import logging
import mmap
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from cpkv._core import AckWords
from cpkv.device.cuda.abi import (
    ATTRIBUTE_64_BIT_STREAM_WRITES,
    HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_DEVICE_MAP,
    HOST_MEMORY_PORTABLE,
)
from cpkv.device.cuda.context import Context
from cpkv.device.cuda.driver import Driver
from cpkv.device.cuda.failures import described

_logger: Final = logging.getLogger("cpkv.device")
_users: Final[dict[int, int]] = {}
"""For each page that an engine of this process has registered, how many use it."""
_lock: Final = threading.Lock()


@dataclass(frozen=True)
class Words:
    """Where the words of an engine lie for its streams.

    Args:
        addresses: For each stream, as the device sees it; empty if streams cannot write words.
        reason: Why they can or cannot, for people.
    """

    addresses: tuple[int, ...]
    reason: str


def register_words(driver: Driver, context: Context, acks: AckWords, stack: ExitStack) -> Words:
    """Let streams write the words, until `stack` is closed; or say why they cannot."""
    if not context.attribute(ATTRIBUTE_64_BIT_STREAM_WRITES):
        return _without("the GPU has no 64-bit writes of streams")
    on_host = [acks.address(stream) for stream in range(acks.streams)]
    on_device = []
    for address in on_host:
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        refusal = _register(driver, page, stack)
        if refusal:
            return _without(refusal)
        seen = ctypes.c_uint64()
        code = driver.cuMemHostGetDevicePointer(ctypes.byref(seen), page, 0)
        if code:
            return _without(f"cuMemHostGetDevicePointer failed with {described(driver, code)}")
        on_device.append(seen.value + address - page)
    return Words(tuple(on_device), "written by the stream behind its copies (cuStreamWriteValue64)")


def _register(driver: Driver, page: int, stack: ExitStack) -> str:
    """Register a page, or use it with those who have; returns why not, if not."""
    with _lock:
        if page not in _users:
            flags = HOST_MEMORY_PORTABLE | HOST_MEMORY_DEVICE_MAP
            code = driver.cuMemHostRegister(page, mmap.PAGESIZE, flags)
            if code == HOST_MEMORY_ALREADY_REGISTERED:
                return "the page of the words is registered by somebody else"
            if code:
                return f"cuMemHostRegister failed with {described(driver, code)}"
        _users[page] = _users.get(page, 0) + 1
    stack.callback(_unregister, driver, page)
    return ""


def _unregister(driver: Driver, page: int) -> None:
    with _lock:
        _users[page] -= 1
        if _users[page]:
            return
        del _users[page]
        code = driver.cuMemHostUnregister(page)
    if code:
        _logger.warning("cuMemHostUnregister failed with %s", described(driver, code))


def _without(reason: str) -> Words:
    _logger.warning("copies are acknowledged by events that poll() looks at: %s", reason)
    return Words((), f"an event behind the copies, looked at by poll(): {reason}")
