"""Engines for the tests: SGLang's own, in processes of their own, on the CPU."""

import functools
import itertools
import os
import signal
import subprocess
import sys
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.reduction import send_handle
from pathlib import Path

HERE = Path(__file__).parent
START_SECONDS = 240
"""For an engine whose three processes import SGLang themselves, on a machine that has other work."""
CALL_SECONDS = 120
LINES_TOLD = 60

ENVIRONMENT = {
    "SGLANG_USE_CPU_ENGINE": "1",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling takes longer than what is compiled
    "SGLANG_CPU_OMP_THREADS_BIND": "0|0",  # several ranks have to be bound; nothing is without AMX
    "SGLANG_NCCL_SO_PATH": "none",  # what several ranks would use before gloo
    # SGLang counts the pages after each step, not only when it is idle, and looks for pages that are free and used.
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "CPKV_DEBUG_SGLANG_INTEGRITY": "1",
}
OPTIONS = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "skip_tokenizer_init": True,
    "disable_cuda_graph": True,
    "dtype": "float32",
    "random_seed": 1,
    "sleep_on_idle": True,  # engines that wait for their tests would take a core each
    "log_level": "info",
}


class EngineDiedError(Exception):
    """The engine is gone, or hangs."""

    def __init__(self, exit_code, log):
        super().__init__(exit_code, log)
        self.exit_code = exit_code
        self.log = log

    def __str__(self):
        end = "\n".join(self.log.splitlines()[-LINES_TOLD:])
        return f"exit code {self.exit_code}, last lines of its log:\n{end}"


def environment():
    """The environment of an engine's processes: they find the stand-ins and patches, the tests' process does not."""
    path = [str(HERE / "cpu_engine"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": os.pathsep.join(path)}


def run(script, connection, log, **variables):
    """Run one of the scripts here, in a session of its own, and log what it prints."""
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, HERE / script, str(connection.fileno())],
            env=environment() | variables,
            pass_fds=[connection.fileno()],
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


class Template:
    """The process that engines are forked from."""

    def __init__(self, folder, **variables):
        self._folder = folder
        self._engines = itertools.count()
        self._connection, theirs = Pipe()
        self._log = folder / "template.log"
        self._process = run("engine_template.py", theirs, self._log, **variables)
        theirs.close()
        self._receive()

    def start(self, options, **variables):
        """Start an engine whose processes are forked."""
        log = self._folder / f"engine_{next(self._engines)}.log"
        ours, theirs = Pipe()
        self._connection.send((str(log), variables))
        send_handle(self._connection, theirs.fileno(), self._process.pid)
        theirs.close()
        process_id = self._receive()
        return EngineProcess(options, ours, log, process_id, lambda: self._wait(process_id))

    def _wait(self, process_id):
        self._connection.send(process_id)
        return self._receive()

    def _receive(self):
        with suppress(EOFError, ConnectionResetError):
            if self._connection.poll(START_SECONDS):
                return self._connection.recv()
        raise EngineDiedError(self.close(), self._log.read_text())

    def close(self):
        """End it and return its exit code. Engines are ended by those who have started them."""
        self._connection.close()
        self._process.kill()
        return self._process.wait()


def start_spawned(options, log, **variables):
    """Start an engine as SGLang does it, whose processes import everything themselves."""
    ours, theirs = Pipe()
    process = run("engine_main.py", theirs, log, **variables)
    theirs.close()
    return EngineProcess(options, ours, log, process.pid, process.wait)


class EngineProcess:
    """An engine that runs.

    Args:
        options: What it is started with.
        connection: To `engine_main`.
        log: What it prints.
        process_id: Of the process that leads all of its processes.
        wait: Waits for that process and returns its exit code.
    """

    def __init__(self, options, connection, log, process_id, wait):
        self.log = log
        self._connection = connection
        self._process_id = process_id
        self._wait = functools.cache(wait)
        connection.send(OPTIONS | options)
        self._receive(START_SECONDS)

    def serve(self, *requests):
        """Serve requests together and return their answers."""
        return self._call("serve", list(requests))

    def serve_and_flush(self, *requests, at):
        """Serve requests together and flush the cache at some time; return the answers and what a flush returns."""
        answers, [flushed] = self.serve_and_call(*requests, at=at, calls=[("flush", ())])
        return answers, flushed

    def serve_and_call(self, *requests, at, calls):
        """Serve requests together and make calls from some time on; return the answers and what the calls return."""
        return self._call("serve_and_call", list(requests), at, calls)

    def call(self, name, *arguments):
        """Make one of the calls of `engine_main`."""
        return self._call(name, *arguments)

    def flush(self):
        """Flush the cache and return whether SGLang did."""
        return self._call("flush")

    def state(self):
        """Return what the cache of the first rank has, and what the controls have counted."""
        return self.states()[0]

    def states(self):
        """Return the same of all ranks."""
        return self._call("states")

    def settle(self):
        """Return the state after SGLang has checked its memory idle.

        It does so in each round in which there is nothing to compute. A call is heard at the begin of a round, so a
        round without work lies between the second one and the third.
        """
        return [self.state() for _ in range(3)][-1]

    def _call(self, name, *arguments):
        with suppress(BrokenPipeError):  # then there is no answer either
            self._connection.send((name, arguments))
        return self._receive(CALL_SECONDS)

    def _receive(self, seconds):
        with suppress(EOFError, ConnectionResetError):
            if self._connection.poll(seconds):
                return self._connection.recv()
        raise EngineDiedError(self.close(), self.log.read_text())

    def close(self):
        """End it, whatever it does, and return its exit code. May be called again."""
        if not self._connection.closed:
            self._connection.close()
            with suppress(ProcessLookupError):
                os.killpg(self._process_id, signal.SIGKILL)
        return self._wait()
