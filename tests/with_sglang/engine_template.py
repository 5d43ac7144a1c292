"""A process that has imported SGLang and forks for each engine.

    engine_template.py DESCRIPTOR

An engine consists of three processes, each of which takes ten seconds and more to import SGLang. Forked from here, an
engine starts in one. What it gets are `(log file, environment)`, followed by the descriptor of a connection for
`engine_main`, which it answers with a process id; and process ids, which it answers with exit codes.

Environment variables that SGLang reads while it is imported have to be set for this process. SGLang starts its
processes by `spawn`; here they are forked, too. One engine of the tests is started without this.
"""

import gc
import multiprocessing
import os
import sys
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle

import engine_main

MODULES = [
    "sglang.srt.entrypoints.engine",
    "sglang.srt.managers.detokenizer_manager",
    "sglang.srt.managers.scheduler",
    "sglang.srt.models.registry",  # all models
]
"""What the processes of an engine import. No plugin is loaded here: that is for them."""


def main(connection):
    """Import, and fork until the tests close the connection."""
    for module in MODULES:
        import_module(module)
    gc.freeze()  # the collectors of the processes that are forked would copy what they look at
    connection.send(None)
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if isinstance(asked, int):
            _, status = os.waitpid(asked, 0)
            connection.send(os.waitstatus_to_exitcode(status))
            continue
        log, environment = asked
        descriptor = recv_handle(connection)
        process_id = os.fork()
        if not process_id:
            connection.close()
            become_engine(descriptor, log, environment)
        os.close(descriptor)
        connection.send(process_id)


def become_engine(descriptor, log, environment):
    """Serve, and leave without what the template would do at its end."""
    os.setsid()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.environ.update(environment)
    multiprocessing.set_start_method("fork", force=True)
    multiprocessing.set_start_method = lambda *_, **__: None  # what SGLang would choose is spawn
    status = 1
    try:
        engine_main.serve(Connection(descriptor))
        status = 0
    except BaseException:  # noqa: BLE001 - Python would tell it and exit, too
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
