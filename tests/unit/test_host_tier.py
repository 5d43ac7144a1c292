"""What the drivers promise, one thing at a time, with copies that land when the test says so."""

import logging

import numpy as np
import pytest

import cpkv
from cpkv.device import BACKUP, LATE, RESTORE, CpuEngine, ManualEngine
from cpkv.device.cuda import CudaEngine
from cpkv.drivers import BackupDriver, HostTier, LayerHooks, Share
from cpkv.drivers.counts import RateLimit
from cpkv.errors import CopyError
from cpkv.layout import Buffers, Component, DevicePool, HostPool, PageLayout
from fake_cuda import ILLEGAL_ADDRESS, FakeDriver
from pools import SCRIBBLE, Pools, small_layout

COMPUTE = 7
"""The stream of the forwards, where the engine takes any name for it."""
PAGE = 2
LAYERS = 4
TARGET_LAYERS = 3


def prompt(first, pages):
    """Tokens of so many whole pages under pair keys."""
    return [first + place for place in range(pages * PAGE + 1)]


class World:
    """A rank whose requests go through a forward by hand."""

    def __init__(self, *, engine=None, layout=None, slots=16, pages=16, **settings):
        self.layout = layout or small_layout(page_size=PAGE)
        self.cache = cpkv.CacheManager(
            **{
                "page_size": PAGE,
                "key": "pair",
                "device_pages": pages,
                "host_slots": slots,
                "segment_pages": 4,
                "copies": "tracked",
                "draft": bool(self.layout.draft_layers),
            }
            | settings
        )
        lanes = self.cache.lanes
        self.pools = Pools(self.layout, pages=pages // lanes, slots=slots // lanes, segment_pages=4)
        self.engine = engine or ManualEngine()
        self.tier = HostTier(self.cache, self.engine, self.pools.device, self.pools.host, compute_stream=self.where)
        self.has_stream = True
        self.restores = []
        self.step = 0

    def where(self):
        if not self.has_stream:
            raise RuntimeError("torch has gone")
        return COMPUTE if isinstance(self.engine, ManualEngine) else None

    def start(self, tokens, *, loads=True):
        """Take pages and reserve slots; nothing is computed yet. What is not loaded now is left to `restores`."""
        lease = self.cache.lock(self.cache.match(tokens))
        count = (len(tokens) - 1) // PAGE - lease.device_pages
        pages = self.cache.allocate(count)
        restore = self.cache.restore(lease, pages[: lease.host_pages])
        if loads:
            self.tier.load(restore.operations)
        else:
            self.restores += restore.operations
        new = pages[len(pages) - (len(tokens) - 1) // PAGE + lease.pages :] if len(pages) else pages
        (transaction,) = self.cache.reserve([(tokens, new, lease)])
        return tokens, lease, new, transaction

    def compute(self, request, layers=range(LAYERS), *, reports=True):
        tokens, lease, new, _ = request
        for layer in layers:
            self.tier.layer_begins(layer)
            for place, page in enumerate(new, lease.pages):
                self.pools.compute(page // self.cache.lanes, (tokens[0], place), [layer])
            if reports:
                self.tier.layer_ended(layer)

    def insert(self, request):
        tokens, lease, new, transaction = request
        self.cache.insert(tokens, new, lease, transaction)
        lease.release()

    def serve(self, tokens):
        request = self.start(tokens)
        self.tier.begin_forward([request[3]], [request[1]])
        self.compute(request)
        self.tier.end_forward()
        self.insert(request)
        return request

    def tick(self):
        report = self.tier.tick(self.step)
        self.step += 1
        return report

    def settle(self):
        self.engine.land_all()
        return self.tick()

    def slots_of(self, tokens):
        with self.cache.lock(self.cache.match(tokens)) as lease:
            return list(lease.host_slots())


@pytest.fixture
def world():
    world = World()
    yield world
    world.tier.close()
    world.cache.check_integrity()


# --- During the forward ---


def test_each_layer_leaves_when_it_ends(world):
    """The target's layers carry the target's components, the draft's carry the draft's."""
    request = world.start(prompt(100, 3))
    world.tier.begin_forward([request[3]])
    for layer in range(LAYERS):
        world.compute(request, [layer])
        (submission,) = world.engine.queues[BACKUP][layer:]
        assert (submission.first_layer, submission.end_layer) == (layer, layer + 1)
        names = {row.component.name for row in world.layout.rows_of(layer)}
        assert all(name.startswith("target" if layer < TARGET_LAYERS else "draft") for name in names)
    world.tier.end_forward()
    world.insert(request)
    assert world.tier.counts.hooked_forwards == 1
    assert world.tier.counts.hooked_layers == LAYERS
    assert world.tier.counts.all_layer_forwards.total() == 0
    assert world.tier.counts.backup_bytes == 3 * world.layout.slot_bytes


def test_a_page_is_visible_after_the_last_layer_of_target_and_draft(world):
    tokens = prompt(100, 3)
    request = world.serve(tokens)
    for layer in range(LAYERS):
        assert world.tick().committed == []
        assert world.cache.stats().host_cached_slots == 0
        assert world.engine.land(BACKUP), layer
    assert world.tick().committed == [request[3].id]
    world.pools.scribble_pages(world.cache.evict(0, 16))
    slots = world.slots_of(tokens)
    assert [world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots)] == [True] * 3


def submitted(world):
    return [(one.first_layer, one.end_layer) for one in world.engine.queues[BACKUP]]


def test_a_layer_that_is_reached_lets_those_before_it_leave(world):
    """As between the pieces of a graph, where beginnings are seen and ends are not."""
    request = world.start(prompt(100, 3))
    world.tier.begin_forward([request[3]])
    for layer in range(LAYERS):
        world.tier.layer_reached(layer)
        assert submitted(world) == [(before, before + 1) for before in range(layer)]
        world.compute(request, [layer], reports=False)
    world.tier.layer_reached(LAYERS)
    world.tier.end_forward()
    world.insert(request)
    assert world.settle().committed == [request[3].id]
    world.cache.evict(0, 16)
    slots = world.slots_of(prompt(100, 3))
    assert [world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots)] == [True] * 3
    assert world.tier.counts.hooked_layers == LAYERS
    assert (world.tier.counts.hooked_forwards, world.tier.counts.repeated_layers) == (1, 0)


def test_layers_that_were_passed_over_leave_together(world):
    request = world.start(prompt(100, 3))
    world.tier.begin_forward([request[3]])
    world.compute(request, [0])
    world.compute(request, range(1, LAYERS), reports=False)
    world.tier.layer_reached(1)
    assert submitted(world) == [(0, 1)], "its end was told"
    world.tier.layer_reached(LAYERS)
    assert submitted(world) == [(0, 1), (1, LAYERS)]
    world.tier.end_forward()
    world.insert(request)
    assert world.settle().committed == [request[3].id]


def test_layers_that_are_reached_again_are_copied_again(world):
    """A batch that goes through the layers in two pieces."""
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    for layer in range(LAYERS):
        world.tier.layer_reached(layer)  # of the first half: these pages hold nothing yet
    world.engine.land_all()
    for layer in range(LAYERS):
        world.tier.layer_reached(layer)
        world.compute(request, [layer], reports=False)
    world.tier.layer_reached(LAYERS)
    world.tier.end_forward()
    world.insert(request)
    world.settle()
    assert world.tier.counts.repeated_layers == LAYERS - 1
    assert not world.tier.counts.all_layer_forwards
    world.cache.evict(0, 16)
    slots = world.slots_of(prompt(100, 2))
    assert all(world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots))


