"""A plan copies what it is asked to, and nothing else, whatever its copies are joined to."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import cpkv
from cpkv.device import plan_copies
from cpkv.device.moving import move, pieces
from cpkv.layout import join_runs
from pools import SCRIBBLE, Pools, small_layout


def ids(values):
    return np.array(values, np.int64)


@st.composite
def worlds(draw):
    segment_pages = draw(st.sampled_from([1, 2, 4, 16]))
    slots = 16
    pages = draw(st.integers(16, 24))
    # Runs on both sides, at any places, in any order.
    order = draw(st.permutations(range(4)))
    lengths = draw(st.lists(st.integers(0, 4), min_size=4, max_size=4))
    shift = draw(st.integers(0, pages - 16))
    pairs = []
    for block, length in zip(order, lengths, strict=True):
        slot_block = draw(st.sampled_from([block, 3 - block]))
        pairs += [(shift + block * 4 + place, slot_block * 4 + place) for place in range(length)]
    pairs = list({slot: (page, slot) for page, slot in pairs}.values())
    return {
        "pools": Pools(
            small_layout(draft=draw(st.booleans()), index=draw(st.booleans())),
            pages=pages,
            slots=slots,
            segment_pages=segment_pages,
            gap=draw(st.sampled_from([0, 0, 5])),
        ),
        "pairs": draw(st.permutations(pairs)),
        "least_block": draw(st.sampled_from([None, 1, 2])),
        "layers": sorted(draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))),
    }


@given(world=worlds())
def test_what_goes_to_the_host_is_what_was_asked_for(world):
    pools, pairs = world["pools"], world["pairs"]
    for page, _ in pairs:
        pools.compute(page, page)
    first, end = world["layers"]
    end = min(end, pools.layout.layers)
    first = min(first, end)
    plan = plan_copies(
        pools.device,
        pools.host,
        ids([page for page, _ in pairs]),
        ids([slot for _, slot in pairs]),
        direction="to_host",
        least_block=world["least_block"],
    )
    copied = 0
    for destination, source, size in pieces(plan, first, end):
        move(destination, source, size)
        copied += size
    assert copied == plan.bytes(first, end)
    filled = {slot: page for page, slot in pairs}
    for slot in range(pools.host.slots):
        for layer in range(pools.layout.layers):
            for row in pools.layout.rows_of(layer):
                found = pools.host_row(slot, row)
                if slot in filled and first <= layer < end:
                    assert (found == pools.device_row(filled[slot], row)).all()
                else:
                    assert (found == SCRIBBLE).all()
    assert pools.gaps_are_untouched()


@given(world=worlds())
def test_there_and_back_is_where_it_was(world):
    pools, pairs = world["pools"], world["pairs"]
    pages, slots = ids([page for page, _ in pairs]), ids([slot for _, slot in pairs])
    for page, _ in pairs:
        pools.compute(page, page)
    layers = pools.layout.layers
    for direction in ("to_host", "to_device"):
        plan = plan_copies(
            pools.device, pools.host, pages, slots, direction=direction, least_block=world["least_block"]
        )
        for destination, source, size in pieces(plan, 0, layers):
            move(destination, source, size)
        if direction == "to_host":
            pools.scribble_pages(range(pools.device.pages))
    assert all(pools.on_device(page, page) for page, _ in pairs)
    untouched = set(range(pools.device.pages)) - {page for page, _ in pairs}
    for page in untouched:
        assert all((pools.device_row(page, row) == SCRIBBLE).all() for row in pools.layout.rows)
    assert pools.gaps_are_untouched()


def naive_runs(pairs, segment_pages):
    runs = []
    for page, slot in sorted(pairs, key=lambda pair: pair[1]):
        if runs:
            first_page, first_slot, length = runs[-1]
            if (page, slot) == (first_page + length, first_slot + length) and slot % segment_pages:
                runs[-1] = (first_page, first_slot, length + 1)
                continue
        runs.append((page, slot, 1))
    return runs


@given(
    slots=st.lists(st.integers(0, 20), unique=True),
    jumps=st.lists(st.sampled_from([0, 0, 0, 7]), min_size=21, max_size=21),
    segment_pages=st.integers(1, 8),
)
def test_runs_are_as_long_as_they_can_be(slots, jumps, segment_pages):
    pages = [slot + sum(jumps[: slot + 1]) for slot in slots]
    runs = join_runs(ids(pages), ids(slots), segment_pages)
    found = list(zip(runs.pages.tolist(), runs.slots.tolist(), runs.lengths.tolist(), strict=True))
    assert found == naive_runs(zip(pages, slots, strict=True), segment_pages)


def test_copies_of_a_layer_are_one_block_of_memory():
    """An engine passes an address and a count, and no Python is run for a page."""
    pools = Pools(small_layout(), pages=16, slots=16, segment_pages=4)
    plan = plan_copies(pools.device, pools.host, ids([5, 3, 9]), ids([0, 4, 9]), direction="to_host")
    for array in (plan.destinations, plan.sources, plan.sizes):
        assert array.flags.c_contiguous
        assert array.dtype == np.int64
        assert array.shape == (7, 3)


def test_whole_segments_are_copied_as_blocks():
    pools = Pools(small_layout(), pages=32, slots=16, segment_pages=4)
    pages = ids([*range(10, 22), 30, 2])
    slots = ids([*range(12), 12, 14])
    plan = plan_copies(pools.device, pools.host, pages, slots, direction="to_host", least_block=3)
    assert plan.destinations.shape == (7, 2)
    assert plan.blocks.heights.tolist() == [[3]] * 7
    assert plan.blocks.destination_pitches[0, 0] == 4 * pools.layout.slot_bytes
    assert plan.blocks.widths[:2, 0].tolist() == [4 * 24, 4 * 9]
    none = plan_copies(pools.device, pools.host, pages, slots, direction="to_host", least_block=4)
    assert none.blocks is None
    assert none.destinations.shape == (7, 5)


def test_ids_out_of_range_are_refused():
    pools = Pools(small_layout(), pages=4, slots=4)
    with pytest.raises(cpkv.PageError, match="device page is 4, want 0 to 3"):
        plan_copies(pools.device, pools.host, ids([4]), ids([0]), direction="to_host")
    with pytest.raises(cpkv.PageError, match="host slot is 7, want 0 to 3"):
        plan_copies(pools.device, pools.host, ids([0]), ids([7]), direction="to_host")
