"""Touching memory for the first time, by several threads: the kernel finds and clears a page at each touch.

The calling thread only waits, so that progress and Ctrl-C are its own. Nobody may unmap before `end` has returned.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Final, TypeAlias

from cpkv.errors import HostMemoryError
from cpkv.host import libc
from cpkv.host.limits import shown
from cpkv.host.ranges import Range

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the bytes that are done and all of them."""

CHUNK_BYTES: Final = 64 << 20
"""What one thread touches between two looks at whether to go on: some 60 ms in small pages."""
MOST_THREADS: Final = 16

_logger: Final = logging.getLogger("cpkv.host")


class Touching:
    """Some threads and the memory that they touch."""

    def __init__(self, memory: Range, *, page_bytes: int, threads: int, cpus: frozenset[int]) -> None:
        """Prepare `threads` threads that are bound to `cpus`."""
        self._total_bytes = memory.bytes
        # A chunk ends with a page, or two threads would wait for the same one.
        chunk = -(-CHUNK_BYTES // page_bytes) * page_bytes
        self._chunks: Iterator[tuple[int, int]] = (
            (memory.address + start, min(chunk, memory.bytes - start)) for start in range(0, memory.bytes, chunk)
        )
        self._cpus = cpus
        self._change = threading.Condition()
        self._is_stopped = False
        self._busy = 0
        self._results: SimpleQueue[int | BaseException] = SimpleQueue()
        self._workers = [threading.Thread(target=self._work, name=f"cpkv-touch-{number}") for number in range(threads)]

    def run(self, progress: Progress | None = None) -> None:
        """Touch every page.

        Raises:
            HostMemoryError: A page is not to be had, or no thread.
        """
        self._start()
        done = 0
        while done < self._total_bytes:
            result = self._results.get()
            if isinstance(result, OSError):
                message = (
                    f"host memory: only {shown(done)} of {shown(self._total_bytes)} can be had ({result.strerror}), "
                    "want less"
                )
                raise HostMemoryError(message) from result
            if isinstance(result, BaseException):
                raise result
            done += result
            if progress is not None:
                progress(done, self._total_bytes)

    def end(self) -> None:
        """Stop after the chunks that were begun, and wait until no thread is in the memory. May be called again."""
        # Not by `join`: one that Ctrl-C interrupts takes the thread for ended (CPython 3.11).
        with self._change:
            self._is_stopped = True
            while self._busy:
                self._change.wait()
        for worker in self._workers:
            if worker.ident is not None:  # else it was never started
                worker.join()

    def _start(self) -> None:
        for number, worker in enumerate(self._workers):
            try:
                worker.start()
            except RuntimeError as error:
                if number == 0:
                    message = f"host memory: no thread to touch it with ({error}), want at least one"
                    raise HostMemoryError(message) from error
                _logger.warning(
                    "host memory is touched by %d threads instead of %d (%s)", number, len(self._workers), error
                )
                return

    def _work(self) -> None:
        try:
            self._bind()
            while (chunk := self._next_chunk()) is not None:
                try:
                    touch_chunk(*chunk)
                finally:
                    self._leave()
                self._results.put(chunk[1])
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._results.put(error)

    def _next_chunk(self) -> tuple[int, int] | None:
        with self._change:
            chunk = None if self._is_stopped else next(self._chunks, None)
            self._busy += chunk is not None
            return chunk

    def _leave(self) -> None:
        with self._change:
            self._busy -= 1
            self._change.notify_all()

    def _bind(self) -> None:
        """Bind this thread, which ends with its work, so that there is nothing to undo."""
        try:
            os.sched_setaffinity(0, self._cpus)
        except OSError as error:
            _logger.warning("host memory is touched by threads that are not bound (%s)", error.strerror)


def touch_chunk(address: int, size_bytes: int) -> None:
    """Touch memory that holds nothing yet.

    Raises:
        OSError: A page is not to be had. Kernels before 5.14 would end the process instead.
    """
    while True:
        try:
            libc.advise(address, size_bytes, libc.POPULATE_WRITE)
        except OSError as error:
            if error.errno == errno.EINTR:
                continue
            if error.errno != errno.EINVAL:
                raise
            libc.clear(address, size_bytes)
        return