def test_a_layer_that_there_is_not_cannot_be_reached(world):
    request = world.start(prompt(100, 1))
    world.tier.layer_reached(LAYERS + 5)  # nothing is under way
    world.tier.begin_forward([request[3]])
    for wrong in (-1, LAYERS + 1):
        with pytest.raises(cpkv.UsageError, match=f"layer is {wrong}, want 0 to {LAYERS}"):
            world.tier.layer_reached(wrong)
    world.compute(request)
    world.tier.end_forward()
    world.insert(request)


# --- A forward that begins before anything is reserved for it ---


class Reserving:
    """Says what is reserved for a request once `is_known`."""

    def __init__(self, request):
        self.request = request
        self.is_known = False
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return [self.request[3]] if self.is_known else None


@pytest.mark.parametrize("known_at", range(LAYERS))
@pytest.mark.parametrize("sees", ["ends", "beginnings"])
def test_layers_that_have_ended_leave_as_soon_as_something_is_reserved(world, known_at, sees):
    request = world.start(prompt(100, 3))
    reserving = Reserving(request)
    world.tier.begin_forward(reserving)
    for layer in range(LAYERS):
        if sees == "beginnings":
            world.tier.layer_reached(layer)
        world.compute(request, [layer], reports=False)
        reserving.is_known = layer == known_at
        if sees == "ends":
            world.tier.layer_ended(layer)
            assert len(submitted(world)) == (0 if layer < known_at else layer + 1)
    if sees == "beginnings":
        reserving.is_known = True
        world.tier.layer_reached(LAYERS)
    assert submitted(world) == [(layer, layer + 1) for layer in range(LAYERS)]
    world.tier.end_forward()
    world.insert(request)
    assert world.settle().committed == [request[3].id]
    world.cache.evict(0, 16)
    slots = world.slots_of(prompt(100, 3))
    assert [world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots)] == [True] * 3
    counts = world.tier.counts
    assert (counts.hooked_layers, counts.hooked_forwards, counts.repeated_layers) == (LAYERS, 1, 0)
    assert counts.backup_bytes == 3 * world.layout.slot_bytes


@pytest.mark.parametrize("hooked", [LAYERS, 2, 0])
def test_what_is_reserved_after_the_end_is_copied_too(world, hooked):
    request = world.start(prompt(100, 3))
    world.tier.begin_forward(lambda: None)
    world.compute(request, range(hooked))
    world.compute(request, range(hooked, LAYERS), reports=False)
    world.tier.end_forward(reason="none was told")
    assert submitted(world) == []
    with pytest.raises(cpkv.UsageError, match="a forward waits for what is reserved for it: tell it before the next"):
        world.tier.begin_forward([])
    with pytest.raises(cpkv.UsageError, match="a forward waits for what is reserved for it: tell it before device"):
        world.tier.pause()
    world.tier.forward_reserved([request[3]])
    world.insert(request)
    assert world.settle().committed == [request[3].id]
    assert world.tier.counts.all_layer_forwards == ({} if hooked == LAYERS else {"none was told": 1})
    world.cache.evict(0, 16)
    slots = world.slots_of(prompt(100, 3))
    assert [world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots)] == [True] * 3
    world.tier.begin_forward([])
    world.tier.end_forward()


def test_a_layer_that_was_written_again_before_anything_was_reserved(world):
    request = world.start(prompt(100, 2))
    world.tier.begin_forward(lambda: None)
    for _ in range(2):
        for layer in range(LAYERS):
            world.tier.layer_reached(layer)
    world.compute(request, reports=False)
    world.tier.layer_ended(LAYERS - 1)
    world.tier.forward_reserved([request[3]])
    world.tier.end_forward()
    world.insert(request)
    assert world.settle().committed == [request[3].id]
    assert not world.tier.counts.all_layer_forwards
    assert world.tier.counts.repeated_layers == LAYERS - 1


def test_nothing_to_copy_is_told_late(world):
    before = world.tier.counts.as_dict()
    world.tier.begin_forward(lambda: None)
    for layer in range(LAYERS):
        world.tier.layer_ended(layer)
    world.tier.forward_reserved([])
    with pytest.raises(cpkv.UsageError, match="no forward waits for what is reserved"):
        world.tier.forward_reserved([])
    world.tier.end_forward()
    world.tier.begin_forward([])
    with pytest.raises(cpkv.UsageError, match="no forward waits for what is reserved"):
        world.tier.forward_reserved([])
    world.tier.end_forward()
    assert world.tier.counts.as_dict() == before


def test_a_forward_that_did_not_run_is_rolled_back_when_it_is_reserved(world):
    request = world.start(prompt(100, 2))
    world.tier.begin_forward(lambda: None)
    world.tier.layer_ended(0)
    world.tier.end_forward(target_ran=False)
    world.tier.forward_reserved([request[3]])
    world.insert(request)
    assert world.settle().rolled_back == [(request[3].id, "target_missing")]


@pytest.mark.parametrize("ends", [False, True])
def test_layers_that_cannot_be_marked_are_not_taken_for_copied(world, ends, monkeypatch):
    """Of a driver that refuses an event: the forward goes on, its backup does not."""

    def refuse(_):
        raise cpkv.CopyError("no event")

    request = world.start(prompt(100, 2))
    world.tier.begin_forward(lambda: None)
    world.tier.layer_ended(0)
    monkeypatch.setattr(world.engine, "mark", refuse)
    if ends:
        with pytest.raises(cpkv.CopyError, match="no event"):
            world.tier.end_forward()
    else:
        world.tier.layer_ended(1)
    world.tier.forward_reserved([request[3]])
    if not ends:
        world.tier.end_forward()
    world.insert(request)
    world.engine.land_all()
    [(identity, _)] = world.tick().rolled_back
    assert identity == request[3].id


def test_a_tier_that_is_paused_meanwhile_rolls_back_what_is_reserved(world):
    request = world.start(prompt(100, 2))
    world.tier.begin_forward(lambda: None)
    world.compute(request)
    world.engine.pause()
    with pytest.raises(cpkv.UsageError, match="the copy engine is paused"):
        world.tier.forward_reserved([request[3]])
    world.engine.resume()
    world.tier.end_forward()
    world.insert(request)
    assert [identity for identity, _ in world.settle().rolled_back] == [request[3].id]


def test_a_tier_that_closes_waits_for_no_reservation(world):
    world.tier.begin_forward(lambda: None)
    world.tier.layer_ended(0)
    world.tier.end_forward()
    world.tier.close()


