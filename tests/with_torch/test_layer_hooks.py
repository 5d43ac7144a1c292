"""Hooks on the layers of a real torch model, whose tensors are copied where they are."""

import numpy as np
import torch

import cpkv
from cpkv.device import CpuEngine
from cpkv.drivers import HostTier, LayerHooks
from cpkv.layout import Buffers, DevicePool, HostPool, PageLayout

PAGES, SLOTS, PAGE = 8, 32, 4
LAYOUT = PageLayout.mla(target_layers=3, draft_layers=1, page_size=PAGE, index_layers=(0, 2))


class Decoder(torch.nn.Module):
    """A layer that writes KV, and index state if it owns some, for the pages it is told of."""

    def __init__(self, layer, buffers):
        super().__init__()
        self.layer = layer
        self.buffers_of_layer = buffers
        self.pages = []
        self.project = torch.nn.Linear(8, 8)

    def forward(self, hidden):
        for buffer in self.buffers_of_layer:
            buffer[self.pages] = self.layer + 1
        return torch.tanh(self.project(hidden))


def engine_tensors():
    """KV as an engine has it, by token; index pages as bytes."""
    kv = {"target_kv": 3, "draft_kv": 1}
    index = {"target_index": 2, "draft_index": 1}
    tensors = {
        name: [torch.zeros(PAGES * PAGE, 1, 576, dtype=torch.bfloat16) for _ in range(n)] for name, n in kv.items()
    }
    return tensors | {
        name: [torch.zeros(PAGES, PAGE * 132, dtype=torch.uint8) for _ in range(n)] for name, n in index.items()
    }


def test_hooks_copy_each_layer_of_target_and_draft():
    tensors = engine_tensors()
    device = DevicePool(
        LAYOUT,
        {name: Buffers.of(ones, tokens_per_page=PAGE if name.endswith("kv") else 1) for name, ones in tensors.items()},
    )
    memory = np.zeros(SLOTS * LAYOUT.slot_bytes, np.uint8)
    host = HostPool(layout=LAYOUT, slots=SLOTS, address=memory.ctypes.data)
    cache = cpkv.CacheManager(
        page_size=PAGE, device_pages=PAGES, host_slots=SLOTS, copies="tracked", draft=True, key="pair"
    )
    pages_of = {name: [tensor.view(PAGES, -1).view(torch.uint8) for tensor in ones] for name, ones in tensors.items()}
    decoders = [
        Decoder(
            layer,
            [pages_of[row.component.name][row.component.layers.index(row.layer)] for row in LAYOUT.rows_of(layer)],
        )
        for layer in range(LAYOUT.layers)
    ]
    target, draft = decoders[:3], decoders[3:]
    tokens = np.arange(4 * PAGE + 1)
    with (
        HostTier(cache, CpuEngine(), device, host) as tier,
        LayerHooks(tier, target, model="target"),
        LayerHooks(tier, draft, model="draft"),
        cache.lock(cache.match(tokens)) as lease,
    ):
        pages = cache.allocate(4)
        (transaction,) = cache.reserve([(tokens, pages, lease)])
        tier.begin_forward([transaction], [lease])
        hidden = torch.ones(1, 8)
        for decoder in decoders:
            decoder.pages = list(pages)
            hidden = decoder(hidden)
        tier.end_forward()
        cache.insert(tokens, pages, lease, transaction)
        tier.engine.synchronize()
        assert tier.tick(0).committed == [transaction.id]
        assert tier.counts.hooked_layers == LAYOUT.layers
        assert tier.counts.all_layer_forwards.total() == 0
    # The slots of a fresh pool are taken from its beginning.
    found = {}
    for row, addresses in zip(LAYOUT.rows, host.addresses(np.arange(4)) - host.address, strict=True):
        stored = [memory[start : start + row.component.row_bytes] for start in addresses.tolist()]
        found[row.component.name, row.layer] = set(np.concatenate(stored).tolist())
    assert found == {
        ("target_kv", 0): {1},
        ("target_index", 0): {1},
        ("target_kv", 1): {2},
        ("target_kv", 2): {3},
        ("target_index", 2): {3},
        ("draft_kv", 0): {4},
        ("draft_index", 0): {4},
    }
    assert all(not decoder._forward_hooks for decoder in decoders)  # noqa: SLF001 - torch tells nobody
