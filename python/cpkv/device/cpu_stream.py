"""A thread that does one thing after another: a stream without a GPU."""

import threading
from collections import deque
from collections.abc import Callable


class CpuEvent:
    """A point of a stream. It has happened when everything queued in front of it has ended."""

    def __init__(self) -> None:
        self._happened = threading.Event()

    def record(self) -> "CpuEvent":
        """Return itself: it stands for the stream as it was."""
        return self

    def happen(self) -> None:
        """Let everyone go on who waits."""
        self._happened.set()

    def has_happened(self) -> bool:
        """Whether it has."""
        return self._happened.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block the calling thread until it has happened; false after `timeout` seconds."""
        return self._happened.wait(timeout)


class CpuStream:
    """Runs what is queued in order, in a thread of its own.

    What is queued has to handle its errors: one that it raises is raised again by `synchronize`, and
    the stream goes on.

    Args:
        name: Of the thread.
    """

    def __init__(self, name: str = "stream") -> None:
        self.name = name
        self._work: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._is_busy = False
        self._is_closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"cpkv-{name}", daemon=True)
        self._thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Queue `work`.

        Raises:
            RuntimeError: The stream is closed.
        """
        with self._changed:
            if self._is_closed:
                message = f"stream {self.name!r} is closed"
                raise RuntimeError(message)
            self._work.append(work)
            self._changed.notify_all()

    def record(self) -> CpuEvent:
        """Return a point behind everything that is queued by now."""
        event = CpuEvent()
        self.run(event.happen)
        return event

    def wait(self, event: CpuEvent) -> None:
        """Let what is queued from now on begin when `event` has happened."""
        self.run(lambda: (event.wait(), None)[1])

    def synchronize(self) -> None:
        """Block the calling thread until everything queued has ended; raise what it has raised."""
        with self._changed:
            self._changed.wait_for(lambda: not self._work and not self._is_busy)
            error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """End the thread when everything queued has ended. Idempotent."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._work or self._is_closed)
                if not self._work:
                    return
                work = self._work.popleft()
                self._is_busy = True
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised by synchronize
                self._error = self._error or error
