"""What one host memory holds, and the order in which it goes: copies end, ranges are taken back, memory is unmapped.

An owner that cannot say that its copies have ended keeps all of it: memory that leaks is better than a device that
reads what is no longer there.
"""

import logging
import os
import threading
from typing import TYPE_CHECKING, Final

from cpkv.errors import RegistrationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cpkv.host.mapping import Mapping
    from cpkv.host.registration import Registration

_logger: Final = logging.getLogger("cpkv.host")


class Holding:
    """A mapping and its registration. Belongs to the process that made it, not to its forked children."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.before_unmap: list[Callable[[], None]] = []
        self.mapping: Mapping | None = None
        self.registration: Registration | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._is_releasing = False

    def release(self) -> None:
        """Give everything back; nothing if that was done. What a drain raises leaves all as it is, to be tried again.

        Raises:
            RegistrationError: A range was not taken back. Everything else is released all the same.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self.mapping is None or self._is_releasing:
                return
            self._is_releasing = True
            try:
                self._drain(self.mapping)
                refused = [] if self.registration is None else self.registration.undo()
                mapping, self.mapping = self.mapping, None
                mapping.close()
            finally:
                self._is_releasing = False
        self.before_unmap.clear()
        for error in refused:
            _logger.error("a range of host memory was not unregistered: %s", error)
        if refused:
            message = f"{len(refused)} ranges of host memory were not unregistered, the first: {refused[0]}"
            raise RegistrationError(message)

    def end(self) -> None:
        """Give everything back when the owner, or the program, has ended: nobody is there to hear of errors."""
        try:
            self.release()
        except Exception as error:  # noqa: BLE001 - whatever a drain raises
            _logger.error("host memory was not given back: %s", str(error))  # noqa: TRY400 - as the drain puts it

    def _drain(self, mapping: "Mapping") -> None:
        try:
            for drain in self.before_unmap:
                drain()
        except BaseException:
            mapping.keep()
            raise