def test_all_requests_of_a_forward_are_one_submission_a_layer(world):
    requests = [world.start(prompt(first, 2)) for first in (100, 200, 300)]
    world.tier.begin_forward([request[3] for request in requests])
    for layer in range(LAYERS):
        for request in requests:
            world.compute(request, [layer], reports=False)
        world.tier.layer_ended(layer)
    world.tier.end_forward()
    assert len(world.engine.queues[BACKUP]) == LAYERS
    for request in requests:
        world.insert(request)
    assert sorted(world.settle().committed) == sorted(request[3].id for request in requests)


def test_outside_a_forward_a_layer_end_does_nothing(world):
    """Warm-up, idle batches and the draft's decode steps have the same hooks."""
    world.tier.layer_begins(0)
    world.tier.layer_ended(0)
    assert world.engine.queues[BACKUP] == []
    world.serve(prompt(100, 1))
    count = len(world.engine.queues[BACKUP])
    world.tier.layer_ended(0)
    assert len(world.engine.queues[BACKUP]) == count


def test_a_forward_with_nothing_to_copy(world):
    """A repeated prompt, a batch without pages: zero submissions, and nothing to warn about."""
    tokens = prompt(100, 2)
    world.serve(tokens)
    world.settle()
    before = world.tier.counts.as_dict()
    lease = world.cache.lock(world.cache.match(tokens))
    (transaction,) = world.cache.reserve([(tokens, [], lease)])
    assert transaction.status == "nothing"
    world.tier.begin_forward([transaction], [lease])
    for layer in range(LAYERS):
        world.tier.layer_ended(layer)
    world.tier.end_forward()
    lease.release()
    world.tier.begin_forward([])
    world.tier.end_forward()
    assert world.tier.counts.as_dict() == before


@pytest.mark.parametrize("owners", [(0, 2), (1,), (0, 1)])
def test_layers_that_own_nothing_are_no_submission(owners):
    """Some of 3 layers have neither KV nor an index of their own: the first, the last, one between."""
    kv = Component(name="target_kv", model="target", layers=owners, row_bytes=8)
    layout = PageLayout(page_size=PAGE, target_layers=3, draft_layers=0, components=(kv,))
    world = World(layout=layout)
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.compute(request, range(3))
    world.tier.end_forward()
    assert [one.first_layer for one in world.engine.queues[BACKUP]] == list(owners)
    world.insert(request)
    assert world.settle().committed == [request[3].id]
    assert world.tier.counts.hooked_forwards == 1
    world.tier.close()


def test_a_draft_that_owns_nothing_need_not_run():
    """What is left of the target goes to the host all the same."""
    kv = Component(name="target_kv", model="target", layers=(0, 1, 2), row_bytes=8)
    layout = PageLayout(page_size=PAGE, target_layers=3, draft_layers=1, components=(kv,))
    world = World(layout=layout, draft=False)
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.compute(request, [0])
    world.compute(request, [1, 2], reports=False)
    world.tier.end_forward(draft_ran=False)
    world.insert(request)
    assert world.settle().committed == [request[3].id]
    world.cache.evict(0, 16)
    slots = world.slots_of(prompt(100, 2))
    assert [world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots)] == [True] * 2
    world.tier.close()


def test_a_layer_that_is_written_in_two_pieces_is_copied_as_it_is_in_the_end(world):
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.tier.layer_ended(0)  # half of the batch: these pages hold nothing yet
    world.engine.land_all()
    world.compute(request)
    world.tier.end_forward()
    world.insert(request)
    world.settle()
    assert world.tier.counts.repeated_layers == 1
    world.cache.evict(0, 16)
    slots = world.slots_of(prompt(100, 2))
    assert all(world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots))


def test_what_is_given_up_in_mid_forward_writes_no_slot_any_more(world):
    """Its slots are another request's by the next layer."""
    given_up, stays = world.start(prompt(100, 3)), world.start(prompt(200, 3))
    world.tier.begin_forward([given_up[3], stays[3]])
    world.compute(given_up, [0], reports=False)
    world.compute(stays, [0])
    taken = [int(slot) for slot in given_up[3].plan()[1]]
    given_up[3].abort()
    world.engine.land_all()
    world.tick()
    other = world.start(prompt(300, 3))
    assert sorted(other[3].plan()[1]) == sorted(taken)
    world.pools.scribble_slots(taken)
    world.compute(given_up, range(1, LAYERS), reports=False)
    world.compute(stays, range(1, LAYERS))
    world.tier.end_forward()
    world.engine.land_all()
    assert all((world.pools.host_row(slot, row) == SCRIBBLE).all() for slot in taken for row in world.layout.rows)
    world.insert(stays)
    assert world.tick().committed == [stays[3].id]
    given_up[1].release()
    other[3].abort()
    other[1].release()


def refuse_a_plan(world, error):
    plan = world.engine.plan

    def refused(*_):
        world.engine.plan = plan
        raise error

    world.engine.plan = refused


def test_a_plan_that_cannot_be_made_in_mid_forward_leaves_the_forward_as_it_was(world):
    given_up, stays = world.start(prompt(100, 3)), world.start(prompt(200, 3))
    world.tier.begin_forward([given_up[3], stays[3]])
    world.compute(stays, [0])
    given_up[3].abort()
    world.settle()
    refuse_a_plan(world, cpkv.PageError("no plan"))
    with pytest.raises(cpkv.PageError, match="no plan"):
        world.compute(stays, [1])
    world.compute(stays, range(2, LAYERS))
    world.tier.end_forward()
    world.insert(stays)
    assert world.settle().committed == [stays[3].id]
    world.cache.evict(0, 16)
    slots = world.slots_of(prompt(200, 3))
    assert [world.pools.on_host(slot, (200, place)) for place, slot in enumerate(slots)] == [True] * 3
    given_up[1].release()


@pytest.mark.parametrize("ends", [False, True])
def test_a_plan_that_cannot_be_made_for_what_is_told_late_is_told_as_it_is(world, ends):
    request = world.start(prompt(100, 2))
    reserving = Reserving(request)
    world.tier.begin_forward(reserving)
    world.compute(request)
    refuse_a_plan(world, cpkv.PageError("no plan"))
    if ends:
        reserving.is_known = True
        with pytest.raises(cpkv.PageError, match="no plan"):
            world.tier.end_forward()
    else:
        world.tier.end_forward()
        with pytest.raises(cpkv.PageError, match="no plan"):
            world.tier.forward_reserved([request[3]])
    world.insert(request)
    assert [identity for identity, _ in world.settle().rolled_back] == [request[3].id]


def test_a_forward_that_cannot_begin_is_not_under_way(world):
    request = world.start(prompt(100, 2))
    refuse_a_plan(world, cpkv.PageError("no plan"))
    with pytest.raises(cpkv.PageError, match="no plan"):
        world.tier.begin_forward([request[3]])
    world.tier.layer_ended(0)
    gone = world.cache.lock(world.cache.match(prompt(300, 1)))
    gone.release()
    with pytest.raises(cpkv.LeaseError):
        world.tier.begin_forward([request[3]], [gone])
    world.tier.begin_forward([request[3]], [request[1]])
    world.compute(request)
    world.tier.end_forward()
    world.insert(request)
    assert world.settle().committed == [request[3].id]


