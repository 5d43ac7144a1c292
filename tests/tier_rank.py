"""One rank process with its lane's memory and copy threads: `tier_rank.py DIRECTORY NONCE RANK RANKS SEED STEPS`.

What requests do comes from one seed and is alike on all ranks. How long copies take and which of them
fail comes from another and is not. Prints, after each step, the digest and what has become visible.
"""

import random
import sys

import cpkv
from cpkv.device import RESTORE, CpuEngine
from cpkv.drivers import HostTier
from manual_engine import free_slots, visible
from pools import Pools, small_layout
from replica import say

PAGE_SIZE = 2
PAGES = 12
SLOTS = 16
SEGMENT = 4


class TierRank:
    """A rank, its lane and its requests."""

    def __init__(self, directory, nonce, rank, ranks, seed):
        self.rank, self.ranks = rank, ranks
        self.same = random.Random(seed)
        own = random.Random(seed * 1_000 + rank)
        self.cache = cpkv.CacheManager(
            page_size=PAGE_SIZE,
            key="pair",
            lanes=ranks,
            device_pages=PAGES * ranks,
            host_slots=SLOTS * ranks,
            segment_pages=SEGMENT,
            copies="tracked",
            draft=True,
            own_lane=rank,
        )
        self.pools = Pools(small_layout(page_size=PAGE_SIZE), pages=PAGES, slots=SLOTS, segment_pages=SEGMENT)
        engine = CpuEngine(
            delay_s=lambda _: own.choice([0, 0, 0.0005, 0.002]),
            fails=lambda stream, _: own.random() < (0.03 if stream == RESTORE else 0.01),
        )
        self.tier = HostTier(self.cache, engine, self.pools.device, self.pools.host)
        shared = {"ranks": ranks, "fingerprint": self.cache.fingerprint, "directory": directory}
        if rank == 0:
            self.log = cpkv.CommitLog.create("tiers", nonce, **shared)
            self.log.wait_for_all(30)
        else:
            self.log = cpkv.CommitLog.join("tiers", nonce, rank, timeout=30, **shared)
        self.log.set_patience(warning=5, deadline=30)
        self.cache.attach_log(self.log)
        self.ended = []

    def mine(self, page):
        return page % self.ranks == self.rank

    def stamp(self, tokens, page):
        return tuple(tokens[: (page + 1) * PAGE_SIZE + 1])

    def forward(self):
        """A batch of up to two requests: reserved, restored, computed layer by layer on every rank."""
        batch = [request for request in (self.start() for _ in range(self.same.randint(1, 2))) if request]
        draft_ran = self.same.random() < 0.9
        self.tier.begin_forward([one[3] for one in batch], [one[1] for one in batch])
        layers = self.pools.layout.layers if draft_ran else self.pools.layout.target_layers
        for layer in range(layers):
            self.tier.layer_begins(layer)
            for tokens, lease, new, _ in batch:
                self.read(tokens, lease, layer)
                for page, device in enumerate(new, lease.pages):
                    if self.mine(device):
                        self.pools.compute(device // self.ranks, self.stamp(tokens, page), [layer])
            self.tier.layer_ended(layer)
        self.tier.end_forward(draft_ran=draft_ran)
        for request in batch:
            if draft_ran:
                self.ended.append(request)
            else:
                self.give_up(request)

    def read(self, tokens, lease, layer):
        """What this rank's part of attention reads, unless a copy has failed here."""
        try:
            assert lease.lost or lease.layer_has_landed(layer, self.tier.engine.acks)
        except cpkv.RestoreError:
            return
        if not lease.lost:
            for page, device in enumerate(lease.page_ids()):
                if self.mine(device):
                    assert self.pools.on_device(device // self.ranks, self.stamp(tokens, page), [layer])

    def start(self):
        tokens = [token for _ in range(self.same.randint(1, 3)) for token in [self.same.choice(range(7, 10))] * 4]
        lease = self.cache.lock(self.cache.match(tokens, limit=len(tokens) - 1))
        held, whole = lease.pages, (len(tokens) - 1) // PAGE_SIZE
        placed = [slot % self.ranks for slot in lease.host_slots()] + [page % self.ranks for page in range(held, whole)]
        if self.cache.evict_for(lanes=placed) is None:
            lease.release()
            return None
        pages = list(self.cache.allocate(lanes=placed))
        self.pools.scribble_pages([page // self.ranks for page in pages if self.mine(page)])
        restored, new = pages[: lease.host_pages], pages[lease.host_pages :]
        answer = self.cache.restore(lease, restored, part_pages=self.same.choice((None, 1)))
        self.cache.free(answer.duplicates)
        self.tier.load(answer.operations)
        (transaction,) = self.cache.reserve([(tokens, new, lease)])
        self.pools.scribble_slots([slot // self.ranks for slot in transaction.plan()[1] if self.mine(slot)])
        return tokens, lease, new, transaction

    def give_up(self, request):
        _, lease, new, transaction = request
        transaction.abort()
        self.cache.free(new)
        lease.release()

    def end(self):
        if not self.ended:
            return
        request = self.ended.pop(self.same.randrange(len(self.ended)))
        tokens, lease, new, transaction = request
        if lease.lost or self.same.random() < 0.2:
            self.give_up(request)
            return
        self.cache.free(self.cache.insert(tokens, new, lease, transaction).duplicates)
        lease.release()

    def evict(self):
        for lane in range(self.ranks):
            evicted = self.cache.evict(lane, PAGES)
            self.pools.scribble_pages([page // self.ranks for page in evicted if self.mine(page)])

    def check(self):
        self.cache.check_integrity()
        for tokens, page, device, slot in visible(self.cache):
            if slot is not None and self.mine(slot):
                assert self.pools.on_host(slot // self.ranks, self.stamp(tokens, page))
            if device is not None and self.mine(device):
                assert self.pools.on_device(device // self.ranks, self.stamp(tokens, page))
        self.pools.scribble_slots([slot // self.ranks for slot in free_slots(self.cache) if self.mine(slot)])

    def run(self, steps):
        """Yield a line after each step, and at the end what has come of it all."""
        for step in range(steps):
            for act in self.same.choices((self.forward, self.end, self.evict, lambda: None), (5, 5, 1, 2), k=2):
                act()
            report = self.tier.tick(step)
            self.check()
            yield f"{self.cache.digest():016x} {report.committed} {report.rolled_back} {report.restored}"
        stats = self.cache.stats()
        yield (
            f"# committed {stats.committed_operations}, rolled back {stats.rolled_back_operations}, "
            f"restored {stats.restored_pages}, lost {stats.failed_restores}"
        )
        for request in self.ended:
            self.give_up(request)
        self.tier.close()
        self.log.close()


def main():
    directory, nonce, rank, ranks, seed, steps = sys.argv[1], *map(int, sys.argv[2:])
    tier_rank = None
    try:
        # Another rank may die while this one still joins.
        tier_rank = TierRank(directory, nonce, rank, ranks, seed)
        for line in tier_rank.run(steps):
            say(line)
    except cpkv.RankError as error:
        if tier_rank is not None:
            tier_rank.tier.close()
        say(f"RankError: {error}")
        sys.exit(3)


if __name__ == "__main__":
    main()
