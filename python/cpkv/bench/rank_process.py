"""One rank of `rank_ticks`, a process of its own; `main` says how to start it.

Opens its operations, ticks, and leaves when it entered and left each tick in `DIRECTORY/RANK.npy`, shape
`(repeats, skews, ticks, 2)`, in nanoseconds of the clock that all processes of a machine share.
"""

import os
import random
import sys
import time
from pathlib import Path
from typing import Final

import numpy as np

from cpkv._core import AckWords, CacheManager, CommitLog, Transaction
from cpkv.bench.machine import cores
from cpkv.errors import CpkvError, IntegrityError

PAGE_SIZE: Final = 64
MEET_EVERY_TICKS: Final = 32
"""A forward makes ranks meet. Without, rank 0 could be so far ahead that the log is full."""
PATIENCE_S: Final = 120.0


class Meeting:
    """Where ranks wait for each other outside of what is timed: a word for each, in a file."""

    def __init__(self, file: Path, rank: int) -> None:
        """Map the words; the file is there, and zero."""
        self._words = np.memmap(file, dtype=np.int64, mode="r+")
        self._rank, self._parent = rank, os.getppid()

    def meet(self) -> None:
        """Wait until all ranks have called this as often. Nobody is left to measure for an orphan."""
        self._words[self._rank] += 1
        while self._words.min() < self._words[self._rank]:
            if os.getppid() != self._parent:
                message = "the process that started the ranks is gone"
                raise CpkvError(message)
            time.sleep(20e-6)


def open_operations(cache: CacheManager, count: int) -> list[Transaction]:
    """Reserve slots for so many prompts of a page, whose copies are submitted and never land."""
    transactions = []
    for page in range(count):
        prompt = np.arange(page * PAGE_SIZE, (page + 1) * PAGE_SIZE)
        with cache.lock(cache.match(prompt)) as lease:
            transactions += cache.reserve([(prompt, cache.allocate(1) or [], lease)])
    for transaction in transactions:
        transaction.submitted(0, 1)
        transaction.submitted(1, 1)
    cache.forward_end(transactions)
    return transactions


def delay(nanoseconds: int, *, is_crowded: bool) -> None:
    """Come late to the tick. Where a rank has a core to itself it does not give it up for that."""
    if is_crowded and nanoseconds:
        time.sleep(nanoseconds / 1e9)
        return
    until = time.monotonic_ns() + nanoseconds
    while time.monotonic_ns() < until:
        pass


def run(directory: Path, nonce: int, rank: int, sizes: list[int]) -> None:
    """Be a rank, from joining the log to leaving it."""
    ranks, operations, ticks, repeats, *skews_us = sizes
    cache = CacheManager(
        page_size=PAGE_SIZE, device_pages=operations, host_slots=operations, segment_pages=1,
        copies="tracked", draft=True, copy_deadline=86_400.0,
    )  # fmt: skip
    shared = {"ranks": ranks, "fingerprint": cache.fingerprint}
    if rank == 0:
        log = CommitLog.create("bench", nonce, directory=str(directory), **shared)
        log.wait_for_all(PATIENCE_S)
    else:
        log = CommitLog.join("bench", nonce, rank, timeout=PATIENCE_S, directory=str(directory), **shared)
    with log:
        cache.attach_log(log)
        transactions = open_operations(cache, operations)
        meeting, words = Meeting(directory / "meeting", rank), AckWords(2)
        late, is_crowded = random.Random(rank), cores() < ranks
        times = np.zeros((repeats, len(skews_us), ticks, 2), np.int64)
        step = 0
        for repeat in range(repeats):
            for place, skew_us in enumerate(skews_us):
                for tick in range(ticks):
                    if tick % MEET_EVERY_TICKS == 0:
                        meeting.meet()
                    delay(late.randrange(skew_us * 1_000 + 1), is_crowded=is_crowded)
                    entered = time.monotonic_ns()
                    cache.tick(step, words)
                    times[repeat, place, tick] = entered, time.monotonic_ns()
                    step += 1
        if cache.stats().open_operations != operations:
            message = f"{cache.stats().open_operations} operations are open at the end, want {operations}"
            raise IntegrityError(message)
        np.save(directory / f"{rank}.npy", times)
        meeting.meet()
        for transaction in transactions:
            transaction.abort()


def main() -> int:
    """Run `rank_process DIRECTORY NONCE RANK RANKS OPERATIONS TICKS REPEATS SKEW_US...`."""
    nonce, rank, *sizes = map(int, sys.argv[2:])
    try:
        run(Path(sys.argv[1]), nonce, rank, sizes)
    except CpkvError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