def test_a_graph_capture_is_refused_and_nothing_is_lost(world):
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.engine.capture(begin=True)
    with pytest.raises(cpkv.UsageError, match="is being captured into a graph"):
        world.tier.layer_ended(0)
    assert world.engine.queues[BACKUP] == []
    assert world.tier.counts.hooked_layers == 0
    world.engine.capture(begin=False)
    world.compute(request)
    world.tier.end_forward()
    world.insert(request)
    assert world.settle().committed == [request[3].id]


@pytest.mark.parametrize("ran", [{}, {"target_ran": False}])
def test_what_was_refused_in_a_capture_drains(world, ran):
    """Its transactions were told a number that no copy stands for."""
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.engine.capture(begin=True)
    with pytest.raises(cpkv.UsageError):
        world.tier.layer_ended(0)
    world.engine.capture(begin=False)
    request[3].abort()
    world.tier.end_forward(**ran)
    request[1].release()
    world.settle()
    assert not world.cache.has_work()
    assert world.cache.stats().host_draining_slots == 0


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError], ids=["capture", "interrupt", "stream"])
def test_a_forward_whose_rest_was_not_submitted_rolls_back(world, error):
    """The number that it was told is that of the next forward's first layer: no proof of anything."""
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.compute(request, [0])
    world.compute(request, range(1, LAYERS), reports=False)
    submit = world.engine.submit

    def interrupted(*_, **__):
        world.engine.submit = submit
        raise error

    if error is None:
        world.engine.capture(begin=True)
    elif error is RuntimeError:
        world.has_stream = False
    else:
        world.engine.submit = interrupted
    with pytest.raises(error or cpkv.UsageError):
        world.tier.end_forward()
    world.has_stream = True
    world.engine.capture(begin=False)
    world.insert(request)
    other = world.serve(prompt(200, 2))
    world.engine.land_all()
    report = world.tick()
    assert report.committed == [other[3].id]
    assert report.rolled_back == [(request[3].id, "copy_failed")]
    world.settle()


def test_a_restore_in_a_capture_fails_and_drains(world):
    tokens = prompt(100, 3)
    evicted(world, tokens)
    lease = world.cache.lock(world.cache.match(tokens))
    restore = world.cache.restore(lease, world.cache.allocate(3))
    world.engine.capture(begin=True)
    with pytest.raises(cpkv.UsageError, match="captured into a graph"):
        world.tier.load(restore.operations)
    world.settle()
    world.tick()
    assert lease.lost
    lease.release()
    world.settle()
    assert not world.cache.has_work()
    assert world.cache.stats().host_cached_slots == 3


@pytest.mark.parametrize("layer", range(LAYERS))
def test_a_restore_that_is_interrupted_between_layers_fails(world, layer):
    """Else it would have landed with the layers that were submitted."""
    evicted(world, prompt(100, 3))
    lease = world.cache.lock(world.cache.match(prompt(100, 3)))
    restore = world.cache.restore(lease, world.cache.allocate(3))
    submit, calls = world.engine.submit, iter(range(LAYERS))

    def interrupted(*arguments, **keywords):
        if next(calls, None) == layer:
            raise KeyboardInterrupt
        submit(*arguments, **keywords)

    world.engine.submit = interrupted
    with pytest.raises(KeyboardInterrupt):
        world.tier.load(restore.operations)
    assert world.settle().restored == []
    world.tick()
    assert lease.lost
    lease.release()
    world.settle()
    assert not world.cache.has_work()


def freed(*_):
    raise cpkv.ConfigError("has moved or was freed")


@pytest.mark.parametrize("how", ["plan", "moved", "stream", "paused", "closed"])
def test_a_restore_that_cannot_be_submitted_fails(world, monkeypatch, how):
    evicted(world, prompt(100, 3))
    lease = world.cache.lock(world.cache.match(prompt(100, 3)))
    restore = world.cache.restore(lease, world.cache.allocate(3))
    with monkeypatch.context() as patch:
        if how == "plan":
            refuse_a_plan(world, CopyError("no plan"))
        elif how == "stream":
            world.has_stream = False
        elif how == "moved":
            patch.setattr(DevicePool, "check_alive", freed)
        elif how == "paused":
            world.tier.pause()
        else:
            world.tier.close()
        said = "no plan|has moved or was freed|torch has gone|paused or closed"
        with pytest.raises(RuntimeError if how == "stream" else cpkv.CpkvError, match=said):
            world.tier.load(restore.operations)
    if how == "paused":
        world.tier.resume()
    assert world.engine.queues[RESTORE] == []
    world.settle()
    world.tick()
    assert lease.lost
    lease.release()
    world.settle()
    assert not world.cache.has_work()


# --- The other paths ---


def test_what_no_layer_end_has_copied_goes_all_at_once_with_its_reason(world, caplog):
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.compute(request, [0])
    world.compute(request, range(1, LAYERS), reports=False)
    with caplog.at_level(logging.WARNING, "cpkv"):
        world.tier.end_forward(reason="graph replay")
    assert [(one.first_layer, one.end_layer) for one in world.engine.queues[BACKUP]] == [(0, 1), (1, LAYERS)]
    assert world.tier.counts.all_layer_forwards == {"graph replay": 1}
    assert world.tier.counts.as_dict()["all_layer_forwards_graph replay"] == 1
    assert world.tier.counts.hooked_forwards == 0
    assert "layers from 1 on were not submitted by hooks" in caplog.text
    assert "graph replay" in caplog.text
    world.insert(request)
    assert world.settle().committed == [request[3].id]


def test_warnings_do_not_flood_and_say_what_they_have_kept_back(caplog):
    now = [0.0]
    limit = RateLimit(60, clock=lambda: now[0])
    for now[0] in (0.0, 1.0, 59.0, 60.0, 61.0):
        limit.warn("graph replay", "once")
    limit.warn("other", "another")
    assert caplog.messages == ["once", "once (2 more since the last warning)", "another"]


@pytest.mark.parametrize("ran", [{"target_ran": False}, {"draft_ran": False}])
def test_a_forward_that_did_not_run_is_not_copied_any_more(world, ran):
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    world.compute(request, [0])
    world.tier.end_forward(**ran)
    assert len(world.engine.queues[BACKUP]) == 1
    assert world.tier.counts.all_layer_forwards.total() == 0
    report = world.settle()
    assert report.rolled_back == [(request[3].id, "draft_missing" if "draft_ran" in ran else "target_missing")]
    request[3].abort()
    request[1].release()


