"""`HostMemory`: the memory that host slots lie in.

It is checked against what the host can give before anything is taken, mapped at the size that was asked for,
placed, touched, and registered. Whatever goes wrong on the way undoes what was done.
"""

import logging
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from errno import ENOMEM
from types import TracebackType
from typing import Final, Self

from cpkv.errors import ConfigError, HostMemoryError, RegistrationError, UsageError
from cpkv.host import numa
from cpkv.host.files import THIS_SYSTEM, SystemFiles
from cpkv.host.holding import Holding
from cpkv.host.limits import read_limits, shown
from cpkv.host.mapping import Mapping, mapped_bytes, without_reserved_pages
from cpkv.host.placement import Placement
from cpkv.host.ranges import Range
from cpkv.host.registration import Registrar, Registration, cut_unit_bytes
from cpkv.host.touching import MOST_THREADS, Progress, Touching

_logger: Final = logging.getLogger("cpkv.host")

_MOST: Final = 1 << 62
"""More than any address space."""


class HostMemory:
    """Host memory of a fixed size. Use it in a `with` block, or call `close`.

    What is left is released with the object, or at the end of the program.

    Attributes:
        before_unmap: What is called before it is unmapped, in this order: each returns when no copy reads or writes
            the memory any more (such as the `drain` of an engine).
    """

    def __init__(  # noqa: PLR0913 - one parameter for each choice
        self,
        asked_bytes: int,
        piece_bytes: int,
        placement: Placement | None = None,
        *,
        ranks_on_host: int = 1,
        registrar: Registrar | None = None,
        register_limit_bytes: int | None = None,
        touch_threads: int | None = None,
        progress: Progress | None = None,
        before_mapping: Callable[[], None] | None = None,
        before_unmap: Iterable[Callable[[], None]] = (),
        files: SystemFiles = THIS_SYSTEM,
    ) -> None:
        """Check, map, place, touch and register.

        Args:
            asked_bytes: How much; rounded up to whole pages of the system, and nothing more.
            piece_bytes: What is never cut by the border of two registered ranges, counted from the start: a segment.
            placement: What kind of memory, and where.
            ranks_on_host: How many processes share what the host can give; each may have its part.
            registrar: Who is told about the memory; `None` is nobody.
            register_limit_bytes: The largest range that is registered by one call, if that is known.
            touch_threads: How many threads touch it; 0 leaves that to whoever uses it first. By default one for each
                processor that is near, 16 at most.
            progress: Called in this thread with the bytes touched and all bytes. What it raises ends the work.
            before_mapping: Called after the check and before anything is taken. Ranks of one host wait here for each
                other: what one takes is missing where another still looks.
            before_unmap: See the attribute.
            files: What the kernel tells.

        Raises:
            ConfigError: Sizes that cannot be.
            HostMemoryError: It does not fit; nothing was taken.
            RegistrationError: The registrar refuses; nothing is kept.
        """
        placement = Placement() if placement is None else placement
        sizes = {
            "asked_bytes": (asked_bytes, 1),
            "piece_bytes": (piece_bytes, 1),
            "ranks_on_host": (ranks_on_host, 1),
            "register_limit_bytes": (register_limit_bytes, 1),
            "touch_threads": (touch_threads, 0),
        }
        _check(sizes)
        unit = cut_unit_bytes(piece_bytes, register_limit_bytes)
        is_locked = registrar is not None and registrar.locks_memory

        def fitting(wanted: Placement) -> int:
            size = mapped_bytes(asked_bytes, wanted, files)
            read_limits(wanted, ranks_on_host, is_locked=is_locked, files=files).check(size)
            return size

        placement, size = _fitting_placement(placement, fitting)
        if before_mapping is not None:
            before_mapping()
        self.asked_bytes = asked_bytes
        self._holding = holding = Holding()
        self._finalizer = weakref.finalize(self, holding.end)
        try:
            holding.mapping = mapping = _mapped(size, placement, fitting, files)
            self._address, self._bytes, self.placement = mapping.address, mapping.bytes, mapping.placement
            mapping.advise()
            if placement.node is not None:
                numa.place(mapping.address, mapping.bytes, placement.node)
            mapping.reserve()
            if touch_threads != 0:
                touching = _touching(mapping, touch_threads, files)
                # Whatever interrupts it, and however often: nothing is unmapped under a thread.
                holding.before_unmap.append(touching.end)
                touching.run(progress)
                touching.end()
                if placement.node is not None:
                    numa.tell_misplaced(mapping.address, mapping.bytes, mapping.page_bytes, placement.node)
            if registrar is not None:
                holding.registration = Registration(registrar)
                holding.registration.register(mapping.address, mapping.bytes, unit, register_limit_bytes)
        except BaseException:
            # What is not taken back is logged; why it came to this says more.
            with suppress(RegistrationError):
                self.close()
            raise
        # Nobody has copied before, so there was nothing to drain.
        holding.before_unmap[:] = before_unmap
        self.before_unmap = holding.before_unmap

    @property
    def address(self) -> int:
        """Where it begins, a multiple of the page size."""
        self._check_open()
        return self._address

    @property
    def bytes(self) -> int:
        """How much is mapped, and registered if there is a registrar."""
        return self._bytes

    @property
    def buffer(self) -> memoryview:
        """The bytes, writable. Memory stays mapped as long as there is a view of it, but not registered."""
        mapping = self._holding.mapping
        if mapping is None:
            raise UsageError(_CLOSED)
        return mapping.view()

    @property
    def ranges(self) -> tuple[Range, ...]:
        """What was registered by one call each, in order. A copy must not go across two of them."""
        registration = self._holding.registration
        return () if registration is None else registration.ranges

    @property
    def is_closed(self) -> bool:
        """Whether everything was given back."""
        return self._holding.mapping is None

    def close(self) -> None:
        """Wait for the copies, unregister, unmap; nothing if that was done.

        Raises:
            RegistrationError: A range was not taken back. Everything else is released all the same.
            Exception: What a callable of `before_unmap` raises. Nothing is released then, and `close` may be repeated.
        """
        self._holding.release()
        self._finalizer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self.is_closed:
            raise UsageError(_CLOSED)


