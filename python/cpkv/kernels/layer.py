"""The copies of one layer: what is fixed is prepared once, what remains is one launch.

Owns the table of addresses on the device. Promises that a launch reads and writes nothing but the rows
of its pairs. It allocates nothing per launch, synchronises nothing, and runs on torch's current stream;
whoever launches orders that stream behind the forward, and keeps pools and pairs until it has passed.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise

import torch
import triton

from cpkv.errors import InputError, InputTypeError, UsageError
from cpkv.kernels.layout import HostSegments, LayerRows, refuse
from cpkv.kernels.pairs import PagePairs
from cpkv.kernels.rows import TILE_WORDS, WARPS, copy_rows

WORDS = (16, 8, 4, 1)
"""Bytes that a thread moves at once, widest first."""
INTERPRETED = not isinstance(copy_rows, triton.JITFunction)
"""TRITON_INTERPRET=1 runs the kernel on the CPU, for tests."""


class LayerCopy:
    """Copies of one layer between its device buffers and the host pool, all components in one launch."""

    def __init__(
        self,
        host: HostSegments,
        rows: Sequence[LayerRows],
        *,
        device: "torch.device | str" = "cuda",
        word_bytes: int | None = None,
    ) -> None:
        """Prepare the table on the device. Make a new one when a pool has moved.

        Args:
            host: The host pool. It is pinned and mapped, so that the GPU reads and writes it.
            rows: What the layer has: KV, index keys with their scales, K, V.
            device: Where the buffers are; the CPU under TRITON_INTERPRET=1.
            word_bytes: 16, 8, 4 or 1; the widest that addresses, strides and rows are multiples of by default.

        Raises:
            ConfigError: Rows do not fit into a slot, overlap in it, or are no multiples of the word.
            UsageError: The kernel does not run on this device.
        """
        self.device = torch.device(device)
        if self.device.type != ("cpu" if INTERPRETED else "cuda"):
            wanted = "cpu, as TRITON_INTERPRET is set" if INTERPRETED else "cuda, or TRITON_INTERPRET=1 for tests"
            message = f"the kernel does not run on {self.device}, want {wanted}"
            raise UsageError(message)
        refuse("LayerCopy", [*_misplaced(host, rows), *_unfit_words(host, rows, word_bytes)])
        self.host = host
        self.rows = tuple(rows)
        self.words = tuple(word_bytes or widest_word(host, each) for each in rows)
        """Bytes that a thread moves at once, for each of `rows`."""
        self._shapes = tuple((each.row_bytes, word) for each, word in zip(rows, self.words, strict=True))
        table = [
            [each.base, each.stride_bytes, host.base + each.offset_bytes * host.segment_pages, host.segment_bytes]
            for each in rows
        ]
        self._table = torch.tensor(table, dtype=torch.int64, device=self.device)

    def backup(self, pairs: PagePairs, *, blocks: int = 4) -> None:
        """Queue the copy of every pair's page to its slot.

        Args:
            pairs: Pages and slots.
            blocks: Programs that run at most; few leave multiprocessors to the forward.

        Raises:
            UsageError: The pairs were checked for larger pools, or are on another device.
            InputError: No blocks.
        """
        self._launch(pairs, blocks, to_host=True)

    def restore(self, pairs: PagePairs, *, blocks: int = 4) -> None:
        """Queue the copy of every pair's slot to its page; arguments and errors as for `backup`."""
        self._launch(pairs, blocks, to_host=False)

    def compile(self) -> None:
        """Compile both directions now, which takes a second or two, and not at the first copy."""
        none = torch.empty(0, dtype=torch.int64, device=self.device)
        for to_host in (True, False):
            self._run(none, none, 0, 1, to_host=to_host)

    def _launch(self, pairs: PagePairs, blocks: int, *, to_host: bool) -> None:
        if type(blocks) is not int:
            message = f"blocks is {blocks!r}, want an integer"
            raise InputTypeError(message)
        if blocks < 1:
            message = f"blocks is {blocks}, want 1 or more"
            raise InputError(message)
        if pairs.pages.device != self._table.device:
            message = f"the pairs are on {pairs.pages.device}, want {self._table.device}"
            raise UsageError(message)
        pages = min(each.pages for each in self.rows)
        if pairs.device_pages > pages or pairs.host_slots > self.host.slots:
            message = (
                f"the pairs were checked for {pairs.device_pages} pages and {pairs.host_slots} slots, "
                f"want at most the {pages} and {self.host.slots} that are here"
            )
            raise UsageError(message)
        if len(pairs):
            self._run(pairs.pages, pairs.slots, len(pairs), blocks, to_host=to_host)

    def _run(self, pages: torch.Tensor, slots: torch.Tensor, count: int, blocks: int, *, to_host: bool) -> None:
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            copy_rows[(blocks,)](
                self._table,
                pages,
                slots,
                count,
                to_host=to_host,
                shapes=self._shapes,
                segment_pages=self.host.segment_pages,
                fields=self._table.shape[1],
                tile_words=TILE_WORDS,
                num_warps=WARPS,
            )


def steps(host: HostSegments, rows: LayerRows) -> dict[str, int]:
    """Name everything that is added up to an address: a word has to divide all of it."""
    return {
        "the address on the device": rows.base,
        "stride_bytes": rows.stride_bytes,
        "row_bytes": rows.row_bytes,
        "the address on the host": host.base + rows.offset_bytes * host.segment_pages,
        "the bytes of a segment": host.segment_bytes,
    }


def widest_word(host: HostSegments, rows: LayerRows) -> int:
    """Find the widest word that every address and every row is a multiple of."""
    divisor = math.gcd(*steps(host, rows).values())
    return next(word for word in WORDS if divisor % word == 0)


def _unfit_words(host: HostSegments, rows: Sequence[LayerRows], word_bytes: int | None) -> list[str]:
    if word_bytes is None:
        return []
    if word_bytes not in WORDS:
        return [f"word_bytes is {word_bytes}, want one of {', '.join(map(str, WORDS))}"]
    return [
        f"{name} of rows {number} is {value}, want a multiple of {word_bytes}"
        for number, each in enumerate(rows)
        for name, value in steps(host, each).items()
        if value % word_bytes
    ]


def _misplaced(host: HostSegments, rows: Sequence[LayerRows]) -> list[str]:
    places = sorted((each.offset_bytes, each.offset_bytes + each.row_bytes) for each in rows)
    conflicts = [] if places else ["no rows, want one or more"]
    conflicts += [
        f"bytes {start} to {end} of a slot of {host.slot_bytes}" for start, end in places if end > host.slot_bytes
    ]
    conflicts += [
        f"rows overlap in a slot: bytes {first[0]} to {first[1]} and {second[0]} to {second[1]}"
        for first, second in pairwise(places)
        if first[1] > second[0]
    ]
    return conflicts