def test_late_backups_are_one_submission_and_counted_apart(world):
    """Pages that came without a transaction, as in decode."""
    tokens = prompt(100, 3)
    lease = world.cache.lock(world.cache.match(tokens))
    pages = world.cache.allocate(3)
    for place, page in enumerate(pages):
        world.pools.compute(page, (100, place))
    world.cache.insert(tokens, pages, lease)
    lease.release()
    (late,) = world.tick().started
    assert [(one.first_layer, one.end_layer) for one in world.engine.queues[LATE]] == [(0, LAYERS)]
    assert world.settle().committed == [late.id]
    counts = world.tier.counts
    assert (counts.late_operations, counts.late_bytes, counts.backup_bytes) == (1, 3 * world.layout.slot_bytes, 0)
    assert counts.all_layer_forwards.total() == 0
    world.cache.evict(0, 16)
    assert all(world.pools.on_host(slot, (100, place)) for place, slot in enumerate(world.slots_of(tokens)))


def inserted_late(world):
    lease = world.cache.lock(world.cache.match(prompt(100, 3)))
    pages = world.cache.allocate(3)
    for place, page in enumerate(pages):
        world.pools.compute(page, (100, place))
    world.cache.insert(prompt(100, 3), pages, lease)
    lease.release()


@pytest.mark.parametrize("how", ["capture", "plan", "moved", "stream"])
def test_late_backups_that_cannot_be_submitted_fail_and_the_tick_is_reported(world, monkeypatch, how):
    inserted_late(world)
    with monkeypatch.context() as patch:
        if how == "capture":
            world.engine.capture(begin=True)
        elif how == "plan":
            refuse_a_plan(world, CopyError("no plan"))
        elif how == "stream":
            world.has_stream = False
        else:
            patch.setattr(DevicePool, "check_alive", freed)
        (late,) = world.tick().started
    world.engine.capture(begin=False)
    world.has_stream = True
    assert world.tier.counts.failed_submissions == 1
    assert (late.id, "copy_failed") in world.settle().rolled_back
    for _ in range(3):
        world.settle()
    assert not world.cache.has_work()


# --- The way back ---


def evicted(world, tokens):
    world.serve(tokens)
    world.settle()
    world.pools.scribble_pages(world.cache.evict(0, 16))


def test_a_layer_waits_for_itself_and_not_for_those_behind(world):
    tokens = prompt(100, 3)
    evicted(world, tokens)
    request = world.start([*tokens, 7, 8])
    world.tier.begin_forward([request[3]], [request[1]])
    assert [one.first_layer for one in world.engine.queues[RESTORE]] == list(range(LAYERS))
    for layer in range(LAYERS):
        assert not request[1].layer_has_landed(layer, world.engine.acks)
        world.tier.layer_begins(layer)
        assert world.engine.acks.load(RESTORE) == layer + 1
        assert all(
            world.pools.on_device(page, (100, place), [layer]) for place, page in enumerate(request[1].page_ids()[:3])
        )
    world.tier.layer_begins(0)
    assert world.engine.waits == [(RESTORE, layer + 1) for layer in range(LAYERS)]
    world.compute(request)
    world.tier.end_forward()
    world.insert(request)
    world.settle()
    assert world.tier.counts.restore_bytes == 3 * world.layout.slot_bytes


BATCH = (100, 200, 300)


def batch_on_the_host():
    """Three prompts of three pages, all of which have to come back."""
    world = World(pages=32, slots=32)
    for first in BATCH:
        world.serve(prompt(first, 3))
        world.settle()
    world.pools.scribble_pages(world.cache.evict(0, 32))
    batch = [world.start(prompt(first, 3), loads=False) for first in BATCH]
    assert len(world.restores) == len(batch)
    return world, batch


def test_a_layer_of_a_batch_waits_for_that_layer_of_each_request():
    world, batch = batch_on_the_host()
    world.tier.load(world.restores)
    world.tier.begin_forward([], [request[1] for request in batch])
    for layer in range(LAYERS):
        world.tier.layer_begins(layer)
        assert world.engine.acks.load(RESTORE) == layer + 1
        for first, request in zip(BATCH, batch, strict=True):
            pages = list(enumerate(request[1].page_ids()))
            assert all(world.pools.on_device(page, (first, place), [layer]) for place, page in pages)
            if layer + 1 < LAYERS:
                assert not any(world.pools.on_device(page, (first, place), [layer + 1]) for place, page in pages)
    world.tier.end_forward()
    for request in batch:
        request[1].release()
    assert len(world.tick().restored) == len(batch)
    world.cache.check_integrity()
    world.tier.close()


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("how", ["fails", "is given up"])
def test_a_batch_of_restores_without_one_of_its_requests(layer, how):
    """A failure takes along its batch, to be restored anew; who gives up takes nobody along."""
    world, batch = batch_on_the_host()
    other = world.serve(prompt(500, 2))
    world.tier.load(world.restores)
    for _ in range(layer):
        world.engine.land(RESTORE)
    if how == "fails":
        world.engine.fail(RESTORE, copies=1)
    else:
        batch[1][1].release()
    world.settle()
    world.tick()
    assert [request[1].lost for request in batch[::2]] == [how == "fails"] * 2
    for request in batch if how == "fails" else batch[::2]:
        request[1].release()
    world.settle()
    assert not world.cache.has_work()
    world.cache.check_integrity()
    assert world.cache.match(other[0]).device_pages == 2
    for first in BATCH:
        again = world.start(prompt(first, 3))
        world.settle()
        assert all(world.pools.on_device(page, (first, place)) for place, page in enumerate(again[1].page_ids()))
        again[1].release()
    world.tier.close()


def test_restores_that_are_loaded_twice_are_copied_once():
    world, batch = batch_on_the_host()
    world.tier.load(world.restores[:1])
    world.tier.load(world.restores)
    assert world.tier.counts.restores == len(batch)
    assert len(world.engine.queues[RESTORE]) == 2 * LAYERS
    world.tier.load(world.restores)
    assert len(world.engine.queues[RESTORE]) == 2 * LAYERS
    world.tier.pause()
    with pytest.raises(cpkv.UsageError, match="paused or closed"):
        world.tier.load(world.restores)
    world.tier.resume()
    assert len(world.settle().restored) == len(batch)
    world.tier.load(world.restores)
    assert not any(request[1].lost for request in batch)
    for request in batch:
        request[1].release()
    world.tier.close()


def test_another_request_that_hits_the_pages_waits_too(world):
    tokens = prompt(100, 3)
    evicted(world, tokens)
    first = world.start(tokens)
    second = world.start(tokens)
    world.tier.begin_forward([second[3]], [second[1]])
    world.tier.layer_begins(1)
    assert world.engine.waits == [(RESTORE, 2)]
    world.tier.wait_for_all()
    assert world.engine.waits == [(RESTORE, 2), (RESTORE, LAYERS)]
    world.tier.end_forward()
    world.tier.layer_begins(0)
    assert len(world.engine.waits) == 2
    for request in (first, second):
        request[1].release()
    assert world.settle().restored
    third = world.start(tokens)
    world.tier.begin_forward([third[3]], [third[1]])
    world.tier.layer_begins(LAYERS - 1)
    assert len(world.engine.waits) == 2
    world.tier.end_forward()
    third[1].release()


