"""The copies of SGLang, called as its host pools of layout `page_first` and `page_first_direct` call them.

Tokens are the items of KV, pages those of the indexer. Its host memory is laid over ours: all KV first,
then all index rows, a token's or a page's rows of all layers side by side.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cpkv.bench.copy.cuda_platform import CudaPlatform
from cpkv.bench.copy.figure import ABSENT
from cpkv.bench.copy.peers import PeerCopies, Work
from cpkv.bench.copy.run import said
from cpkv.bench.copy.settings import PAGE_SIZE
from cpkv.errors import CopyError

NAMES: Final = ("SGLang kernel", "SGLang JIT", "SGLang direct")
STAGED_PAGES: Final = 64
"""Pages in SGLang's staging buffer."""


class _Memory:
    """Both sides as SGLang's calls take them."""

    def __init__(self, platform: CudaPlatform, work: Work) -> None:
        torch = platform.torch
        layout, slots = work.pools.layout, work.pools.host.slots
        self.layers = layers = layout.layers
        kv, index = layout.component("target_kv"), layout.component("target_index")
        self.kv_bytes = kv.row_bytes // PAGE_SIZE
        self.index_bytes = index.row_bytes
        elements = self.kv_bytes // 2
        self.kv = [
            view.view(torch.bfloat16).view(-1, 1, elements) for view in work.pools.device.buffers["target_kv"].owners
        ]
        self.index = list(work.pools.device.buffers["target_index"].owners)
        self.kv_table, self.index_table = (
            torch.tensor([tensor.data_ptr() for tensor in tensors], dtype=torch.uint64, device="cuda")
            for tensors in (self.kv, self.index)
        )
        host, end = platform.host_tensor(), slots * layers * kv.row_bytes
        self.host_kv_bytes = host[:end]
        self.host_kv = self.host_kv_bytes.view(torch.bfloat16).view(slots * PAGE_SIZE, layers, 1, elements)
        self.host_kv_pages = self.host_kv_bytes.view(torch.bfloat16).view(slots, layers, PAGE_SIZE, 1, elements)
        self.host_index = host[end : end + slots * layers * index.row_bytes].view(slots, layers, 1, index.row_bytes)
        to = {"dtype": torch.int64, "device": "cuda"}
        self.pages, self.slots = (torch.tensor(ids.tolist(), **to) for ids in (work.pages, work.slots))
        self.page_tokens, self.slot_tokens = (
            torch.tensor(_tokens(ids).tolist(), **to) for ids in (work.pages, work.slots)
        )


