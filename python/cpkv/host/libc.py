"""The system calls that Python has no function for. None of them holds the GIL.

An error is an `OSError`, with `ENOSYS` where the machine has no such call.
"""

import ctypes
import errno
import os
import platform
from collections import Counter
from collections.abc import Sequence
from typing import Final

HUGE_PAGES: Final = 14
NOT_IN_CORE_DUMPS: Final = 16
ZERO_IN_CHILDREN: Final = 18
POPULATE_WRITE: Final = 23
"""What `advise` can say; the last one is known since Linux 5.14."""

MAP_HUGETLB: Final = 0x40000

_MPOL_PREFERRED: Final = 1
_BITS_OF_LONG: Final = 8 * ctypes.sizeof(ctypes.c_ulong)
_NUMBERS: Final = {
    "x86_64": {"mbind": 237, "move_pages": 279},
    "aarch64": {"mbind": 235, "move_pages": 239},
}

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.mlock.argtypes = _libc.munlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.syscall.restype = ctypes.c_long


def advise(address: int, size_bytes: int, advice: int) -> None:
    """Call `madvise`."""
    _checked("madvise", _libc.madvise(address, size_bytes, advice))


def lock(address: int, size_bytes: int) -> None:
    """Call `mlock`."""
    _checked("mlock", _libc.mlock(address, size_bytes))


def unlock(address: int, size_bytes: int) -> None:
    """Call `munlock`."""
    _checked("munlock", _libc.munlock(address, size_bytes))


def clear(address: int, size_bytes: int) -> None:
    """Write zeros."""
    ctypes.memset(address, 0, size_bytes)


def prefer_node(address: int, size_bytes: int, node: int) -> None:
    """Let pages that are still to come be on a NUMA node as long as it has some."""
    words = node // _BITS_OF_LONG + 1
    mask = (ctypes.c_ulong * words)()
    mask[node // _BITS_OF_LONG] = 1 << (node % _BITS_OF_LONG)
    # The kernel takes one bit less than it is told.
    bits = words * _BITS_OF_LONG + 1
    _system_call(
        "mbind",
        *(ctypes.c_ulong(address), ctypes.c_ulong(size_bytes), ctypes.c_ulong(_MPOL_PREFERRED)),
        *(mask, ctypes.c_ulong(bits), ctypes.c_ulong(0)),
    )


def nodes_of(addresses: Sequence[int]) -> "Counter[int]":
    """Count on which NUMA nodes the pages at some addresses are; negative numbers are pages that are nowhere."""
    pages = (ctypes.c_void_p * len(addresses))(*addresses)
    nodes = (ctypes.c_int * len(addresses))()
    _system_call(
        "move_pages",
        *(ctypes.c_long(0), ctypes.c_ulong(len(addresses)), pages, ctypes.c_void_p(None), nodes, ctypes.c_long(0)),
    )
    return Counter(nodes)


def _system_call(name: str, *arguments: object) -> None:
    number = _NUMBERS.get(platform.machine(), {}).get(name)
    if number is None:
        raise OSError(errno.ENOSYS, f"{name}: {os.strerror(errno.ENOSYS)}")
    _checked(name, _libc.syscall(ctypes.c_long(number), *arguments))


def _checked(name: str, result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
