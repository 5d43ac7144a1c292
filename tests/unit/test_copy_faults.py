"""Faults of copies that other systems have had, as kinds: whatever was restored is what was computed.

Every test goes through a real host tier, with bytes that say which component, layer and prompt they
belong to. Pages and slots that nobody uses are scribbled at once.
"""

import itertools
import random
import threading
from pathlib import Path

import pytest

import cpkv
from cpkv.device import BACKUP, RESTORE, CpuEngine, CpuStream, ManualEngine
from cpkv.drivers import HostTier, open_tier
from cpkv.layout import Component, DevicePool, HostPool, PageLayout
from manual_engine import free_slots, visible
from pools import SCRIBBLE, Pools, small_layout

PAGE = 2
PAGES = SLOTS = 16
MODEL = {"target_layers": 3, "draft_layers": 1, "page_size": PAGE}
INDEXED = MODEL | {"index_layers": (0, 2)}
LAYOUTS = {
    "bf16": PageLayout.mla(**INDEXED),
    "fp8 packed": PageLayout.mla(**INDEXED, kv="fp8_packed"),
    "fp8 plain": PageLayout.mla(**INDEXED, kv="float8_e4m3fn"),
    "attention": PageLayout.attention(**MODEL, heads=2, head_dim=8),
    "no draft": small_layout(draft=False),
    "odd rows": small_layout(),
}
ENGINES = {"cpu": CpuEngine, "manual": ManualEngine, "manual, blocks": lambda: ManualEngine(least_block=1)}
WITH_DRAFT = {name: layout for name, layout in LAYOUTS.items() if layout.draft_layers}


def named(values):
    return [pytest.param(value, id=name) for name, value in values.items()]


def prompt(first, pages):
    """Tokens of so many whole pages under pair keys."""
    return [first + place for place in range(pages * PAGE + 1)]


class Request:
    """A request between its start and its end."""

    def __init__(self, tokens, lease, new, transaction):
        self.tokens, self.lease, self.new, self.transaction = tokens, lease, new, transaction
        self.first = lease.pages


