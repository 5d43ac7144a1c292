"""Host slots that come free are overwritten at once, and no others."""

import ctypes
import threading

import numpy as np
import pytest

import cpkv
from cpkv.device import CpuEngine
from cpkv.engine import Engine
from cpkv.engine.freed_slots import FreedSlots, used_slots
from cpkv.engine.oracle import Oracle
from engine_work import config, evict_all, prompts
from pools import SCRIBBLE, Pools, small_layout

PROMPT, OTHER = list(range(9)), list(range(20, 27))
"""Of four and of three pages of two tokens under pair keys."""
MARK = 0x55
SLOTS = 8
"""Of each lane."""


class Rank:
    """A cache and its host memory, every byte of which is marked. What copies come to is said and not done."""

    def __init__(self, lanes=1, lane=0):
        self.lanes, self.lane, self.step = lanes, lane, 0
        self.cache = cpkv.CacheManager(
            page_size=2,
            key="pair",
            lanes=lanes,
            device_pages=16 * lanes,
            host_slots=SLOTS * lanes,
            segment_pages=4,
            copies="tracked",
        )
        self.pools = Pools(small_layout(), pages=16, slots=SLOTS, segment_pages=4)
        self.freed = FreedSlots(self.cache, self.pools.host, lane, lanes)
        self.pools.memory[:] = MARK

    def backup(self, tokens, *, sequence, is_given_up=False):
        """A transaction with a copy under way, whose pages are in the cache unless they are given up."""
        lease = self.cache.lock(self.cache.match(tokens))
        # All but the last in one lane: what is freed in one is not what is freed in the other.
        pages = self.cache.allocate(lanes=[0] * ((len(tokens) - 1) // 2 - 1) + [self.lanes - 1])
        (transaction,) = self.cache.reserve([(tokens, pages, lease)])
        transaction.submitted(0, sequence)
        self.cache.forward_end([transaction])
        if is_given_up:
            transaction.abort()
            self.cache.free(pages)
        else:
            self.cache.insert(tokens, pages, lease, transaction)
        lease.release()
        return transaction

    def tick(self, reached):
        report = self.cache.tick(self.step, np.array([reached]))
        self.step += 1
        self.freed.overwrite()
        return report

    def overwritten(self):
        """Slots of this rank that hold nothing any more; the others have to be untouched."""
        empty = set()
        for slot in range(SLOTS):
            held = {byte for row in self.pools.layout.rows for byte in self.pools.host_row(slot, row).tolist()}
            assert held in ({SCRIBBLE}, {MARK}), "a slot is overwritten whole or not at all"
            empty |= {slot} if held == {SCRIBBLE} else set()
        return empty

    def mine(self, slots):
        return {slot // self.lanes for slot in slots if slot % self.lanes == self.lane}


LANES = [(1, 0), (2, 0), (2, 1)]


@pytest.mark.parametrize(("lanes", "lane"), LANES)
def test_an_aborted_backup_has_its_slots_until_its_copies_have_ended(lanes, lane):
    rank = Rank(lanes, lane)
    slots = rank.mine(rank.backup(PROMPT, sequence=1, is_given_up=True).plan()[1])
    rank.tick(0)
    assert rank.cache.stats().host_draining_slots == 4
    assert rank.overwritten() == set(range(SLOTS)) - slots, "what was never used is free"
    rank.pools.memory[:] = MARK
    rank.tick(1)
    assert rank.cache.stats().host_draining_slots == 0
    assert rank.overwritten() == slots, "and nothing is overwritten twice"


@pytest.mark.parametrize(("lanes", "lane"), LANES)
def test_what_is_reserved_copied_or_found_is_left_alone(lanes, lane):
    rank = Rank(lanes, lane)
    first = rank.backup(PROMPT, sequence=1)
    slots = set(first.plan()[1])
    rank.tick(0)
    assert rank.tick(1).committed == [first.id]
    assert rank.overwritten() == set(range(SLOTS)) - rank.mine(slots), "what was never used is free"
    second = rank.backup(OTHER, sequence=2)
    slots |= set(second.plan()[1])
    rank.pools.memory[:] = MARK
    rank.tick(1)
    assert second.status == "pending"
    assert used_slots(rank.cache) == slots
    assert rank.overwritten() == set()
    stats = rank.cache.stats()
    assert stats.host_cached_slots + stats.host_reserved_slots == len(slots)


@pytest.mark.parametrize(("lanes", "lane"), LANES)
def test_slots_that_a_restore_reads_are_left_alone_though_nobody_finds_them(lanes, lane):
    rank = Rank(lanes, lane)
    slots = rank.mine(rank.backup(PROMPT, sequence=1).plan()[1])
    rank.tick(1)
    for each in range(lanes):
        rank.cache.evict(each, 16)
    rank.pools.memory[:] = MARK
    lease = rank.cache.lock(rank.cache.match(PROMPT))
    assert lease.host_pages == 4
    pages = rank.cache.allocate(lanes=[slot % lanes for slot in lease.host_slots()])
    (restore,) = rank.cache.restore(lease, pages).operations
    restore.submitted(0, 2)
    restore.submitted_all()
    lease.release()
    rank.cache.flush()
    rank.tick(1)
    assert rank.cache.match(PROMPT).pages == 0
    assert rank.overwritten() == set()
    rank.tick(2)
    assert rank.overwritten() == slots


def test_the_engine_overwrites_what_has_come_free():
    with Engine(config()) as engine:
        engine.generate(prompts(1, [40, 75]), 4)
        host = engine.tier.host
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * host.bytes).from_address(host.address))
        assert (memory != SCRIBBLE).any()
        engine.cache.flush()
        engine.run()
        assert engine.cache.stats().host_cached_slots == 0
        assert (memory == SCRIBBLE).all()


def test_a_host_copy_that_nobody_has_made_is_wrong_though_the_same_bytes_lay_there_before():
    """The same prompt in the same slots. The second time nothing is copied, and somebody says that all of it was."""
    may_copy = threading.Event()
    may_copy.set()
    held = CpuEngine(delay_s=lambda _: float(not may_copy.wait(60)))
    with Engine(config(), copy_engine=held) as engine:
        oracle, (prompt,) = Oracle(engine.config), prompts(1, [75])

        def slots():
            evict_all(engine)
            with engine.cache.lock(engine.cache.match(np.array(prompt))) as lease:
                return lease.host_slots().tolist()

        engine.generate([prompt], 1)
        before = slots()
        assert oracle.compare(engine, [prompt]).wrong == ()
        engine.cache.flush()
        may_copy.clear()
        request = engine.submit(prompt, 30)
        engine.step()
        assert engine.cache.tick(engine.step_number, [1 << 40] * 3).committed
        engine.step_number += 1
        engine.abort(request)
        assert slots() == before
        said = oracle.compare(engine, [prompt])
        may_copy.set()
    # The slots are whole in every layer, or not a byte of them is right.
    rows = sum(len(tensors) for tensors in engine.pools.tensors.values())
    assert (said.host_pages, len(said.wrong)) == (4, 4 * rows)