def _tokens(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tokens of pages."""
    return (ids[:, None] * PAGE_SIZE + np.arange(PAGE_SIZE)).ravel()


class SglangCopies:
    """See `PeerCopies`.

    Args:
        platform: Where.
        name: One of `NAMES`.

    Raises:
        Exception: What importing it raises.
    """

    def __init__(self, platform: CudaPlatform, name: str) -> None:
        self.name = name
        self._platform = platform
        self._calls: Any = import_module(
            "sglang.kernels.ops.kvcache.hicache" if name == "SGLang JIT" else "sgl_kernel.kvcacheio"
        )
        self._ways: dict[str, Callable[[_Memory, bool], Callable[[], None]]] = {
            "SGLang kernel": self._kernel,
            "SGLang JIT": self._jit,
            "SGLang direct": self._direct,
        }

    def prepare(self, work: Work) -> Callable[[], None]:
        """See `PeerCopies`. Copies once, and compares a page.

        Raises:
            CopyError: What it has copied is not there.
        """
        torch, stream = self._platform.torch, self._platform.stream("copy")
        memory, to_host = _Memory(self._platform, work), work.direction == "to_host"
        call = self._ways[self.name](memory, to_host)

        def queue() -> None:
            with torch.cuda.stream(stream):
                call()

        torch.cuda.synchronize()
        queue()
        torch.cuda.synchronize()
        self._check(memory, work)
        return queue

    def _check(self, memory: _Memory, work: Work) -> None:
        torch, layer = self._platform.torch, memory.layers - 1
        page, slot = int(work.pages[-1]), int(work.slots[-1])
        tokens = slice(slot * PAGE_SIZE, (slot + 1) * PAGE_SIZE)
        is_direct = self.name == "SGLang direct"
        host_kv = memory.host_kv_pages[slot, layer] if is_direct else memory.host_kv[tokens, layer]
        pairs = (
            (host_kv, memory.kv[layer][page * PAGE_SIZE : (page + 1) * PAGE_SIZE]),
            (memory.host_index[slot, layer, 0], memory.index[layer][page]),
        )
        for on_host, on_device in pairs:
            # As bytes: random bits of bf16 are sometimes no number.
            both = [side.cpu().contiguous().view(torch.uint8).flatten() for side in (on_host, on_device)]
            if not torch.equal(*both):
                message = f"{self.name}: what was copied differs from what was to be copied"
                raise CopyError(message)

    def _kernel(self, memory: _Memory, to_host: bool) -> Callable[[], None]:  # noqa: FBT001 - which way
        calls = self._calls
        parts = (
            (memory.kv, memory.kv_table, memory.host_kv, memory.page_tokens, memory.slot_tokens, memory.kv_bytes),
            (memory.index, memory.index_table, memory.host_index, memory.pages, memory.slots, memory.index_bytes),
        )

        def back_up() -> None:
            for _, table, host, on_device, on_host, size in parts:
                calls.transfer_kv_all_layer_mla_lf_pf(
                    src_layers=table,
                    dst=host,
                    src_indices=on_device,
                    dst_indices=on_host,
                    item_size=size,
                    dst_layout_dim=memory.layers * size,
                    num_layers=memory.layers,
                )

        def restore() -> None:
            for layer in range(memory.layers):
                for tensors, _, host, on_device, on_host, size in parts:
                    calls.transfer_kv_per_layer_mla_pf_lf(
                        src=host,
                        dst=tensors[layer],
                        src_indices=on_host,
                        dst_indices=on_device,
                        layer_id=layer,
                        item_size=size,
                        src_layout_dim=memory.layers * size,
                    )

        return back_up if to_host else restore

    def _jit(self, memory: _Memory, to_host: bool) -> Callable[[], None]:  # noqa: FBT001 - which way
        calls, torch, layers = self._calls, self._platform.torch, memory.layers
        if not to_host:
            return self._jit_restore(memory)
        staged_kv = torch.empty(
            (STAGED_PAGES * PAGE_SIZE, layers, 1, memory.kv_bytes // 2), dtype=torch.bfloat16, device="cuda"
        )
        staged_index = torch.empty((STAGED_PAGES, layers, 1, memory.index_bytes), dtype=torch.uint8, device="cuda")
        # The thread reads where to: it queues the copies from the staging buffer.
        slot_tokens, slots = memory.slot_tokens.cpu(), memory.slots.cpu()

        def back_up() -> None:
            calls.transfer_hicache_all_layer_mla_staged_lf_pf(
                ptr_src=memory.kv_table,
                src_indices=memory.page_tokens,
                dst_indices=slot_tokens,
                staging=staged_kv,
                dst=memory.host_kv,
                page_size=PAGE_SIZE,
                element_size=memory.kv_bytes,
            )
            calls.transfer_hicache_all_layer_mla_staged_lf_pf(
                ptr_src=memory.index_table,
                src_indices=memory.pages,
                dst_indices=slots,
                staging=staged_index,
                dst=memory.host_index,
                page_size=1,
                element_size=memory.index_bytes,
            )

        return back_up

    def _jit_restore(self, memory: _Memory) -> Callable[[], None]:
        calls, kernels = self._calls, import_module("sgl_kernel.kvcacheio")
        by_layer = memory.host_kv.transpose(0, 1)

        def restore() -> None:
            for layer in range(memory.layers):
                calls.transfer_hicache_one_layer_mla(
                    cache_dst=memory.kv[layer],
                    cache_src=by_layer[layer],
                    indices_dst=memory.page_tokens,
                    indices_src=memory.slot_tokens,
                    element_dim=memory.kv_bytes // 2,
                )
                # SGLang has no such kernel for the indexer: it takes the other one.
                kernels.transfer_kv_per_layer_mla_pf_lf(
                    src=memory.host_index,
                    dst=memory.index[layer],
                    src_indices=memory.slots,
                    dst_indices=memory.pages,
                    layer_id=layer,
                    item_size=memory.index_bytes,
                    src_layout_dim=memory.layers * memory.index_bytes,
                )

        return restore

    def _direct(self, memory: _Memory, to_host: bool) -> Callable[[], None]:  # noqa: FBT001 - which way
        calls = self._calls
        parts = (
            (memory.kv, memory.host_kv_pages, memory.page_tokens.cpu(), memory.slot_tokens.cpu(), PAGE_SIZE),
            (memory.index, memory.host_index, memory.pages.cpu(), memory.slots.cpu(), 1),
        )

        def back_up() -> None:
            for tensors, host, on_device, on_host, page_size in parts:
                calls.transfer_kv_all_layer_direct_lf_pf(
                    src_ptrs=tensors,
                    dst_ptrs=[host],
                    src_indices=on_device,
                    dst_indices=on_host,
                    page_size=page_size,
                )

        def restore() -> None:
            for layer in range(memory.layers):
                for tensors, host, on_device, on_host, page_size in parts:
                    calls.transfer_kv_per_layer_direct_pf_lf(
                        src_ptrs=[host],
                        dst_ptrs=[tensors[layer]],
                        src_indices=on_host,
                        dst_indices=on_device,
                        layer_id=layer,
                        page_size=page_size,
                    )

        return back_up if to_host else restore


def sglang_peers(platform: CudaPlatform) -> tuple[list[PeerCopies], dict[str, str]]:
    """Return the ways of SGLang that are there, and why others are not."""
    peers: list[PeerCopies] = []
    missing: dict[str, str] = {}
    for name in NAMES:
        try:
            peers.append(SglangCopies(platform, name))
        except Exception as error:  # noqa: BLE001 - somebody else's code, at its import
            missing[name] = f"{ABSENT}: {said(error)}"
    return peers, missing