@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("how", ["fails", "is refused"])
def test_a_restore_that_fails_loses_its_lease_and_nothing_else(world, layer, how):
    tokens = prompt(100, 3)
    evicted(world, tokens)
    others = prompt(500, 2)
    world.serve(others)
    world.settle()
    lease = world.cache.lock(world.cache.match(tokens))
    if how == "is refused":
        submit, calls = world.engine.submit, iter(range(LAYERS))

        def refuse_one(*arguments, **keywords):
            if next(calls) == layer:
                world.engine.refuse(copies=1)
            submit(*arguments, **keywords)

        world.engine.submit = refuse_one
    world.tier.load(world.cache.restore(lease, world.cache.allocate(3)).operations)
    if how == "fails":
        for _ in range(layer):
            world.engine.land(RESTORE)
        world.engine.fail(RESTORE, copies=1)
    world.settle()
    world.tick()
    assert lease.lost
    lease.release()
    world.settle()
    stats = world.cache.stats()
    assert (stats.failed_restores, stats.host_cached_slots) == (1, 5)
    world.cache.check_integrity()
    # The host copies are whole: the prompt is restored after all.
    vars(world.engine).pop("submit", None)
    again = world.start(tokens)
    world.settle()
    assert all(world.pools.on_device(page, (100, place)) for place, page in enumerate(again[1].page_ids()))
    again[1].release()


# --- Faults ---


@pytest.mark.parametrize("copies", [0, 1, 5])
@pytest.mark.parametrize("layer", range(LAYERS))
@pytest.mark.parametrize("how", ["fails", "is refused"])
def test_a_copy_that_fails_rolls_back_and_the_next_request_goes_on(world, caplog, layer, how, copies):
    request = world.start(prompt(100, 3))
    world.tier.begin_forward([request[3]])
    for place in range(LAYERS):
        if how == "is refused" and place == layer:
            world.engine.refuse(copies=copies)
        world.compute(request, [place])
    world.tier.end_forward()
    if how == "is refused":
        assert world.engine.next_sequence(BACKUP) == layer + 2, "nothing more is copied for nobody"
        assert world.tier.counts.hooked_forwards == 0
    world.insert(request)
    if how == "fails":
        for _ in range(layer):
            world.engine.land(BACKUP)
        world.engine.fail(BACKUP, copies=copies)
    world.engine.land_all()
    report = world.tick()
    assert report.rolled_back == [(request[3].id, "copy_failed")]
    assert world.cache.stats().host_cached_slots == 0
    assert "a backup is rolled back" in caplog.text
    assert world.tier.counts.failed_submissions == 1
    assert request[3].status == "rolled_back"
    world.cache.check_integrity()
    # Its pages are in the cache: they are copied once more, late.
    (late,) = report.started
    other = world.serve(prompt(200, 3))
    assert sorted(world.settle().committed) == sorted([late.id, other[3].id])
    world.cache.evict(0, 16)
    for first in (100, 200):
        slots = world.slots_of(prompt(first, 3))
        assert [world.pools.on_host(slot, (first, place)) for place, slot in enumerate(slots)] == [True] * 3


def test_a_late_copy_that_fails_is_rolled_back(world):
    tokens = prompt(100, 2)
    lease = world.cache.lock(world.cache.match(tokens))
    world.cache.insert(tokens, world.cache.allocate(2), lease)
    lease.release()
    (late,) = world.tick().started
    world.engine.fail(LATE, copies=1)
    assert world.settle().rolled_back == [(late.id, "copy_failed")]
    assert world.cache.stats().host_cached_slots == 0


def test_a_lost_ack_is_healed_by_the_next_one_and_silence_commits_nothing(world):
    request = world.serve(prompt(100, 2))
    for _ in range(LAYERS):
        world.engine.land(BACKUP, acknowledge=False)
    for _ in range(5):
        assert world.tick().committed == []
    other = world.serve(prompt(200, 2))
    assert world.settle().committed == [request[3].id, other[3].id]


def test_a_copy_that_never_lands_is_given_up_at_the_deadline():
    world = World(copy_deadline=1.0)
    request = world.serve(prompt(100, 2))
    world.tier.tick(0, now_ns=0)
    report = world.tier.tick(1, now_ns=1_100_000_000)
    assert report.rolled_back == [(request[3].id, "copy_failed")]
    report = world.tier.tick(2, now_ns=2_200_000_000)
    assert report.quarantined == [request[3].id]
    assert world.cache.stats().host_quarantined_slots == 2
    world.engine.land_all()
    world.tier.tick(3, now_ns=2_300_000_000)
    assert world.cache.stats().host_quarantined_slots == 0
    world.tier.close()


def test_a_stream_error_commits_nothing_and_quarantines_what_it_touched(caplog):
    """What was visible before stays so; what comes later fails the same way, and requests go on without."""
    driver = FakeDriver(holds=True)
    world = World(engine=CudaEngine(0, copy_path="batch", driver=driver), copy_deadline=1.0, pages=32, slots=32)
    now_s = 0.0

    def tick():
        nonlocal now_s
        report = world.tier.tick(world.step, now_ns=int(now_s * 1e9))
        world.step, now_s = world.step + 1, now_s + 0.6
        world.cache.check_integrity()
        return report

    safe = world.serve(prompt(100, 3))
    for stream in world.engine.handles:
        driver.run(stream)
    assert tick().committed == [safe[3].id]
    lost = world.serve(prompt(200, 2))
    driver.code_of_streams = ILLEGAL_ADDRESS
    report = tick()
    assert report.rolled_back == [(lost[3].id, "copy_failed")]
    assert "copy stream backup has failed" in caplog.text
    (late,) = report.started
    assert tick().rolled_back == [(late.id, "copy_failed")]
    quarantined = []
    for _ in range(4):
        report = tick()
        assert (report.committed, report.started) == ([], [])
        quarantined += report.quarantined
    assert set(quarantined) == {lost[3].id, late.id}
    stats = world.cache.stats()
    assert (stats.host_cached_slots, stats.host_quarantined_slots, stats.host_draining_slots) == (3, 4, 0)

    other = world.serve(prompt(300, 2))
    reports = [tick() for _ in range(6)]
    assert not any(report.committed for report in reports)
    assert (other[3].id, "copy_failed") in [each for report in reports for each in report.rolled_back]
    assert other[3].id in [each for report in reports for each in report.quarantined]
    assert world.cache.match(prompt(300, 2)).device_pages == 2
    assert world.cache.stats().host_quarantined_slots == 8
    slots = world.slots_of(prompt(100, 3))
    assert all(world.pools.on_host(slot, (100, place)) for place, slot in enumerate(slots))
    with pytest.raises(CopyError, match="has failed"):
        world.tier.close()


def test_pages_of_a_retracted_request_are_not_handed_out_while_a_copy_reads_them(world):
    request = world.start(prompt(100, 8))
    world.tier.begin_forward([request[3]])
    world.compute(request)
    world.tier.end_forward()
    request[3].abort("retracted")
    freed = world.cache.free(request[2])
    assert len(freed) == 0
    request[1].release()
    world.tick()
    assert world.cache.allocate(9) is None
    assert world.cache.stats().device_fenced_pages == 8
    again = world.cache.lock(world.cache.match(prompt(100, 8)))
    assert again.pages == 0
    again.release()
    world.settle()
    assert len(world.cache.allocate(16)) == 16


