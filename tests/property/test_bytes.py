"""Random forwards whose bytes leave layer by layer and come back, with an engine that does the worst.

Forwards, aborts, evictions, restores and flushes in any order; copies land late, out of order, fail
midway or are refused, acks come late, layer ends are not reported. Free pages and slots are scribbled
at once. After every step every page that the cache says it has holds what its forward wrote, in every
component and layer, on the device and on the host.
"""

import os

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import cpkv
from cpkv.device import BACKUP, STREAMS, ManualEngine
from cpkv.drivers import HostTier
from manual_engine import free_slots, visible
from pools import Pools, small_layout


class Request:
    """A request between its start and its release."""

    def __init__(self, tokens, lease, pages, transaction):
        self.tokens = tokens
        self.lease = lease
        self.first = lease.pages
        self.pages = pages
        self.transaction = transaction
        self.restores = []
        self.stage = "waiting"


class Bytes(RuleBasedStateMachine):
    """One rank: a cache, its host tier, and a forward that may be under way."""

    @initialize(
        page_size=st.sampled_from([1, 2]),
        key=st.sampled_from(["token", "pair"]),
        draft=st.booleans(),
        index=st.booleans(),
        gap=st.sampled_from([0, 3]),
        segment_pages=st.sampled_from([1, 2, 4]),
        device_pages=st.integers(6, 14),
        segments=st.integers(1, 4),
        least_block=st.sampled_from([None, 1]),
    )
    def make(self, page_size, key, draft, index, gap, segment_pages, device_pages, segments, least_block):
        layout = small_layout(draft=draft, index=index, page_size=page_size)
        slots = segments * segment_pages * (4 // segment_pages)
        self.cache = cpkv.CacheManager(
            page_size=page_size,
            key=key,
            device_pages=device_pages,
            host_slots=slots,
            segment_pages=segment_pages,
            copies="tracked",
            draft=draft,
        )
        self.pools = Pools(layout, pages=device_pages, slots=slots, segment_pages=segment_pages, gap=gap)
        self.engine = ManualEngine(least_block=least_block)
        self.tier = HostTier(self.cache, self.engine, self.pools.device, self.pools.host)
        self.pair = int(key == "pair")
        self.step = 0
        self.alive = []
        self.batch = None
        self.layer = 0

    def stamp(self, tokens, page):
        """What decides the bytes of a page: all tokens up to its end, and with pair keys one more."""
        return tuple(tokens[: (page + 1) * self.cache.page_size + self.pair])

    # --- Requests ---

    @rule(
        runs=st.lists(st.tuples(st.sampled_from([7, 8]), st.integers(1, 5)), min_size=1, max_size=3),
        part_pages=st.sampled_from([None, 1]),
    )
    def start(self, runs, part_pages):
        tokens = [token for token, count in runs for _ in range(count)]
        lease = self.cache.lock(self.cache.match(tokens, limit=len(tokens) - 1))
        whole = (len(tokens) - self.pair) // self.cache.page_size
        count = max(0, whole - lease.device_pages)
        if self.cache.evict_for(count) is None:
            lease.release()
            return
        pages = list(self.cache.allocate(count))
        self.pools.scribble_pages(pages)
        restored, new = pages[: lease.host_pages], pages[lease.host_pages :]
        answer = self.cache.restore(lease, restored, part_pages=part_pages)
        self.cache.free(answer.duplicates)
        self.tier.load(answer.operations)
        (transaction,) = self.cache.reserve([(tokens, new, lease)])
        self.pools.scribble_slots(transaction.plan()[1])
        request = Request(tokens, lease, new, transaction)
        request.restores = answer.operations
        self.alive.append(request)

    def release(self, request):
        if request.stage != "inserted":
            request.transaction.abort()
        self.cache.free(request.pages)
        request.lease.release()
        self.alive.remove(request)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), reason=st.sampled_from(["aborted", "retracted"]))
    def abort(self, data, reason):
        """Given up while it waits, or while its forward is under way."""
        request = data.draw(st.sampled_from(self.alive))
        request.transaction.abort(reason)
        if request.stage == "waiting":
            self.release(request)

    # --- Forwards ---

    @precondition(lambda self: self.batch is None and any(one.stage == "waiting" for one in self.alive))
    @rule(most=st.integers(1, 3))
    def begin(self, most):
        self.batch = [one for one in self.alive if one.stage == "waiting"][:most]
        self.layer = 0
        for request in self.batch:
            request.stage = "computing"
        self.tier.begin_forward([one.transaction for one in self.batch], [one.lease for one in self.batch])

    @precondition(lambda self: self.batch is not None and self.layer < self.pools.layout.layers)
    @rule(is_reported=st.sampled_from([True, True, True, False]), twice=st.sampled_from([False, False, True]))
    def compute(self, is_reported, twice):
        layer = self.layer
        self.tier.layer_begins(layer)
        for request in self.batch:
            self.read(request, layer)
        for request in self.batch:
            for page, device in enumerate(request.pages, request.first):
                self.pools.compute(device, self.stamp(request.tokens, page), [layer])
        if is_reported:
            self.tier.layer_ended(layer)
        if is_reported and twice:
            self.tier.layer_ended(layer)
        self.layer += 1

    def read(self, request, layer):
        """What attention reads is what was written, unless a copy has failed."""
        if request.lease.lost:
            return
        try:
            assert request.lease.layer_has_landed(layer, self.engine.acks)
        except cpkv.RestoreError:
            return
        for page, device in enumerate(request.lease.page_ids()):
            assert self.pools.on_device(device, self.stamp(request.tokens, page), [layer])

    @precondition(lambda self: self.batch is not None)
    @rule(
        draft_runs=st.sampled_from([True, True, True, False]),
        reported=st.lists(st.sampled_from([True, True, False]), min_size=4, max_size=4),
    )
    def end(self, draft_runs, reported):
        layout = self.pools.layout
        while self.layer < (layout.layers if draft_runs else layout.target_layers):
            self.compute(is_reported=reported[self.layer], twice=False)
        draft_ran = self.layer == layout.layers
        self.tier.end_forward(draft_ran=draft_ran)
        for request in self.batch:
            request.stage = "ended"
            if not draft_ran:
                self.release(request)
        self.batch = None

    @precondition(lambda self: any(one.stage == "ended" for one in self.alive))
    @rule(data=st.data(), leaves_out=st.sampled_from([0, 0, 1]))
    def insert(self, data, leaves_out):
        request = data.draw(st.sampled_from([one for one in self.alive if one.stage == "ended"]))
        self.insert_pages(request, leaves_out)

    def insert_pages(self, request, leaves_out):
        if request.lease.lost:
            with pytest.raises(cpkv.RestoreError):
                self.cache.insert(request.tokens, request.pages, request.lease, request.transaction)
            self.release(request)
            return
        count = max(0, len(request.pages) - leaves_out)
        end = len(request.tokens)
        if count < len(request.pages):
            end = (request.first + count) * self.cache.page_size + self.pair
        answer = self.cache.insert(request.tokens[:end], request.pages[:count], request.lease, request.transaction)
        self.cache.free(answer.duplicates)
        self.cache.free(request.pages[count:])
        request.pages = []
        request.stage = "inserted"
        self.release(request)

    # --- Copies ---

    @rule(
        stream=st.integers(0, STREAMS - 1),
        place=st.sampled_from([0, 0, 0, 1, 2]),
        acknowledge=st.sampled_from([True, True, False]),
    )
    def land(self, stream, place, acknowledge):
        self.engine.land(stream, place=place, acknowledge=acknowledge)

    @rule(
        what=st.sampled_from(["fail", "refuse", "repeat", "flush", "pause", *["nothing"] * 5]),
        stream=st.integers(0, STREAMS - 1),
        copies=st.integers(0, 4),
    )
    def something_happens(self, what, stream, copies):
        if what == "fail":
            self.engine.fail(stream, copies=copies)
        elif what == "refuse":
            self.engine.refuse(copies=copies)
        elif what == "repeat":
            self.engine.repeat(stream, copies)
        elif what == "flush":
            self.cache.flush()
        elif what == "pause" and self.batch is None:
            self.tier.pause()
            with pytest.raises(cpkv.UsageError, match="paused"):
                self.tier.begin_forward([])
            self.tick()
            self.tier.resume()

    @rule()
    def tick(self):
        report = self.tier.tick(self.step)
        self.step += 1
        assert not report.quarantined

    @rule()
    def settle(self):
        for _ in range(2):
            self.engine.land_all()
            self.tick()

    @rule(
        prompts=st.lists(st.lists(st.sampled_from([7, 8]), min_size=3, max_size=8), min_size=1, max_size=2),
        reported=st.lists(st.sampled_from([True, True, True, True, False]), min_size=4, max_size=4),
        leaves_out=st.sampled_from([0, 0, 0, 1]),
        fault=st.sampled_from([None] * 6 + ["fail", "refuse"]),
        evicts=st.booleans(),
    )
    def serve(self, prompts, reported, leaves_out, fault, evicts):
        """Whole requests, which land and come back from the host."""
        if self.batch is not None:
            return
        for prompt in prompts:
            started = len(self.alive)
            self.start(runs=[(token, 1) for token in prompt], part_pages=None)
            if len(self.alive) == started:
                continue
            request = self.alive.pop()
            self.alive.insert(0, request)
            others = [one for one in self.alive[1:] if one.stage == "waiting"]
            for one in others:
                one.stage = "put off"
            self.begin(most=1)
            if fault == "refuse":
                self.engine.refuse(copies=1)
            self.end(draft_runs=True, reported=reported)
            for one in others:
                one.stage = "waiting"
            self.insert_pages(request, leaves_out)
            if fault == "fail":
                self.engine.fail(BACKUP, copies=1)
            self.settle()
        if evicts:
            self.evict(count=12)

    @rule(count=st.integers(0, 12))
    def evict(self, count):
        self.pools.scribble_pages(self.cache.evict(0, count))

    @invariant()
    def everything_holds_what_was_written(self):
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        for tokens, page, device, slot in visible(self.cache):
            stamp = self.stamp(tokens, page)
            if device is not None:
                assert self.pools.on_device(device, stamp)
            if slot is not None:
                assert self.pools.on_host(slot, stamp)
        assert self.pools.gaps_are_untouched()
        self.pools.scribble_slots(free_slots(self.cache))

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        if self.batch is not None:
            self.tier.end_forward(target_ran=False, draft_ran=False)
        for request in list(self.alive):
            self.release(request)
        for _ in range(16):
            self.engine.land_all()
            self.tick()
        assert not self.cache.has_work()
        self.cache.flush()
        stats = self.cache.stats()
        assert (stats.device_free_pages, stats.pages) == (stats.device_capacity_pages, 0)
        assert stats.host_cached_slots == stats.host_reserved_slots == stats.host_draining_slots == 0
        self.tier.close()


STEPS = int(os.environ.get("CPKV_PROVE_STEPS", "10000"))
"""Steps of the random forwards in all; `make prove` takes a million."""

TestBytes = Bytes.TestCase
TestBytes.settings = settings(
    max_examples=max(1, STEPS // 100),
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
