"""Random lives of transactions through the Python API, with an engine that moves real bytes.

After every step the cache is whole, every page that it says it has, on the device and on the host, holds what
the forward wrote, and a router that is told of every event knows exactly what is where. What comes free is
scribbled.
"""

import os

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

import cpkv
from manual_engine import LAYERS, STREAMS, TARGET_LAYERS, ManualEngine, contents, free_slots, visible

RUNS = st.lists(st.tuples(st.sampled_from([7, 8, -(2**40)]), st.integers(1, 5)), min_size=1, max_size=3)
"""A prompt: tokens, and how often each comes."""


class Request:
    """A request between its start and its release."""

    def __init__(self, tokens, lease, pages, first, transaction):
        self.tokens = tokens
        self.lease = lease
        self.pages = pages
        self.first = first
        self.transaction = transaction
        self.restores = []
        self.loaded = 0
        self.layers = 0
        self.stage = "computing"


class Backups(RuleBasedStateMachine):
    """One rank: a cache, an engine and requests at any point of their life."""

    requests = Bundle("requests")
    hits = Bundle("hits")

    @initialize(
        page_size=st.sampled_from([1, 2, 4]),
        key=st.sampled_from(["token", "pair"]),
        lanes=st.sampled_from([1, 2]),
        device_pages=st.integers(6, 14),
        host_slots=st.integers(2, 14),
        device_pool=st.sampled_from(["owned", "external"]),
        policy=st.sampled_from(cpkv.POLICIES),
        writes=st.sampled_from([("through", 0), ("through", 0), ("through", 4), ("selective", 0), ("back", 5)]),
    )
    def make(self, page_size, key, lanes, device_pages, host_slots, device_pool, policy, writes):
        self.key = key
        self.lanes = lanes
        # The free pages of an engine that has the pool.
        self.free_pages = set(range(device_pages * lanes)) if device_pool == "external" else None
        write, clean_pages = writes
        self.cache = cpkv.CacheManager(
            page_size=page_size,
            key=key,
            lanes=lanes,
            device_pages=device_pages * lanes,
            host_slots=host_slots * lanes,
            segment_pages=1,
            copies="tracked",
            draft=True,
            device_pool=device_pool,
            policy=policy,
            write=write,
            clean_pages=clean_pages,
            events=True,
        )
        self.router = {"device": set(), "host": set()}
        self.prompts = {}
        """What a router was told of: all tokens up to the end of a page, by its name."""
        self.engine = ManualEngine(device_pages * lanes, host_slots * lanes)
        self.step = 0
        self.alive = []

    def content(self, tokens, page):
        return contents(tokens, page, page_size=self.cache.page_size, key=self.key)

    def came_free(self, pages):
        """Nobody relies on what has come free, and an engine may use its own pages again."""
        self.engine.scribble(pages)
        if self.free_pages is not None:
            assert self.free_pages.isdisjoint(pages)
            self.free_pages.update(pages)

    def free(self, pages):
        self.came_free(list(self.cache.free(pages)))

    def take(self, lanes):
        """A page in each of these lanes, evicting for them; `None` if there is no room."""
        if self.free_pages is None:
            if self.cache.evict_for(lanes=lanes) is None:
                return None
            pages = list(self.cache.allocate(lanes=lanes))
        else:
            pages = []
            for lane in lanes:
                if not any(page % self.lanes == lane for page in self.free_pages):
                    self.came_free(list(self.cache.evict(lane, 1)))
                page = min((page for page in self.free_pages if page % self.lanes == lane), default=None)
                if page is None:
                    self.free_pages.update(pages)
                    return None
                self.free_pages.remove(page)
                pages.append(page)
        self.engine.scribble(pages)
        return pages

    @rule(target=hits, runs=RUNS)
    def find(self, runs):
        """Look a prompt up that is started later, if at all."""
        tokens = [token for token, count in runs for _ in range(count)]
        return tokens, self.cache.match(tokens, limit=len(tokens) - 1)

    @rule(
        target=requests,
        runs=RUNS,
        reserves=st.sampled_from([True, True, True, False]),
        part_pages=st.sampled_from([None, 1, 2]),
        priority=st.integers(-1, 1),
    )
    def start(self, runs, reserves, part_pages, priority):
        found = self.find(runs)
        return self.start_found(found, reserves, part_pages, priority)

    @rule(
        target=requests,
        found=consumes(hits),
        reserves=st.sampled_from([True, True, True, False]),
        part_pages=st.sampled_from([None, 1, 2]),
        priority=st.integers(-1, 1),
    )
    def start_found(self, found, reserves, part_pages, priority):
        """Start what was looked up, now or some time ago: as much of it is held as is left."""
        tokens, hit = found
        lease = self.cache.lock(hit, priority=priority)
        assert lease.pages <= hit.pages
        whole = max(0, len(tokens) - int(self.key == "pair")) // self.cache.page_size
        held, on_device = lease.pages, lease.device_pages
        slots = list(lease.host_slots())
        for page, slot in zip(range(on_device, held), slots, strict=True):
            assert self.engine.host_content(slot) == self.content(tokens, page)
        placed = [slot % self.lanes for slot in slots] + [page % self.lanes for page in range(held, whole)]
        pages = self.take(placed)
        if pages is None:
            lease.release()
            return multiple()
        restored, new = pages[: len(slots)], pages[len(slots) :]
        answer = self.cache.restore(lease, restored, part_pages=part_pages)
        self.free(answer.duplicates)
        transaction = None
        if reserves:
            (transaction,) = self.cache.reserve([(tokens, new, lease)])
            self.engine.host[:, list(transaction.plan()[1])] = 0xEE
        request = Request(tokens, lease, new, held, transaction)
        request.restores = answer.operations
        self.alive.append(request)
        return request

    @rule(request=requests, layers=st.integers(1, LAYERS), fails=st.sampled_from([False] * 9 + [True]))
    def load(self, request, layers, fails):
        for _ in range(min(layers, LAYERS - request.loaded)):
            alive = [one for one in request.restores if one.status == "pending"]
            self.engine.load(alive, request.loaded, fails=fails)
            request.loaded += 1
        for restore in request.restores:
            if restore.status != "pending":
                restore.abort()  # it has failed, and nothing more of it will be submitted

    def can_read(self, request, layer):
        """Whether the layer of all that the request holds is there, and then is what was written."""
        try:
            if not request.lease.layer_has_landed(layer, self.engine.acks):
                return False
        except cpkv.RestoreError:  # a copy has failed here, and the tick has not said so yet
            return False
        for page, device in enumerate(request.lease.page_ids()):
            assert self.engine.device_content(device)[layer] == self.content(request.tokens, page)[layer]
        return True

    def give_up_if_lost(self, request):
        if request.stage == "released" or not request.lease.lost:
            return request.stage == "released"
        for refused in (
            lambda: request.lease.layer_has_landed(0),
            lambda: self.cache.restore(request.lease, []),
            lambda: self.cache.reserve([(request.tokens, request.pages, request.lease)]),
            lambda: self.cache.insert(request.tokens, request.pages, request.lease, request.transaction),
        ):
            with pytest.raises(cpkv.RestoreError):
                refused()
        self.release(request)
        return True

    def compute_layer(self, request, *, fails=False):
        layer = request.layers
        if self.give_up_if_lost(request) or not self.can_read(request, layer):
            return False
        written = [self.content(request.tokens, request.first + place)[layer] for place in range(len(request.pages))]
        self.engine.write(request.pages, layer, written)
        if request.transaction and request.transaction.status == "reserved":
            self.engine.submit(request.transaction, layer, fails=fails)
        request.layers += 1
        return True

    @rule(request=requests, fails=st.sampled_from([False] * 9 + [True]))
    def compute(self, request, fails):
        if request.stage == "computing" and request.layers < LAYERS:
            self.compute_layer(request, fails=fails)

    @rule(request=requests, draft_runs=st.sampled_from([True] * 5 + [False]))
    def end_forward(self, request, draft_runs):
        if request.stage != "computing":
            return
        while request.layers < (LAYERS if draft_runs else max(TARGET_LAYERS, request.layers)):
            if not self.compute_layer(request):
                return
        draft_ran = request.layers == LAYERS
        self.cache.forward_end([request.transaction] if request.transaction else [], draft_ran=draft_ran)
        request.stage = "ended"
        if not draft_ran:
            self.release(request)

    @rule(request=requests, most=st.sampled_from([99, 99, 99, 0, 1, 2]))
    def insert(self, request, most):
        if request.stage != "ended" or self.give_up_if_lost(request):
            return
        count = min(len(request.pages), most)
        end = len(request.tokens)
        if count < len(request.pages):
            end = min(end, (request.first + count) * self.cache.page_size + int(self.key == "pair"))
        inserted = self.cache.insert(request.tokens[:end], request.pages[:count], request.lease, request.transaction)
        self.free(inserted.duplicates)
        self.free(request.pages[count:])
        request.pages = []
        request.stage = "inserted"

    @rule(request=requests)
    def release(self, request):
        if request.stage == "released":
            return
        if request.transaction and request.stage != "inserted":
            request.transaction.abort()
        if request.loaded < LAYERS:
            for restore in request.restores:
                restore.abort()
        self.free(request.pages)
        request.lease.release()
        request.stage = "released"
        self.alive.remove(request)

    @rule(request=requests, reason=st.sampled_from(["aborted", "retracted"]))
    def abort(self, request, reason):
        if request.transaction and request.stage != "released":
            request.transaction.abort(reason)

    @rule(stream=st.integers(0, STREAMS - 1), acknowledge=st.sampled_from([True, True, True, False]))
    def land(self, stream, acknowledge):
        self.engine.land(stream, acknowledge=acknowledge)

    @rule()
    def tick(self):
        report = self.cache.tick(self.step, self.engine.acks)
        self.step += 1
        self.came_free(list(report.freed_pages))
        for late in report.started:
            if late.status == "pending":
                for layer in range(LAYERS):
                    self.engine.submit(late, layer)
                late.submitted_all()

    @rule(
        prompts=st.lists(st.lists(st.sampled_from([7, 8]), min_size=2, max_size=8), min_size=1, max_size=2),
        part_pages=st.sampled_from([None, 1]),
    )
    def serve(self, prompts, part_pages):
        """Whole requests, each with nothing in between but what it restores."""
        for prompt in prompts:
            started = len(self.alive)
            self.start(runs=[(token, 1) for token in prompt], reserves=True, part_pages=part_pages, priority=0)
            if len(self.alive) == started:
                continue
            request = self.alive[-1]
            self.load(request, layers=LAYERS, fails=False)
            self.settle()
            self.end_forward(request, draft_runs=True)
            self.insert(request, most=99)
            self.release(request)
        self.settle()

    @rule()
    def settle(self):
        """Every copy lands, and the cache hears of it."""
        for _ in range(2):
            self.engine.land_all()
            self.tick()

    @rule(lane=st.integers(0, 1), count=st.integers(0, 12))
    def evict(self, lane, count):
        self.came_free(list(self.cache.evict(lane % self.lanes, count)))

    @rule(often=st.integers(0, 5))
    def flush(self, often):
        if often == 0:
            self.came_free(list(self.cache.flush()))
            assert self.cache.match([7] * 40).pages == 0

    @invariant()
    def everything_holds_what_was_written(self):
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        for tokens, page, device, slot in visible(self.cache):
            expected = self.content(tokens, page)
            if device is not None:
                assert self.engine.device_content(device) == expected
            if slot is not None:
                assert self.engine.host_content(slot) == expected
        self.engine.scribble_slots(free_slots(self.cache))

    @invariant()
    def a_router_knows_what_is_where(self):
        if not hasattr(self, "cache"):
            return
        for event in self.cache.take_events():
            if event.kind == "cleared":
                self.router = {"device": set(), "host": set()}
                continue
            known = self.router[event.medium]
            pages = set(event.page_hashes)
            assert len(pages) == len(event.page_hashes)
            if event.kind == "stored":
                self.is_told_of(event)
                assert known.isdisjoint(pages)
                known |= pages
            else:
                assert known >= pages
                known -= pages
        assert self.router == self.cached()

    def is_told_of(self, event):
        """An event of pages that were stored says all that their names are made of."""
        in_front, size = [], self.cache.page_size
        if event.parent_hash is not None:
            assert event.parent_hash in self.router["device"] | self.router["host"], "stored before its parent"
            in_front = self.prompts[event.parent_hash]
        tokens = in_front + event.token_ids
        assert self.cache.page_hashes(tokens)[len(in_front) // size :] == event.page_hashes
        assert len(event.token_ids) == len(event.page_hashes) * size + (self.key == "pair")
        for place, page in enumerate(event.page_hashes, 1):
            self.prompts[page] = tokens[: len(in_front) + place * size]

    def cached(self):
        """The names of the pages that can be found in each tier."""
        cached = {"device": set(), "host": set()}
        prefixes, lost = {}, set()
        for node in self.cache.dump()["nodes"]:
            tokens = prefixes[node["index"]] = prefixes.get(node["parent"], []) + node["token_ids"]
            if node["parent"] in lost or node["cut_off"] or node["flushed"]:
                lost.add(node["index"])
                continue
            names = self.cache.page_hashes(tokens if node["successor"] is None else [*tokens, node["successor"]])
            for medium, places in (("device", node["device_pages"]), ("host", node["host_slots"])):
                cached[medium].update(names[len(names) - len(places) :])
        return cached

    def teardown(self):
        if not hasattr(self, "cache"):
            return
        for request in list(self.alive):
            self.release(request)
        for _ in range(16):
            self.engine.land_all()
            self.tick()
        assert not self.cache.has_work()
        self.came_free(list(self.cache.flush()))
        stats = self.cache.stats()
        assert stats.pages == 0
        free = stats.device_free_pages if self.free_pages is None else len(self.free_pages)
        assert free == self.cache.device_pages
        assert stats.host_cached_slots == stats.host_reserved_slots == stats.host_draining_slots == 0


STEPS = int(os.environ.get("CPKV_PROVE_STEPS", "10000"))
"""Steps of the random lives in all; `make prove` takes a million."""

TestBackups = Backups.TestCase
TestBackups.settings = settings(
    max_examples=max(1, STEPS // 100),
    stateful_step_count=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
