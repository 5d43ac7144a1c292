"""A gate that opens when the main thread waits for another rank in a call of cpkv."""

import logging
import os
import sys
import threading


class WaitingCall(logging.Handler):
    """Calls `then` once, from a thread of its own, when the main thread waits.

    A call that waits logs a warning and goes on waiting. When it has left the logging again, and this
    thread has the interpreter, the main thread can be nowhere but in the wait.
    """

    def __init__(self, then):
        super().__init__()
        self.then, self.is_logged = then, threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def emit(self, _record):
        self.is_logged.set()

    def watch(self):
        self.is_logged.wait()
        main = threading.main_thread().ident
        while self.is_logging(sys._current_frames()[main]):  # noqa: SLF001 - documented, for debuggers
            os.sched_yield()
        self.then()

    @staticmethod
    def is_logging(frame):
        while frame and frame.f_code.co_filename != logging.__file__:
            frame = frame.f_back
        return frame is not None

    def __enter__(self):
        logging.getLogger("cpkv").addHandler(self)
        self.thread.start()
        return self

    def __exit__(self, *_exception):
        logging.getLogger("cpkv").removeHandler(self)
        self.is_logged.set()
        self.thread.join()