class Rank:
    """A rank and what its forwards do. What a page holds depends on all tokens up to its end."""

    def __init__(self, layout, engine, *, segment_pages=4, gap=0, lanes=1, lane=None, compute_stream=lambda: None):
        self.layout, self.engine, self.lanes, self.lane = layout, engine, lanes, lane or 0
        self.cache = cpkv.CacheManager(
            page_size=PAGE,
            key="pair",
            device_pages=PAGES * lanes,
            host_slots=SLOTS * lanes,
            segment_pages=segment_pages,
            copies="tracked",
            draft=bool(layout.draft_layers),
            lanes=lanes,
            own_lane=lane,
        )
        self.pools = Pools(layout, pages=PAGES, slots=SLOTS, segment_pages=segment_pages, gap=gap)
        self.tier = HostTier(self.cache, engine, self.pools.device, self.pools.host, compute_stream=compute_stream)
        self.step = 0

    def mine(self, ids):
        """The physical pages or slots among these that are of the own lane."""
        return [number // self.lanes for number in ids if number % self.lanes == self.lane]

    def stamp(self, tokens, place):
        return tuple(tokens[: (place + 1) * PAGE + 1])

    def start(self, tokens):
        lease = self.cache.lock(self.cache.match(tokens))
        held, whole = lease.pages, (len(tokens) - 1) // PAGE
        lanes = [slot % self.lanes for slot in lease.host_slots()] + [
            place % self.lanes for place in range(held, whole)
        ]
        assert self.cache.evict_for(lanes=lanes) is not None
        pages = list(self.cache.allocate(lanes=lanes))
        self.pools.scribble_pages(self.mine(pages))
        answer = self.cache.restore(lease, pages[: lease.host_pages])
        new = pages[len(pages) - (whole - held) :]
        self.tier.load(answer.operations)
        (transaction,) = self.cache.reserve([(tokens, new, lease)])
        self.pools.scribble_slots(self.mine(transaction.plan()[1]))
        return Request(tokens, lease, new, transaction)

    def read(self, request, layer):
        """What attention reads of a layer is what was computed."""
        for place, page in enumerate(request.lease.page_ids()):
            for own in self.mine([page]):
                assert self.pools.on_device(own, self.stamp(request.tokens, place), [layer]), (place, layer)

    def compute(self, request, layers):
        for layer in layers:
            for place, page in enumerate(request.new, request.first):
                for own in self.mine([page]):
                    self.pools.compute(own, self.stamp(request.tokens, place), [layer])

    def forward(self, request, *, layers=None, hooked=None):
        """Run the layers, all of them if not said otherwise; those of `hooked` report their end."""
        layers = range(self.layout.layers) if layers is None else layers
        self.tier.begin_forward([request.transaction], [request.lease])
        for layer in layers:
            self.tier.layer_begins(layer)
            self.read(request, layer)
            self.compute(request, [layer])
            if hooked is None or layer in hooked:
                self.tier.layer_ended(layer)
        self.tier.end_forward(draft_ran=len(layers) == self.layout.layers)

    def insert(self, request):
        answer = self.cache.insert(request.tokens, request.new, request.lease, request.transaction)
        self.cache.free(answer.duplicates)
        request.lease.release()

    def serve(self, tokens, **forward):
        request = self.start(tokens)
        self.forward(request, **forward)
        self.insert(request)
        return request

    def settle(self):
        for _ in range(2):
            self.engine.synchronize()
            report = self.tier.tick(self.step)
            self.step += 1
            self.pools.scribble_slots(self.mine(free_slots(self.cache)))
        return report

    def evict_all(self):
        for lane in range(self.lanes):
            self.pools.scribble_pages(self.mine(self.cache.evict(lane, PAGES)))

    def check(self):
        """Everything that can be found is whole, in every component and layer, on both sides."""
        self.cache.check_integrity()
        for tokens, place, device, slot in visible(self.cache):
            stamp = self.stamp(tokens, place)
            assert all(self.pools.on_device(own, stamp) for own in self.mine([device] if device is not None else []))
            assert all(self.pools.on_host(own, stamp) for own in self.mine([slot] if slot is not None else []))
        assert self.pools.gaps_are_untouched()

    def close(self):
        self.settle()
        self.tier.close()
        self.cache.check_integrity()


# --- All components, or none ---


@pytest.mark.parametrize("layout", named(LAYOUTS))
@pytest.mark.parametrize("engine", named(ENGINES))
@pytest.mark.parametrize(("segment_pages", "gap"), [(1, 0), (4, 0), (4, 3), (SLOTS, 0)])
def test_every_component_comes_back_to_other_pages_as_it_was(layout, engine, segment_pages, gap):
    """Every layout, segment length and engine that is accepted backs up and restores all components."""
    rank = Rank(layout, engine(), segment_pages=segment_pages, gap=gap)
    tokens = prompt(100, 6)
    before = list(rank.serve(tokens).new)
    rank.settle()
    rank.evict_all()
    # The pages that held them are somebody else's now.
    taken = rank.cache.allocate(PAGES)
    rank.cache.free([page for page in taken if page not in before])
    request = rank.start([*tokens, 7, 8])
    assert (request.lease.pages, len(request.new)) == (6, 1)
    assert not set(request.lease.page_ids()) & set(before)
    rank.forward(request)
    rank.insert(request)
    rank.settle()
    rank.check()
    assert rank.tier.counts.restore_bytes == 6 * layout.slot_bytes
    assert rank.tier.counts.backup_bytes == 7 * layout.slot_bytes
    rank.close()


@pytest.mark.parametrize("layout", named(WITH_DRAFT))
@pytest.mark.parametrize("engine", named(ENGINES))
@pytest.mark.parametrize("ran", range(4))
def test_pages_whose_draft_did_not_run_are_never_restored(layout, engine, ran):
    """After so many layers of the target. Another prompt, and the same one computed again, are restored."""
    rank = Rank(layout, engine())
    rank.serve(prompt(500, 2))
    half = rank.start(prompt(100, 4))
    rank.forward(half, layers=range(ran))
    rank.insert(half)
    rank.settle()
    rank.evict_all()
    assert rank.cache.match(prompt(100, 4)).pages == 0
    assert rank.cache.match(prompt(500, 2)).host_pages == 2
    rank.serve(prompt(100, 4))
    rank.settle()
    rank.evict_all()
    assert rank.cache.match(prompt(100, 4)).host_pages == 4
    rank.check()
    rank.close()


@pytest.mark.parametrize("layout", named(WITH_DRAFT))
@pytest.mark.parametrize("layer", range(4))
@pytest.mark.parametrize("engine", ["cpu", "manual"])
def test_pages_of_which_one_layer_did_not_land_are_a_miss_until_all_have(layout, layer, engine):
    """The layer carries some components of the page; the others have landed."""
    fails = lambda stream, sequence: (stream, sequence) == (BACKUP, layer + 1)  # noqa: E731
    rank = Rank(layout, CpuEngine(fails=fails) if engine == "cpu" else ManualEngine())
    rank.serve(prompt(100, 4))
    if engine == "manual":
        for _ in range(layer):
            rank.engine.land(BACKUP)
        rank.engine.fail(BACKUP, copies=1)
    rank.engine.synchronize()
    report = rank.tier.tick(0)
    assert [why for _, why in report.rolled_back] == ["copy_failed"]
    assert rank.cache.stats().host_cached_slots == 0
    # The pages are in the cache: they are copied once more, late and whole.
    rank.step = 1
    rank.settle()
    rank.evict_all()
    assert rank.cache.match(prompt(100, 4)).host_pages == 4
    rank.check()
    rank.close()


@pytest.mark.parametrize("layout", named(LAYOUTS))
def test_a_pool_without_one_of_the_components_or_with_another_one_is_refused(layout):
    """Half a page on the host would be a hit whose attention picks the wrong tokens."""
    rank = Rank(layout, ManualEngine())
    buffers = rank.pools.device.buffers
    for missing in layout.components:
        rest = {name: one for name, one in buffers.items() if name != missing.name}
        with pytest.raises(cpkv.ConfigError, match=f"{missing.name} has no buffers"):
            DevicePool(layout, rest)
        fewer = PageLayout(
            page_size=PAGE,
            target_layers=layout.target_layers,
            draft_layers=layout.draft_layers,
            components=tuple(one for one in layout.components if one is not missing),
        )
        with pytest.raises(cpkv.ConfigError, match=f"buffers '{missing.name}', which no component has"):
            DevicePool(fewer, buffers)
        host = HostPool(layout=fewer, slots=SLOTS, segment_pages=4, address=rank.pools.host.address)
        with pytest.raises(cpkv.ConfigError, match="device pool and host pool have different layouts"):
            HostTier(rank.cache, ManualEngine(), rank.pools.device, host)
    rank.close()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("engine", named(ENGINES))
def test_the_share_of_pages_with_a_stale_draft_stays_0(engine, seed):
    """2,100 rounds of hit, extend, evict and restore; some drafts do not run. Every page is read."""
    rank, random_ = Rank(small_layout(), engine()), random.Random(seed)
    read = stale = 0
    for round_ in range(350):
        tokens = prompt(100 * random_.randrange(3), random_.randint(1, 4)) + [random_.randrange(2)] * PAGE
        if rank.cache.evict_for(len(tokens) // PAGE) is None:  # copies read nearly everything
            rank.settle()
        request = rank.start(tokens)
        rank.tier.begin_forward([request.transaction], [request.lease])
        rank.tier.wait_for_all()
        for place, page in enumerate(request.lease.page_ids()):
            read += 1
            stale += not rank.pools.on_device(page, rank.stamp(tokens, place), [rank.layout.target_layers])
        draft_runs = random_.random() < 0.9
        for layer in range(rank.layout.layers - (not draft_runs)):
            rank.compute(request, [layer])
            rank.tier.layer_ended(layer)
        rank.tier.end_forward(draft_ran=draft_runs)
        if draft_runs:
            rank.insert(request)
        else:
            request.transaction.abort()
            rank.cache.free(request.new)
            request.lease.release()
        if random_.random() < 0.5:
            rank.settle()
        else:
            rank.tier.tick(rank.step)
            rank.step += 1
        rank.pools.scribble_pages(rank.cache.evict(0, random_.choice([0, 2, PAGES])))
        if round_ % 25 == 0:
            rank.check()
    assert (stale, read > 500, rank.tier.counts.restores > 30) == (0, True, True)
    rank.close()


# --- Whose page, which page ---


@pytest.mark.parametrize("layout", named({name: LAYOUTS[name] for name in ("fp8 packed", "odd rows")}))
@pytest.mark.parametrize("engine", named(ENGINES))
def test_each_rank_restores_its_own_stripe_and_touches_no_other(layout, engine):
    """8 pages over 4 lanes: 2 on each rank, and all of them are there, whatever their ids are now."""
    ranks = [Rank(layout, engine(), lanes=4, lane=lane) for lane in range(4)]
    tokens = prompt(100, 8)
    for rank in ranks:
        # The same page of a prompt is another physical page in each lane.
        held = rank.cache.allocate(lanes=[1, 2, 2, 3, 3, 3])
        before = list(rank.serve(tokens).new)
        rank.settle()
        written = [slot for slot in range(SLOTS) if _is_written(rank, slot)]
        assert len(written) == 2
        rank.evict_all()
        taken = rank.cache.allocate(lanes=[lane for lane in range(4) for _ in range(rank.cache.free_pages(lane))])
        rank.cache.free([page for page in taken if page not in before])
        request = rank.start(tokens)
        assert not set(request.lease.page_ids()) & set(before)
        rank.forward(request)
        rank.insert(request)
        rank.settle()
        assert len(rank.mine(page for _, _, page, _ in visible(rank.cache))) == 2
        rank.check()
        rank.cache.free([*held, *(page for page in taken if page in before)])
        rank.close()


def _is_written(rank, slot):
    return any((rank.pools.host_row(slot, row) != SCRIBBLE).any() for row in rank.layout.rows)


@pytest.mark.parametrize("lane", range(4))
@pytest.mark.parametrize("replicated", [("target_kv",), ("target_index",), ("draft_kv", "draft_index")])
def test_striped_and_replicated_state_never_share_an_address_rule(lane, replicated):
    layout = small_layout()
    components = tuple(
        Component(
            name=one.name,
            model=one.model,
            layers=one.layers,
            row_bytes=one.row_bytes,
            is_replicated=one.name in replicated,
        )
        for one in layout.components
    )
    mixed = PageLayout(page_size=PAGE, target_layers=3, draft_layers=1, components=components)
    with pytest.raises(cpkv.ConfigError, match="their pages cannot share slots") as refused:
        Rank(mixed, ManualEngine(), lanes=4, lane=lane)
    assert all(f"{name} is replicated on every rank" in str(refused.value) for name in replicated)
    Rank(mixed, ManualEngine()).close()


@pytest.mark.parametrize(("lanes", "lane"), [(1, None), (2, 0), (2, 1)])
@pytest.mark.parametrize("engine", named(ENGINES))
def test_after_1000_moves_every_id_is_the_place_that_holds_the_page(engine, lanes, lane):
    """Ids that copies are planned with are of the own lane, in the pool, and those of the right pages."""
    rank = Rank(small_layout(), engine(), lanes=lanes, lane=lane)
    plan, planned = rank.engine.plan, []

    def recorded(device, host, pages, slots, direction):
        planned.append((direction, pages.tolist(), slots.tolist()))
        return plan(device, host, pages, slots, direction)

    rank.engine.plan = recorded
    random_, moves, rounds = random.Random(7), 0, 0
    while moves < 1_000:
        tokens = prompt(100 * random_.randrange(5), random_.randint(1, 6))
        rank.serve(tokens)
        rank.settle()
        if random_.random() < 0.7:
            rank.evict_all()
        rounds += 1
        if rounds % 25 == 0:
            rank.check()
        # What is found leads to the same places as the plans of its copies.
        with rank.cache.lock(rank.cache.match(tokens)) as lease:
            assert all(0 <= page < PAGES * lanes for page in lease.page_ids())
            slots = rank.mine(lease.host_slots())
            assert all(rank.pools.on_host(slot, rank.stamp(tokens, place)) for place, slot in _own(rank, lease, slots))
        for _, pages, slots in planned:
            assert all(0 <= page < PAGES for page in pages)
            assert all(0 <= slot < SLOTS for slot in slots)
            assert len(set(pages)) == len(pages) == len(set(slots))
            moves += len(pages)
        planned.clear()
    assert rank.tier.counts.restores > 20
    rank.close()


def _own(rank, lease, own_slots):
    """The place in the prompt of each host slot of the own lane, and the slot."""
    slots = enumerate(lease.host_slots(), lease.device_pages)
    return zip([place for place, slot in slots if slot % rank.lanes == rank.lane], own_slots, strict=True)


# --- The order of streams ---


@pytest.mark.parametrize("layer", range(4))
def test_a_layer_that_is_not_computed_yet_is_not_copied(layer):
    """The thread is far ahead of the compute stream, which stands still in front of a layer."""
    compute, may_go_on = CpuStream("compute"), threading.Event()
    rank = Rank(small_layout(), CpuEngine(), compute_stream=lambda: compute)
    request = rank.start(prompt(100, 3))
    rank.tier.begin_forward([request.transaction], [request.lease])
    for now in range(rank.layout.layers):
        if now == layer:
            compute.run(may_go_on.wait)
        compute.run(lambda now=now: rank.compute(request, [now]))
        rank.tier.layer_ended(now)
    rank.tier.end_forward()
    rank.insert(request)
    rank.engine.wait(None, BACKUP, layer)
    assert rank.engine.acks.load(BACKUP) == layer
    assert rank.tier.tick(0).committed == []
    may_go_on.set()
    rank.step = 1
    rank.settle()
    rank.evict_all()
    assert rank.cache.match(request.tokens).host_pages == 3
    rank.check()
    rank.close()
    compute.close()


@pytest.mark.parametrize("landed", range(4))
@pytest.mark.parametrize("is_replayed", [False, True])
def test_a_layer_begins_when_its_own_load_has_landed_and_a_replay_after_the_last(landed, is_replayed):
    """So many layers are loaded: as many have run, none of a replayed graph, and what they read was right."""
    compute, gates, is_gated = CpuStream("compute"), [threading.Event() for _ in range(4)], []
    waiting = iter(gates)
    engine = CpuEngine(delay_s=lambda stream: float(not next(waiting).wait()) if is_gated and stream == RESTORE else 0)
    rank = Rank(small_layout(), engine, compute_stream=lambda: compute)
    rank.serve(prompt(100, 4))
    compute.synchronize()
    rank.settle()
    rank.evict_all()
    is_gated.append(True)
    request = rank.start(prompt(100, 4))
    seen, has_run = [], [threading.Event() for _ in range(4)]
    rank.tier.begin_forward([request.transaction], [request.lease])
    if is_replayed:
        rank.tier.wait_for_all()
    for layer in range(4):
        if not is_replayed:
            rank.tier.layer_begins(layer)
        compute.run(lambda layer=layer: (rank.read(request, layer), seen.append(layer), has_run[layer].set()))
    rank.tier.end_forward()
    for layer in range(landed):
        gates[layer].set()
        if is_replayed:
            engine.wait(None, RESTORE, layer + 1)
        else:
            assert has_run[layer].wait(10)
    assert seen == list(range(0 if is_replayed else landed))
    for gate in gates:
        gate.set()
    assert has_run[3].wait(10)
    compute.synchronize()
    assert seen == [0, 1, 2, 3]
    request.lease.release()
    rank.close()
    compute.close()


# --- What is still read is nobody else's ---


@pytest.mark.parametrize("order", list(itertools.permutations(["drop", "evict", "close"])), ids="-".join)
@pytest.mark.parametrize("name", ["cpu", "manual"])
def test_host_memory_goes_after_the_copies_in_whatever_order_things_end(order, name):
    """A restore is queued, then its request is dropped, its host copy forgotten and the tier closed."""
    layout, gate = small_layout(), threading.Event()
    gate.set()
    pools = Pools(layout, pages=PAGES, slots=SLOTS, segment_pages=4)
    cache = cpkv.CacheManager(
        page_size=PAGE, key="pair", device_pages=PAGES, host_slots=SLOTS, segment_pages=4, copies="tracked", draft=True
    )
    tier = open_tier(cache, layout, pools.device.buffers, engine=name)
    if name == "cpu":
        tier.engine._delay_s = lambda _: float(not gate.wait())  # noqa: SLF001 - opened by its name
    mapped, land = [], getattr(tier.engine, "land", None)
    is_mapped = lambda: f"{tier.host.address:08x}-" in Path("/proc/self/maps").read_text()  # noqa: E731
    tokens = prompt(100, 6)
    lease = cache.lock(cache.match(tokens))
    pages = cache.allocate(6)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    tier.begin_forward([transaction], [lease])
    for place, page in enumerate(pages):
        pools.compute(page, place)
    tier.end_forward(reason="a test")
    cache.insert(tokens, pages, lease, transaction)
    lease.release()
    tier.engine.synchronize()
    assert tier.tick(0).committed == [transaction.id]
    pools.scribble_pages(cache.evict(0, PAGES))
    if name == "manual":
        tier.engine.land = lambda *where, **how: (mapped.append(is_mapped()), land(*where, **how))[1]
    gate.clear()
    lease = cache.lock(cache.match(tokens))
    restored = cache.allocate(6)
    tier.load(cache.restore(lease, restored).operations)
    closer = threading.Thread(target=tier.close)
    ends = {"drop": lease.release, "evict": cache.flush, "close": closer.start}
    for what in order:
        ends[what]()
        if name == "cpu":
            assert is_mapped(), what
    if name == "cpu":
        closer.join(0.02)
        assert closer.is_alive()
        assert is_mapped()
    gate.set()
    closer.join(10)
    assert not closer.is_alive()
    assert not is_mapped()
    assert all(mapped)
    assert all(pools.on_device(page, place) for place, page in enumerate(restored))
    cache.check_integrity()


ALLOCATIONS = {
    "allocate": lambda cache, count: cache.allocate(count),
    "lanes": lambda cache, count: cache.allocate(lanes=[0] * count),
    "evict for": lambda cache, count: None if cache.evict_for(count) is None else cache.allocate(count),
    "evict": lambda cache, count: (cache.evict(0, count), cache.allocate(count))[1],
}


@pytest.mark.parametrize("allocate", named(ALLOCATIONS))
@pytest.mark.parametrize("layer", range(5))
@pytest.mark.parametrize("name", ["cpu", "manual"])
def test_pages_that_a_copy_reads_are_nobody_elses_after_a_retraction(allocate, layer, name):
    """Retracted after so many layers; as many pages as there are go to another; then it is back."""
    gate = threading.Event()
    rank = Rank(
        small_layout(), CpuEngine(delay_s=lambda _: float(not gate.wait())) if name == "cpu" else ManualEngine()
    )
    request = rank.start(prompt(100, 6))
    slots = list(request.transaction.plan()[1])
    rank.tier.begin_forward([request.transaction], [request.lease])
    for now in range(layer):
        rank.compute(request, [now])
        rank.tier.layer_ended(now)
    request.transaction.abort("retracted")
    rank.cache.free(request.new)
    request.lease.release()
    rank.tier.end_forward(target_ran=False, draft_ran=False)
    rank.tier.tick(0)
    reads = bool(layer)
    assert allocate(rank.cache, PAGES - 5 if reads else PAGES + 1) is None
    given = list(allocate(rank.cache, PAGES - 6 if reads else PAGES))
    assert reads == (not set(given) & set(request.new))
    rank.pools.scribble_pages(given)
    rank.cache.free(given)
    again = rank.start(prompt(100, 6))
    assert again.lease.pages == 0
    assert reads == (not set(slots) & set(again.transaction.plan()[1]))
    gate.set()
    rank.step = 1
    rank.forward(again)
    rank.insert(again)
    rank.settle()
    rank.check()
    rank.evict_all()
    assert rank.cache.match(again.tokens).host_pages == 6
    assert rank.cache.stats().device_fenced_pages == 0
    rank.close()


@pytest.mark.parametrize("pages", [1, 3, SLOTS])
@pytest.mark.parametrize("name", ["cpu", "manual"])
def test_slots_that_a_restore_reads_are_nobody_elses_after_their_eviction(name, pages):
    """The prompt is forgotten on the host while it is loaded, and the slots are wanted by others."""
    gate = threading.Event()
    gate.set()
    rank = Rank(
        small_layout(), CpuEngine(delay_s=lambda _: float(not gate.wait())) if name == "cpu" else ManualEngine()
    )
    tokens = prompt(100, pages)
    rank.serve(tokens)
    rank.settle()
    rank.evict_all()
    gate.clear()
    lease = rank.cache.lock(rank.cache.match(tokens))
    slots, ids = list(lease.host_slots()), rank.cache.allocate(pages)
    rank.tier.load(rank.cache.restore(lease, ids).operations)
    lease.release()
    rank.cache.flush()
    rank.tier.tick(rank.step)
    rank.step += 1
    other = rank.cache.lock(rank.cache.match(prompt(500, 1)))
    new = rank.cache.allocate(1)
    (transaction,) = rank.cache.reserve([(prompt(500, 1), new or [], other)]) if new else (None,)
    if transaction is not None:
        assert not set(transaction.plan()[1]) & set(slots)
        transaction.abort()
        rank.pools.scribble_slots(slot for slot in range(SLOTS) if slot not in slots)
    other.release()
    gate.set()
    rank.engine.synchronize()
    assert all(rank.pools.on_device(page, rank.stamp(tokens, place)) for place, page in enumerate(ids))
    rank.close()
