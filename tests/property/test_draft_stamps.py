"""The state of a draft belongs to the same forward as that of its target, however often a page goes and comes back.

Every forward writes its own number into every layer of the pages it computes. A page that is on the host, or that
was brought back from there, has one number in all of its layers: a draft's that is older, of another prompt or
missing is what makes acceptance slide, and nothing else shows it.
"""

import os
import random
from collections import Counter

import pytest

import cpkv
from manual_engine import LAYERS, STREAMS, TARGET_LAYERS, ManualEngine, visible

ROUNDS = max(2_000, int(os.environ.get("CPKV_PROVE_STEPS", "0")) // 10)
FEWER_ROUNDS = ROUNDS // 4
PAGES, SLOTS = 16, 24
"""Device pages and host slots of a lane: a third of what the prompts have."""


class Soak:
    """One rank that hits, extends, evicts and brings back for ever."""

    def __init__(self, page_size, key, lanes, seed):
        self.random = random.Random(seed)
        self.page_size, self.key, self.lanes = page_size, key, lanes
        self.cache = cpkv.CacheManager(
            page_size=page_size,
            key=key,
            lanes=lanes,
            device_pages=PAGES * lanes,
            host_slots=SLOTS * lanes,
            segment_pages=1,
            copies="tracked",
            draft=True,
        )
        self.engine = ManualEngine(PAGES * lanes, SLOTS * lanes)
        self.forwards = self.step = 0
        self.partial = set()
        """Device pages of which the draft's state was not written."""
        self.seen = Counter()

    def prompt(self):
        pages = self.random.randint(1, 6) * self.lanes
        first = 1_000_000 * self.random.randrange(12)
        tokens = list(range(first, first + pages * self.page_size + int(self.key == "pair")))
        if self.random.random() < 0.3:
            tokens = tokens[: self.random.randrange(len(tokens))] + [-1] * self.page_size * 2
        return tokens

    def tick(self):
        report = self.cache.tick(self.step, self.engine.acks)
        self.step += 1
        self.seen["committed"] += len(report.committed)
        for late in report.started:
            if late.status == "pending":
                for layer in range(LAYERS):
                    self.engine.submit(late, layer)
                late.submitted_all()

    def settle(self):
        for _ in range(2):
            self.engine.land_all()
            self.tick()

    def take(self, lanes):
        if self.cache.evict_for(lanes=lanes) is None:
            return None
        pages = list(self.cache.allocate(lanes=lanes))
        # What was written there before stays: nothing but a forward, or a restore, makes it right.
        self.partial.difference_update(pages)
        return pages

    def round(self):
        tokens = self.prompt()
        lease = self.cache.lock(self.cache.match(tokens))
        whole = max(0, len(tokens) - int(self.key == "pair")) // self.page_size
        held, slots = lease.pages, list(lease.host_slots())
        pages = self.take([slot % self.lanes for slot in slots] + [page % self.lanes for page in range(held, whole)])
        if pages is None:
            lease.release()
            return
        answer = self.cache.restore(lease, pages[: len(slots)])
        self.cache.free(answer.duplicates)
        fails = self.random.random() < 0.03
        for layer in range(LAYERS):
            self.engine.load(answer.operations, layer, fails=fails)
        new = pages[len(slots) :]
        (transaction,) = self.cache.reserve([(tokens, new, lease)])
        self.seen["restored"] += len(slots)
        if self.random.random() < 0.5 or answer.operations:
            self.settle()
        if not lease.lost:
            self.forward(tokens, new, lease, transaction)
        else:
            self.seen["lost"] += 1
            transaction.abort()
            self.cache.free(new)
        lease.release()
        if self.random.random() < 0.2:
            self.cache.evict(self.random.randrange(self.lanes), PAGES)
        if self.random.random() < 0.5:
            self.engine.land(self.random.randrange(STREAMS))
            self.tick()

    def forward(self, tokens, pages, lease, transaction):
        self.forwards += 1
        draft_runs = self.random.random() < 0.9
        for layer in range(LAYERS if draft_runs else TARGET_LAYERS):
            self.engine.write(pages, layer, [self.forwards] * len(pages))
            if transaction.status == "reserved":
                self.engine.submit(transaction, layer, fails=self.random.random() < 0.01)
        self.cache.forward_end([transaction], draft_ran=draft_runs)
        if self.random.random() < 0.1:
            transaction.abort()
            self.cache.free(pages)
            return
        if not draft_runs:
            self.partial.update(pages)
            self.seen["partial"] += len(pages)
        self.cache.free(self.cache.insert(tokens, pages, lease, transaction).duplicates)

    def check(self):
        """Count the pages in each tier whose layers are not of one forward."""
        for _, _, device, slot in visible(self.cache):
            if slot is not None:
                self.compare("host", self.engine.host_content(slot))
            if device is not None and device not in self.partial:
                self.compare("device", self.engine.device_content(device))

    def compare(self, tier, stamps):
        self.seen[f"{tier} pages"] += 1
        is_stale = len(set(stamps)) != 1 or not 0 < stamps[0] <= self.forwards
        self.seen[f"stale {tier} pages"] += is_stale


@pytest.mark.timeout(0 if "CPKV_PROVE_STEPS" in os.environ else 30)
@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("key", ["token", "pair"])
@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_a_page_never_has_the_draft_of_another_forward(page_size, key, lanes, tell):
    rounds = ROUNDS if (page_size, lanes) == (4, 2) else FEWER_ROUNDS
    soak = Soak(page_size, key, lanes, seed=page_size + lanes)
    for _ in range(rounds):
        soak.round()
        soak.check()
    seen = soak.seen
    if rounds == ROUNDS:
        tell(f"\n{rounds} rounds, {soak.forwards} forwards: {dict(seen)}")
    assert (seen["stale host pages"], seen["stale device pages"]) == (0, 0), seen
    for what in ("committed", "restored", "partial", "lost"):
        assert seen[what] >= rounds // 500, seen
    soak.cache.check_integrity()
