"""One mapping of memory: made, given back, and in between never under the feet of a view.

A forked child sees zeros (anonymous), or the same memory (shared, reserved huge pages), and never makes this
process copy a page that a device reads.
"""

import ctypes
import logging
import mmap
import os
import secrets
from dataclasses import replace
from typing import Final

from cpkv.errors import HostMemoryError
from cpkv.host import libc
from cpkv.host.files import SystemFiles
from cpkv.host.limits import huge_page_bytes, shown
from cpkv.host.placement import SHARED_FOLDER, Placement

PAGE_BYTES: Final = mmap.PAGESIZE
RESERVE_AT_ONCE_BYTES: Final = 1 << 30
"""How much of a shared file is reserved by one call, after which Ctrl-C is heard."""

_logger: Final = logging.getLogger("cpkv.host")


def mapped_bytes(asked_bytes: int, placement: Placement, files: SystemFiles) -> int:
    """Return how much is mapped for so much: whole pages and nothing more."""
    page_bytes = (huge_page_bytes(files) or PAGE_BYTES) if placement.pages == "reserved" else PAGE_BYTES
    return -(-asked_bytes // page_bytes) * page_bytes


class Mapping:
    """Memory of this process, not touched yet."""

    def __init__(self, size_bytes: int, placement: Placement, files: SystemFiles) -> None:
        """Map so much, which is a multiple of the page size.

        Raises:
            OSError: The kernel refuses.
        """
        self.bytes = size_bytes
        self.placement = placement
        self.page_bytes = PAGE_BYTES
        self._descriptor: int | None = None
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        try:
            if placement.kind == "shared":
                self._descriptor = _nameless_file(files)
                os.ftruncate(self._descriptor, size_bytes)
                self._map = mmap.mmap(self._descriptor, size_bytes)
            elif placement.pages == "reserved":
                self.page_bytes = huge_page_bytes(files) or PAGE_BYTES
                # Not private: a write after a fork would have to find another huge page.
                self._map = mmap.mmap(-1, size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | libc.MAP_HUGETLB)
            else:
                self._map = mmap.mmap(-1, size_bytes, flags=private)
        except BaseException:
            self._close_file()
            raise
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))

    def advise(self) -> None:
        """Tell the kernel what the memory is for. It may know less than that."""
        self._advise(libc.NOT_IN_CORE_DUMPS)
        if self.placement.kind == "anonymous" and self.placement.pages != "reserved":
            self._advise(libc.ZERO_IN_CHILDREN)
        if self.placement.pages == "transparent":
            self._advise(libc.HUGE_PAGES)

    def reserve(self) -> None:
        """Take the pages of a shared file now: touching one that is not to be had is a SIGBUS.

        Raises:
            HostMemoryError: The file system is full.
        """
        if self._descriptor is None:
            return
        try:
            for start in range(0, self.bytes, RESERVE_AT_ONCE_BYTES):
                os.posix_fallocate(self._descriptor, start, min(RESERVE_AT_ONCE_BYTES, self.bytes - start))
        except OSError as error:
            message = (
                f"host memory: {SHARED_FOLDER} has no room for {shown(self.bytes)} ({error.strerror}), "
                f"want it larger or less to be asked for"
            )
            raise HostMemoryError(message) from error

    def view(self) -> memoryview:
        """Return the bytes, writable."""
        return memoryview(self._map)

    def keep(self) -> None:
        """Leave it mapped until the process ends, also when nobody holds it. It can still be closed."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._map))

    def close(self) -> None:
        """Unmap; where views are left, the last of them does it."""
        self._close_file()
        try:
            self._map.close()
        except BufferError:
            _logger.warning("%s of host memory stay mapped until the last view of them is gone", shown(self.bytes))
        del self._map

    def _close_file(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _advise(self, advice: int) -> None:
        try:
            libc.advise(self.address, self.bytes, advice)
        except OSError as error:
            _logger.info("madvise(%d) of host memory: %s", advice, error.strerror)


def without_reserved_pages(placement: Placement) -> Placement:
    """Return what is taken where there are too few reserved huge pages."""
    return replace(placement, pages="transparent")


def _nameless_file(files: SystemFiles) -> int:
    """Open a file in shared memory that nobody else can open, and that is gone with its last descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    path = files.path(f"{SHARED_FOLDER}/cpkv-host-{secrets.token_hex(8)}")
    is_own = True
    try:
        return os.open(path, flags, 0o600)
    except OSError:
        is_own = False
        raise
    finally:
        # At once, so that not even a killed process leaves it.
        if is_own:
            path.unlink(missing_ok=True)
