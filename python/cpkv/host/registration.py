"""Memory told to a device, in as few ranges as it takes, and taken back in reverse order.

Ranges are cut where pages of the cache and pages of the system end, so that neither is ever in two of them.
"""

import logging
from collections.abc import Sequence
from math import lcm
from typing import Final, Protocol

from cpkv.errors import ConfigError, RegistrationError
from cpkv.host import libc
from cpkv.host.limits import shown
from cpkv.host.mapping import PAGE_BYTES
from cpkv.host.ranges import Range

_logger: Final = logging.getLogger("cpkv.host")


class Registrar(Protocol):
    """Whoever wants to know memory before it is copied from or to."""

    @property
    def locks_memory(self) -> bool:
        """Whether `RLIMIT_MEMLOCK` holds for what is registered."""

    def register(self, address: int, size_bytes: int) -> None:
        """Register a range.

        Raises:
            RegistrationError: It is refused, and is not registered.
        """

    def unregister(self, address: int, size_bytes: int) -> None:
        """Take back a range that was registered.

        Raises:
            RegistrationError: It is not registered.
        """


class MlockRegistrar:
    """Keep memory from being swapped out, on a machine whose copies are the processor's."""

    locks_memory = True

    def register(self, address: int, size_bytes: int) -> None:
        """Lock a range."""
        try:
            libc.lock(address, size_bytes)
        except OSError as error:
            raise RegistrationError(str(error.strerror)) from error

    def unregister(self, address: int, size_bytes: int) -> None:
        """Unlock a range."""
        try:
            libc.unlock(address, size_bytes)
        except OSError as error:
            raise RegistrationError(str(error.strerror)) from error


def cut_unit_bytes(piece_bytes: int, limit_bytes: int | None) -> int:
    """Return what ranges are multiples of.

    Raises:
        ConfigError: Not even one of them may be registered.
    """
    unit = lcm(piece_bytes, PAGE_BYTES)
    if limit_bytes is not None and unit > limit_bytes:
        message = (
            f"register_limit_bytes is {limit_bytes}, want at least {unit}: a piece of {piece_bytes} bytes is in one "
            f"range, which ends with a page of {PAGE_BYTES}"
        )
        raise ConfigError(message)
    return unit


def cut(total_bytes: int, unit_bytes: int, limit_bytes: int) -> list[int]:
    """Return the sizes of as few ranges as possible, of as equal sizes as possible, the larger ones in front."""
    if total_bytes <= limit_bytes:
        return [total_bytes]
    units = -(-total_bytes // unit_bytes)
    count = -(-units // (limit_bytes // unit_bytes))
    base, longer = divmod(units, count)
    sizes = [(base + (place < longer)) * unit_bytes for place in range(count)]
    sizes[-1] -= units * unit_bytes - total_bytes  # the last unit may be short
    return sizes


class Registration:
    """The ranges of one memory."""

    def __init__(self, registrar: Registrar) -> None:
        """Begin with none."""
        self._registrar = registrar
        self._ranges: list[Range] = []
        self._is_last_known = True

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What is registered."""
        return tuple(self._ranges)

    def register(self, address: int, total_bytes: int, unit_bytes: int, limit_bytes: int | None) -> None:
        """Register all of it: as a whole, or in halves, quarters and so on if that is too large.

        If a range is refused after one as large was taken, its size is not the reason, and nothing smaller is tried.

        Raises:
            RegistrationError: It is refused; nothing is registered then.
        """
        limit = min(total_bytes, limit_bytes or total_bytes)
        while True:
            sizes = cut(total_bytes, unit_bytes, limit)
            try:
                self._register_all(address, sizes)
            except _RefusedError as refused:
                units = -(-sizes[0] // unit_bytes)
                if refused.place or units == 1:
                    raise RegistrationError(_told(total_bytes, sizes, refused)) from refused.__cause__
                _logger.warning("a range of %s is not registered (%s): trying halves", shown(sizes[0]), refused)
                limit = units // 2 * unit_bytes
            else:
                return

    def undo(self) -> list[RegistrationError]:
        """Take all ranges back, the last one first; return what was refused. Goes on where it was interrupted."""
        refused = []
        while self._ranges:
            last = self._ranges[-1]
            try:
                self._registrar.unregister(last.address, last.bytes)
            except RegistrationError as error:
                if self._is_last_known:
                    refused.append(error)
            self._ranges.pop()
            self._is_last_known = True
        return refused

    def _register_all(self, address: int, sizes: Sequence[int]) -> None:
        for place, size in enumerate(sizes):
            # Noted before: if a signal handler raises on the way back, it may be registered all the same.
            self._ranges.append(Range(address, size))
            self._is_last_known = False
            try:
                self._registrar.register(address, size)
            except RegistrationError as error:
                self._ranges.pop()
                self._is_last_known = True
                self.undo()
                raise _RefusedError(place, str(error)) from error
            self._is_last_known = True
            address += size


class _RefusedError(Exception):
    """A range was refused, and those in front of it were taken back."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place


def _told(total_bytes: int, sizes: Sequence[int], refused: _RefusedError) -> str:
    return (
        f"host memory of {shown(total_bytes)} cannot be registered: range {refused.place + 1} of {len(sizes)}, of "
        f"{shown(sizes[refused.place])}, is refused ({refused}); want less memory, or one the device takes"
    )