# --- Order of calls ---


def test_a_forward_has_one_begin_and_one_end(world):
    with pytest.raises(cpkv.UsageError, match="no forward is under way"):
        world.tier.end_forward()
    world.tier.begin_forward([])
    with pytest.raises(cpkv.UsageError, match="a forward is under way: end it before the next one begins"):
        world.tier.begin_forward([])
    with pytest.raises(cpkv.UsageError, match="a forward is under way: end it before device memory is moved"):
        world.tier.pause()
    world.tier.end_forward()


def test_device_memory_may_move_while_the_tier_is_paused(world):
    tokens = prompt(100, 3)
    world.serve(tokens)
    world.tier.pause()
    assert all(world.pools.on_host(slot, (100, place)) for place, slot in enumerate(range(3)))
    with pytest.raises(cpkv.UsageError, match="the host tier is paused or closed"):
        world.tier.begin_forward([])
    with pytest.raises(cpkv.UsageError, match="the host tier is paused or closed"):
        world.tier.load([])
    world.tick()
    world.cache.evict(0, 16)
    world.pools.scribble_pages(range(16))
    moved = Pools(world.layout, pages=16, slots=16, segment_pages=4)
    world.tier.resume(moved.device)
    request = world.start(tokens)
    world.settle()
    assert all(moved.on_device(page, (100, place)) for place, page in enumerate(request[1].page_ids()))
    request[1].release()


def test_pools_that_do_not_fit_are_not_taken(world):
    other = Pools(small_layout(index=False, page_size=PAGE), pages=16, slots=16, segment_pages=4)
    world.tier.pause()
    with pytest.raises(cpkv.ConfigError, match="different layouts"):
        world.tier.resume(other.device)
    with pytest.raises(cpkv.ConfigError, match="slots of the host pool is 12, want 16"):
        HostTier(world.cache, ManualEngine(), world.pools.device, Pools(world.layout, pages=16, slots=12).host)
    world.tier.resume()


def paused_with_a_late_backup(world):
    tokens = prompt(100, 2)
    lease = world.cache.lock(world.cache.match(tokens))
    pages = world.cache.allocate(2)
    for place, page in enumerate(pages):
        world.pools.compute(page, (100, place))
    world.cache.insert(tokens, pages, lease)
    lease.release()
    world.tier.pause()
    (late,) = world.tick().started
    assert world.engine.queues[LATE] == []
    return tokens, late


def test_late_backups_wait_for_a_paused_tier(world):
    tokens, late = paused_with_a_late_backup(world)
    world.tick()
    assert late.status == "pending"
    world.tier.resume()
    assert world.settle().committed == [late.id]
    world.cache.evict(0, 16)
    assert all(world.pools.on_host(slot, (100, place)) for place, slot in enumerate(world.slots_of(tokens)))


def test_late_backups_that_a_closed_tier_will_not_copy_fail(world):
    """Through the agreement, so that ranks that are not closed do the same."""
    _, late = paused_with_a_late_backup(world)
    world.tier.close()
    assert world.tick().rolled_back == [(late.id, "copy_failed")]
    world.tick()
    assert not world.cache.has_work()


@pytest.mark.parametrize("how", ["never copied", "a copy failed"])
def test_a_closed_tier_comes_to_rest(world, how):
    """Late backups that a tick starts after the end fail as well: nobody waits for a deadline."""
    if how == "never copied":
        inserted_late(world)
    else:
        world.serve(prompt(100, 3))
        world.engine.fail(BACKUP, copies=1)
    world.tier.close()
    started = []
    for _ in range(6):
        started += world.tick().started
    assert len(started) >= 1
    assert {late.status for late in started} == {"rolled_back"}
    assert not world.cache.has_work()
    assert world.cache.stats().host_cached_slots == 0


def test_the_end_of_a_tier_waits_for_its_copies():
    """Its memory may be unmapped the moment that `close` returns."""
    world = World(engine=CpuEngine(delay_s=0.01))
    with world.tier:
        request = world.start(prompt(100, 3))
        world.tier.begin_forward([request[3]])
        world.compute(request, [0, 1])
        world.pools.scribble_pages([])
    assert world.engine.acks.load(BACKUP) == 2
    with pytest.raises(cpkv.UsageError, match="paused or closed"):
        world.tier.begin_forward([])
    world.tier.close()
    request[3].abort()
    request[1].release()


def test_what_is_closed_or_in_a_forward_is_not_resumed(world):
    """The host memory has gone; the forward's plan has the addresses of the pool that it was begun with."""
    moved = Pools(world.layout, pages=16, slots=16, segment_pages=4)
    world.tier.begin_forward([])
    with pytest.raises(cpkv.UsageError, match="a forward is under way"):
        world.tier.resume(moved.device)
    world.tier.close()
    with pytest.raises(cpkv.UsageError, match="the host tier is closed"):
        world.tier.resume()
    with pytest.raises(cpkv.UsageError, match="paused or closed"):
        world.tier.load([])


def test_an_engine_is_closed_whatever_the_end_of_its_forward_raises(world, monkeypatch):
    def gone(*_, **__):
        raise RuntimeError("torch has gone")

    monkeypatch.setattr(BackupDriver, "end", gone)
    world.tier.begin_forward([])
    with pytest.raises(RuntimeError, match="torch has gone"):
        world.tier.close()
    with pytest.raises(cpkv.UsageError, match="the copy engine is closed"):
        world.engine.submit(LATE, None, 0, 0, after=None, on_failure=None)


class Tensor:
    """What is asked of a torch tensor, and memory that can be given up."""

    def __init__(self, pages, row_bytes):
        self.memory = np.zeros((pages, row_bytes), np.uint8)
        self.shape = self.memory.shape
        self.is_freed = False

    def data_ptr(self):
        return 0 if self.is_freed else self.memory.ctypes.data

    def stride(self):
        return self.memory.strides

    def element_size(self):
        return 1


def world_of_tensors(layers, **settings):
    """A rank whose device pages are tensors, one for each layer."""
    kv = Component(name="target_kv", model="target", layers=tuple(range(layers)), row_bytes=8)
    layout = PageLayout(page_size=PAGE, target_layers=layers, components=(kv,))
    world = World(layout=layout, **settings)
    tensors = [Tensor(16, 8) for _ in range(layers)]
    world.tier.pause()
    world.tier.resume(DevicePool(layout, {"target_kv": Buffers.of(tensors)}))
    return world, tensors


def test_a_device_buffer_that_was_freed_is_noticed_before_the_forward():
    world, (tensor,) = world_of_tensors(1)
    tensor.is_freed = True
    with pytest.raises(cpkv.ConfigError, match="the device memory of target_kv has moved or was freed"):
        world.tier.begin_forward([])


