"""One rank process of several that do the same: `python replica.py DIRECTORY NONCE RANK RANKS SEED STEPS`.

A rank may be a thread as well: `Replica` does the same there.

What requests do comes from one seed and is alike on all ranks. When copies land, how late they are
acknowledged and which of them fail comes from another and is not. Prints the digest after each
step.
"""

import random
import sys

import cpkv
from manual_engine import LAYERS, STREAMS, ManualEngine, contents, free_slots, visible

PAGE_SIZE = 2
PAGES = 16
SLOTS = 20


def say(line):
    """One line for the test that started this process."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Replica:
    """A rank, its share of the memory and its requests."""

    def __init__(self, directory, nonce, rank, ranks, seed):
        self.rank, self.ranks = rank, ranks
        self.same = random.Random(seed)
        self.own = random.Random(seed * 1_000 + rank)
        self.cache = cpkv.CacheManager(
            page_size=PAGE_SIZE,
            key="pair",
            lanes=ranks,
            device_pages=PAGES * ranks,
            host_slots=SLOTS * ranks,
            segment_pages=1,
            copies="tracked",
            draft=True,
            own_lane=rank,
        )
        self.engine = ManualEngine(PAGES * ranks, SLOTS * ranks)
        shared = {"ranks": ranks, "fingerprint": self.cache.fingerprint, "directory": directory}
        if rank == 0:
            self.log = cpkv.CommitLog.create("replicas", nonce, **shared)
            self.log.wait_for_all(30)
        else:
            self.log = cpkv.CommitLog.join("replicas", nonce, rank, timeout=30, **shared)
        self.log.set_patience(warning=5, deadline=30)
        self.cache.attach_log(self.log)
        self.requests = []

    def mine(self, page):
        return page % self.ranks == self.rank

    def content(self, tokens, page):
        return contents(tokens, page, page_size=PAGE_SIZE, key="pair")

    def submit(self, transaction):
        for layer in range(LAYERS):
            self.engine.submit(transaction, layer, self.mine, fails=self.own.random() < 0.02)

    def start(self):
        tokens = [token for _ in range(self.same.randint(1, 3)) for token in [self.same.choice(range(7, 10))] * 4]
        lease = self.cache.lock(self.cache.match(tokens, limit=len(tokens) - 1))
        held, whole = lease.pages, (len(tokens) - 1) // PAGE_SIZE
        slots = list(lease.host_slots())
        placed = [slot % self.ranks for slot in slots] + [page % self.ranks for page in range(held, whole)]
        if self.cache.evict_for(lanes=placed) is None:
            lease.release()
            return
        pages = list(self.cache.allocate(lanes=placed))
        restored, new = pages[: len(slots)], pages[len(slots) :]
        answer = self.cache.restore(lease, restored, part_pages=self.same.choice((None, 1, 2)))
        self.cache.free(answer.duplicates)
        fails = self.own.random() < 0.06
        for layer in range(LAYERS):
            self.engine.load(answer.operations, layer, self.mine, fails=fails)
        (transaction,) = self.cache.reserve([(tokens, new, lease)])
        written = [self.content(tokens, held + place) for place in range(len(new))]
        for layer in range(LAYERS):
            self.engine.write(new, layer, [content[layer] for content in written])
        if transaction.id is not None:
            self.submit(transaction)
        self.cache.forward_end([transaction], draft_ran=True)
        self.requests.append((tokens, new, lease, transaction))

    def end(self):
        if not self.requests:
            return
        tokens, pages, lease, transaction = self.requests.pop(self.same.randrange(len(self.requests)))
        # A lease that relies on a restore that has failed is lost on all ranks at once.
        if lease.lost or self.same.random() < 0.2:
            transaction.abort()
            self.cache.free(pages)
        else:
            self.cache.free(self.cache.insert(tokens, pages, lease, transaction).duplicates)
        lease.release()

    def evict(self):
        for lane in range(self.ranks):
            self.engine.scribble(self.cache.evict(lane, PAGES))

    def tick(self, step):
        for stream in range(STREAMS):
            for _ in range(self.own.choice((0, 0, 1, 2, 8))):
                self.engine.land(stream, acknowledge=self.own.random() < 0.7)
        report = self.cache.tick(step, self.engine.acks)
        for late in report.started:
            if late.status == "pending":
                self.submit(late)
                late.submitted_all()
        return report

    def check(self):
        self.cache.check_integrity()
        for tokens, page, device, slot in visible(self.cache):
            if slot is not None and self.mine(slot):
                assert self.engine.host_content(slot) == self.content(tokens, page)
            if device is not None and self.mine(device):
                assert self.engine.device_content(device) == self.content(tokens, page)
        self.engine.scribble_slots(free_slots(self.cache))

    def run(self, steps):
        """Yield the digest after each step, and at the end what has come of it all."""
        committed = 0
        for step in range(steps):
            for act in self.same.choices((self.start, self.end, self.evict, lambda: None), (5, 5, 1, 2), k=2):
                act()
            committed += len(self.tick(step).committed)
            self.check()
            yield f"{self.cache.digest():016x}"
        stats = self.cache.stats()
        said = f"committed {committed}, rolled back {stats.rolled_back_operations}"
        yield f"# {said}, restored {stats.restored_pages}, lost {stats.failed_restores}"
        for _, pages, lease, transaction in self.requests:
            transaction.abort()
            self.cache.free(pages)
            lease.release()
        self.log.close()


def main():
    directory, nonce, rank, ranks, seed, steps = sys.argv[1], *map(int, sys.argv[2:])
    try:
        # Another rank may die while this one still joins.
        for line in Replica(directory, nonce, rank, ranks, seed).run(steps):
            say(line)
    except cpkv.RankError as error:
        say(f"RankError: {error}")
        sys.exit(3)


if __name__ == "__main__":
    main()
