"""Pages on a GPU and slots in pinned memory, and what the bytes of a slot have to be, computed another way."""

import ctypes
import mmap
from dataclasses import dataclass

import numpy as np
import torch

from cpkv.device.cuda.driver import load_driver
from cpkv.layout import Buffers, DevicePool, HostPool

SLEEP_CYCLES_PER_MS = 2_000_000
"""Of the GPU's clock, which is at most 1.98 GHz here: 1 ms or more."""


@dataclass
class GpuPools:
    """The pools, and the memory they describe.

    Args:
        tensors: For each component a tensor a layer, `uint8`, shape `(pages, row bytes)`.
        memory: The host pool.
        device, host: The pools.
    """

    tensors: dict
    memory: np.ndarray
    device: DevicePool
    host: HostPool

    def rows(self):
        """Each row of the layout with its tensor and its offset in a slot, counted here from the formats."""
        offset = 0
        for layer in range(self.host.layout.layers):
            for row in self.host.layout.rows_of(layer):
                tensors = self.tensors[row.component.name]
                yield tensors[row.component.layers.index(row.layer)], offset, row.component.row_bytes
                offset += row.component.row_bytes

    def place(self, slot, offset, row_bytes):
        """Where a row lies in the host memory: by segment, row of the layout, and slot in the segment."""
        length = self.host.segment_pages
        segment, column = divmod(int(slot), length)
        begin = segment * length * self.host.layout.slot_bytes + offset * length + column * row_bytes
        return slice(begin, begin + row_bytes)

    def host_after(self, pages, slots):
        """The host memory as it has to be when these pages were copied to these slots."""
        image = self.memory.copy()
        for tensor, offset, row_bytes in self.rows():
            rows = tensor[torch.as_tensor(pages, device=tensor.device)].cpu().numpy()
            for slot, row in zip(slots, rows, strict=True):
                image[self.place(slot, offset, row_bytes)] = row
        return image

    def device_after(self, pages, slots):
        """The tensors as they have to be when these slots were copied to these pages."""
        wanted = []
        for tensor, offset, row_bytes in self.rows():
            rows = np.stack([self.memory[self.place(slot, offset, row_bytes)] for slot in slots])
            after = tensor.clone()
            after[torch.as_tensor(pages, device=tensor.device)] = torch.from_numpy(rows).to(tensor.device)
            wanted.append(after)
        return wanted

    def scribble(self, seed):
        """Fill everything with other bytes."""
        generator = torch.Generator(device="cuda").manual_seed(seed)
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor.random_(0, 256, generator=generator)
        self.memory[:] = np.random.default_rng(seed).integers(0, 256, self.memory.size, np.uint8)
        torch.cuda.synchronize()


def gpu_pools(layout, *, pages, slots, segment_pages, memory=None):
    """Pools on the current GPU."""
    tensors = {
        component.name: [
            torch.zeros((pages, component.row_bytes), dtype=torch.uint8, device="cuda") for _ in component.layers
        ]
        for component in layout.components
    }
    if memory is None:
        memory = torch.zeros(slots * layout.slot_bytes, dtype=torch.uint8, pin_memory=True).numpy()
    host = HostPool(
        layout=layout,
        slots=slots,
        segment_pages=segment_pages,
        address=memory.__array_interface__["data"][0],
    )
    device = DevicePool(layout, {name: Buffers.of(ones) for name, ones in tensors.items()})
    torch.cuda.synchronize()
    return GpuPools(tensors, memory, device, host)


def registered_memory(size, stack):
    """Memory of the process that the driver has registered, for sizes that torch would round up."""
    memory = np.frombuffer(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
    stack.callback(lambda: memory)  # is not unmapped before it is unregistered
    address = memory.__array_interface__["data"][0]
    torch.cuda.synchronize()  # makes the context current
    driver = load_driver()
    code = driver.cuMemHostRegister(ctypes.c_void_p(address), size, 3)
    assert code == 0, f"cuMemHostRegister of {size} bytes returned {code}"
    stack.callback(driver.cuMemHostUnregister, ctypes.c_void_p(address))
    return memory


def submit_layers(engine, stream, plan, *, after):
    """Submit a plan layer by layer, and return the number of the last submission."""
    for layer in range(plan.layout.layers):
        engine.submit(stream, plan, layer, layer + 1, after=after, on_failure=unexpected)
    return engine.next_sequence(stream) - 1


def unexpected(error):
    raise AssertionError(error)


def spin(engine, stream, sequence):
    """Wait as a tick does: look at the word until it is there."""
    while engine.acks.load(stream) < sequence:
        engine.poll()


def handle(stream=None):
    return int((stream or torch.cuda.current_stream()).cuda_stream)
