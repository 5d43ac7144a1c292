"""Device and host memory of a layout, filled with bytes that tell where they are."""

from dataclasses import dataclass

import numpy as np

from cpkv.layout import Buffers, DevicePool, HostPool


@dataclass
class Pools:
    """The pools that an engine copies between, and the memory they describe.

    Args:
        device, host: The pools.
        tensors: For each component a tensor or array a layer, of shape `(pages, row bytes)`.
        memory: The bytes of the host pool, with some in front and behind.
    """

    device: DevicePool
    host: HostPool
    tensors: dict
    memory: np.ndarray

    def host_rows(self, slot):
        """A copy of every row of a slot, in the order of the layout."""
        begin = self.memory.__array_interface__["data"][0]
        return [
            self.memory[at - begin : at - begin + size].copy()
            for (at,), size in zip(
                self.host.addresses(np.array([slot])).tolist(), self.host.layout.row_bytes.tolist(), strict=True
            )
        ]

    def device_rows(self, page):
        """A copy of every row of a page, in the order of the layout."""
        rows = []
        for row in self.host.layout.rows:
            tensor = self.tensors[row.component.name][row.component.layers.index(row.layer)]
            rows.append(np.array(tensor[page].cpu() if hasattr(tensor, "cpu") else tensor[page]))
        return rows


def numpy_pools(layout, *, pages, slots, segment_pages, seed=1):
    """Pools in the memory of the process."""
    random = np.random.default_rng(seed)
    tensors = {
        component.name: [random.integers(0, 256, (pages, component.row_bytes), np.uint8) for _ in component.layers]
        for component in layout.components
    }
    margin = 4096
    memory = random.integers(0, 256, slots * layout.slot_bytes + 2 * margin, np.uint8)
    host = HostPool(
        layout=layout,
        slots=slots,
        segment_pages=segment_pages,
        address=memory.__array_interface__["data"][0] + margin,
    )
    device = DevicePool(layout, {name: Buffers.of(ones) for name, ones in tensors.items()})
    return Pools(device, host, tensors, memory)


def pairs(kind, count, *, pages, slots, segment_pages):
    """Pages and slots for so many copies: `scattered`, in `runs` of 4, or whole segments in `blocks`."""
    random = np.random.default_rng(3)
    if kind == "scattered":
        return random.permutation(pages)[:count], random.permutation(slots)[:count]
    if kind == "runs":
        length = min(4, segment_pages)
        firsts = random.permutation(pages // length)[: -(-count // length)] * length
        homes = random.permutation(slots // length)[: len(firsts)] * length
        inside = np.arange(length)
        return (firsts[:, None] + inside).ravel()[:count], (homes[:, None] + inside).ravel()[:count]
    assert kind == "blocks"
    whole = max(count // segment_pages, 1) * segment_pages
    return np.arange(whole) + (pages - whole), np.arange(whole) + (slots - whole) // segment_pages * segment_pages
