"""Ranks of the reference engine as threads of one process: one commit log, and collectives that meet at a barrier.

Quicker than processes, and a test sees the engines of all ranks.
"""

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import torch

from cpkv import CommitLog
from cpkv.engine import Engine

JOIN_S = 30


class Meeting:
    """Where threads gather what each has: what `Exchange.all_gather` does between processes."""

    def __init__(self, cp_size):
        self.slots = [None] * cp_size
        self.barrier = threading.Barrier(cp_size)

    def gather(self, rank, what, tensor):
        self.slots[rank] = (what, tensor.clone())
        self.barrier.wait(JOIN_S)
        assert len({what for what, _ in self.slots}) == 1, self.slots
        gathered = torch.stack([tensor for _, tensor in self.slots])
        self.barrier.wait(JOIN_S)
        return gathered


def run_threads(work, config, cp_size, folder, options=lambda _: {}):
    """Do the same on every rank, and return what each has returned.

    Args:
        work: Called with the engine of each rank.
        config: Of the engines.
        cp_size: Ranks.
        folder: Of the commit log.
        options: More arguments of the engine of a rank.
    """
    nonce, meeting = secrets.randbits(62), Meeting(cp_size)

    def new_log(rank, fingerprint):
        shared = {"ranks": cp_size, "fingerprint": fingerprint, "directory": str(folder)}
        if rank == 0:
            log = CommitLog.create("engine", nonce, **shared)
            log.wait_for_all(JOIN_S)
        else:
            log = CommitLog.join("engine", nonce, rank, timeout=JOIN_S, **shared)
        log.set_patience(warning=JOIN_S / 2, deadline=JOIN_S)
        return log

    def run(rank):
        try:
            with Engine(
                config, rank=rank, cp_size=cp_size, new_log=lambda found: new_log(rank, found), **options(rank)
            ) as engine:
                engine.exchange.all_gather = lambda what, tensor: meeting.gather(rank, what, tensor)
                said = work(engine)
                meeting.barrier.wait(JOIN_S)
                return said
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(cp_size) as threads:
        return list(threads.map(run, range(cp_size)))
