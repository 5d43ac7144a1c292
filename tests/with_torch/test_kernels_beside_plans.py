"""The kernels speak of the same places as the copy plans of the engines, which were written apart."""

import numpy as np
import pytest

from cpkv.device import plan_copies
from cpkv.device.moving import move, pieces
from cpkv.kernels import HostSegments, LayerCopy, LayerRows, PagePairs
from pools import Pools, small_layout


@pytest.mark.parametrize("segment_pages", [1, 4, 16])
@pytest.mark.parametrize("gap", [0, 5])
def test_places_are_the_same(segment_pages, gap):
    pools = Pools(small_layout(), pages=16, slots=16, segment_pages=segment_pages, gap=gap)
    host = HostSegments.of(pools.host)
    every = np.arange(16)
    on_host, on_device = pools.host.addresses(every), pools.device.addresses(every)
    place = 0
    for layer in range(pools.layout.layers):
        for rows in LayerRows.of_layer(pools.device, layer):
            assert [host.row_address(slot, rows) for slot in range(16)] == on_host[place].tolist()
            assert [rows.page_address(page) for page in range(16)] == on_device[place].tolist()
            place += 1
    assert place == len(pools.layout.rows)


@pytest.mark.parametrize("gap", [0, 5])
@pytest.mark.parametrize("direction", ["to_host", "to_device"])
def test_bytes_are_the_same(direction, gap):
    pages, slots = [5, 3, 9, 10, 11], [0, 14, 6, 7, 8]
    images = []
    for uses_kernel in (True, False):
        pools = Pools(small_layout(), pages=16, slots=16, segment_pages=4, gap=gap)
        for page in range(16):
            pools.compute(page, page)
        pools.memory[:] = np.arange(pools.memory.size) % 251
        if uses_kernel:
            pairs = PagePairs(pages, slots, device_pages=16, host_slots=16, device="cpu")
            for layer in range(pools.layout.layers):
                rows = LayerRows.of_layer(pools.device, layer)
                copy = LayerCopy(HostSegments.of(pools.host), rows, device="cpu")
                (copy.backup if direction == "to_host" else copy.restore)(pairs, blocks=2)
        else:
            plan = plan_copies(pools.device, pools.host, np.array(pages), np.array(slots), direction=direction)
            for destination, source, size in pieces(plan, 0, pools.layout.layers):
                move(destination, source, size)
        assert pools.gaps_are_untouched()
        images.append((pools.memory.copy(), [array.copy() for arrays in pools.arrays.values() for array in arrays]))
    (memory, arrays), (other_memory, other_arrays) = images
    assert (memory == other_memory).all()
    assert all((array == other).all() for array, other in zip(arrays, other_arrays, strict=True))