@pytest.mark.parametrize("hooked", [range(3), range(1)], ids=["a layer's end", "the end of the forward"])
def test_a_device_buffer_that_is_freed_during_the_forward_rolls_it_back(caplog, hooked):
    """Nobody reads where it was; with memory given anew, everybody else goes on."""
    world, tensors = world_of_tensors(3)
    request = world.start(prompt(100, 3))
    world.tier.begin_forward([request[3]])
    world.tier.layer_ended(0)
    tensors[1].is_freed = True
    for layer in hooked[1:]:
        world.tier.layer_ended(layer)
    world.tier.end_forward()
    assert [one.first_layer for one in world.engine.queues[BACKUP]] == [0]
    assert "the device memory of target_kv has moved or was freed" in caplog.text
    world.insert(request)
    assert world.settle().rolled_back == [(request[3].id, "copy_failed")]
    world.settle()
    stats = world.cache.stats()
    assert (stats.host_cached_slots, stats.host_draining_slots) == (0, 0)
    world.cache.flush()
    tensors[1].is_freed = False
    other = world.start(prompt(200, 3))
    world.tier.begin_forward([other[3]])
    for layer in range(3):
        world.tier.layer_ended(layer)
    world.tier.end_forward()
    world.insert(other)
    assert world.settle().committed == [other[3].id]
    world.cache.check_integrity()
    world.tier.close()


def test_a_tier_wants_host_memory_apart_from_the_device_pages(world):
    layout, device = world.layout, world.pools.device
    begin = device.row_addresses[0]
    for address, said in ((0, "bytes at address 0"), (begin + 5, "overlaps buffer 0 of target_kv")):
        host = HostPool(layout=layout, slots=16, segment_pages=4, address=int(address))
        with pytest.raises(cpkv.ConfigError, match=said):
            HostTier(world.cache, ManualEngine(), device, host)
    # Nor may device pages be moved there.
    buffers = dict(device.buffers)
    at = (world.pools.host.address + 8, *buffers["target_kv"].addresses[1:])
    buffers["target_kv"] = Buffers(addresses=at, stride_bytes=24, row_bytes=24, pages=16)
    world.tier.pause()
    with pytest.raises(cpkv.ConfigError, match="overlaps buffer 0 of target_kv"):
        world.tier.resume(DevicePool(layout, buffers))
    world.tier.resume()


@pytest.mark.parametrize(
    ("make", "device", "wanted"),
    [
        (ManualEngine, "cuda:0", "cpu"),
        (CpuEngine, "cuda:0", "cpu"),
        (lambda: CudaEngine(0, copy_path="batch", driver=FakeDriver()), "cuda:1", "cuda:0"),
        (lambda: CudaEngine(1, copy_path="batch", driver=FakeDriver()), "cuda:0", "cuda:1"),
        (lambda: CudaEngine(0, copy_path="batch", driver=FakeDriver()), "cpu", "cuda:0"),
    ],
)
def test_tensors_that_the_engine_does_not_reach_are_refused(make, device, wanted):
    """An address of a GPU is no address of the processor's, nor one of another GPU."""
    world, tensors = world_of_tensors(1)
    engine = make()
    for tensor, said in zip(tensors * 2, (device, wanted), strict=True):
        tensor.device = said
        pool = DevicePool(world.layout, {"target_kv": Buffers.of([tensor])})
        if said == wanted:
            HostTier(world.cache, engine, pool, world.pools.host).close()
            continue
        with pytest.raises(
            cpkv.ConfigError, match=f"target_kv is on {device}, want tensors on {wanted} for the engine"
        ):
            HostTier(world.cache, engine, pool, world.pools.host)
        if wanted == "cpu":
            world.tier.pause()
            with pytest.raises(cpkv.ConfigError, match=f"target_kv is on {device}"):
                world.tier.resume(pool)
    world.tier.close()


# --- Lanes ---


def test_a_rank_copies_the_pages_of_its_own_lane():
    for lane in range(2):
        world = World(lanes=2, own_lane=lane)
        tokens = prompt(100, 4)
        request = world.start(tokens)
        pages, slots = Share.of_cache(world.cache).pages([request[3]])
        plan = np.array([list(ids) for ids in request[3].plan()])
        own = plan[:, plan[1] % 2 == lane]
        assert pages.tolist() == (own[0] // 2).tolist()
        assert slots.tolist() == (own[1] // 2).tolist()
        request[3].abort()
        request[1].release()
        world.tier.close()


def test_several_lanes_want_to_know_which_is_their_own():
    with pytest.raises(cpkv.ConfigError, match="own_lane is None with 2 lanes"):
        World(lanes=2)


# --- Hooks of a model ---


class Module:
    """What is used of a torch module."""

    def __init__(self):
        self.before, self.after = {}, {}

    def register_forward_pre_hook(self, hook):
        return Handle(self.before, hook)

    def register_forward_hook(self, hook):
        return Handle(self.after, hook)

    def __call__(self):
        for hook in self.before.values():
            assert hook(self, ()) is None
        for hook in self.after.values():
            assert hook(self, (), None) is None


class Handle:
    def __init__(self, hooks, hook):
        self.hooks = hooks
        hooks[id(self)] = hook

    def remove(self):
        del self.hooks[id(self)]


@pytest.mark.parametrize(("model", "count"), [("target", TARGET_LAYERS + 1), ("target", 2), ("draft", 2)])
def test_hooks_of_other_layers_than_the_layout_has_are_refused(world, model, count):
    """One more of the target would be the draft's first."""
    modules = [Module() for _ in range(count)]
    with pytest.raises(cpkv.ConfigError, match=f"the {model} has {count} layers to hook, want"):
        LayerHooks(world.tier, modules, model=model)
    assert not any(module.before or module.after for module in modules)


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_a_layer_that_there_is_not_is_refused(world, layer):
    """Layer -1 would count the last one as copied."""
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([request[3]])
    with pytest.raises(cpkv.UsageError, match=f"layer is {layer}, want 0 to 3"):
        world.tier.layer_ended(layer)
    world.compute(request)
    world.tier.end_forward()
    world.insert(request)
    assert world.settle().committed == [request[3].id]


@pytest.mark.parametrize("layer", [-1, LAYERS, 99])
def test_a_layer_that_there_is_not_waits_for_nothing(world, layer):
    """Layer -1 would wait for the last one."""
    evicted(world, prompt(100, 2))
    request = world.start(prompt(100, 2))
    world.tier.begin_forward([], [request[1]])
    with pytest.raises(cpkv.UsageError, match=f"layer is {layer}, want 0 to 3"):
        world.tier.layer_begins(layer)
    assert world.engine.waits == []
    world.tier.end_forward()
    request[1].release()


def test_hooks_of_target_and_draft_name_their_own_layers(world):
    target, draft = [Module() for _ in range(TARGET_LAYERS)], [Module()]
    with LayerHooks(world.tier, target, model="target"), LayerHooks(world.tier, draft, model="draft") as hooks:
        request = world.start(prompt(100, 2))
        world.tier.begin_forward([request[3]], [request[1]])
        for module in (*target, *draft):
            module()
        world.tier.end_forward()
        assert [one.first_layer for one in world.engine.queues[BACKUP]] == list(range(LAYERS))
        hooks.remove()
    assert all(not module.before and not module.after for module in (*target, *draft))
    request[3].abort()
    request[1].release()
