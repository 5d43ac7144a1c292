"""One of two ranks that is interrupted while its tick waits: `python interrupted_rank.py DIRECTORY NONCE RANK`.

Says when its tick has begun to wait, and what the interrupt has left behind.
"""

import signal
import sys

import cpkv
from waiting_call import WaitingCall

STEPS = 70
"""More than a log has entries, so that rank 0 has to wait for a reader."""


def say(line):
    """One line for the test that started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Rank:
    """A cache and its place in a log; each step begins a late backup."""

    def __init__(self, directory, nonce, rank):
        self.cache = cpkv.CacheManager(
            page_size=1, device_pages=100, host_slots=100, segment_pages=1, copies="tracked", own_lane=0
        )
        shared = {"ranks": 2, "fingerprint": self.cache.fingerprint, "directory": str(directory)}
        if rank == 0:
            self.log = cpkv.CommitLog.create("interrupts", nonce, **shared)
        else:
            self.log = cpkv.CommitLog.join("interrupts", nonce, rank, timeout=20, **shared)
        self.cache.attach_log(self.log)
        self.started = 0

    def insert(self, step):
        self.cache.insert([step], self.cache.allocate(1))

    def tick(self, step):
        report = self.cache.tick(step, [])
        self.started += len(report.started)

    def result(self):
        """What is alike on all ranks."""
        return f"{self.started} started, digest {self.cache.digest():016x}"


def ticks(one):
    for step in range(STEPS):
        one.insert(step)
        try:
            one.tick(step)
        except KeyboardInterrupt:
            say(f"interrupted in step {step}")
            for other in (step - 1, step + 1):
                try:
                    one.tick(other)
                except cpkv.UsageError as error:
                    say(f"UsageError: {error}")
            one.cache.check_integrity()
            say(f"has work: {one.cache.has_work()}")
            one.tick(step)


def main():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    directory, nonce, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    one = Rank(directory, nonce, rank)
    if rank == 0:
        one.log.wait_for_all(20)
    one.log.set_patience(warning=0.02, deadline=25)
    with WaitingCall(lambda: say("waiting")):
        ticks(one)
    say(one.result())
    one.log.close()


if __name__ == "__main__":
    main()