_CLOSED: Final = "the host memory is closed, want one that is open"


def _check(sizes: dict[str, tuple[int | None, int]]) -> None:
    """Refuse sizes that are no whole numbers, or are less than the least that they may be."""
    conflicts = [
        f"{name} is {value!r}, want a whole number from {least} to {_MOST}"
        for name, (value, least) in sizes.items()
        if value is not None and not (isinstance(value, int) and least <= value <= _MOST)
    ]
    if conflicts:
        raise ConfigError("; ".join(conflicts))


def _fitting_placement(placement: Placement, fitting: Callable[[Placement], int]) -> tuple[Placement, int]:
    """Return the placement that fits, which may have to do without reserved huge pages, and its size."""
    if placement.pages != "reserved":
        return placement, fitting(placement)
    try:
        return placement, fitting(placement)
    except HostMemoryError as reserved:
        fallback = without_reserved_pages(placement)
        try:
            size = fitting(fallback)
        except HostMemoryError as ordinary:
            message = f"{ordinary}; nor in reserved huge pages: {reserved}"
            raise HostMemoryError(message) from reserved
        _logger.warning("%s; ordinary pages are used instead", reserved)
        return fallback, size


def _mapped(
    size: int, placement: Placement, fitting: Callable[[Placement], int], files: SystemFiles
) -> Mapping:  # fmt: skip
    try:
        return Mapping(size, placement, files)
    except OSError as error:
        if placement.pages != "reserved":
            raise HostMemoryError(_not_mapped(size, error)) from error
        # Somebody else was faster. Ordinary pages are another supply, which was not looked at, or some time ago.
        fallback = without_reserved_pages(placement)
        fallback_size = fitting(fallback)
        _logger.warning("%s; ordinary pages are used instead", _not_mapped(size, error))
        return _mapped(fallback_size, fallback, fitting, files)


def _not_mapped(size: int, error: OSError) -> str:
    hint = " or a higher limit (ulimit -v, vm.overcommit_memory)" if error.errno == ENOMEM else ""
    return f"host memory: {shown(size)} cannot be mapped ({error.strerror}), want less{hint}"


def _touching(mapping: Mapping, threads: int | None, files: SystemFiles) -> Touching:
    cpus = numa.allowed_cpus(mapping.placement.node, files)
    return Touching(
        Range(mapping.address, mapping.bytes),
        page_bytes=mapping.page_bytes,
        threads=min(len(cpus), MOST_THREADS) if threads is None else threads,
        cpus=cpus,
    )
