"""Pools of random bytes for the tests of the kernels, on the CPU and on a GPU.

A case says what lies where; `Memory` makes it; `Memory.check` copies with the kernel, copies clones with
the reference, and compares every byte there is: rows, gaps between rows, other layers, guards.
"""

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from cpkv.kernels import HostSegments, LayerCopy, LayerRows, PagePairs, reference

GUARD = 256
FORMATS = {
    "mla bf16": [576 * 2, 128 + 4],
    "mla fp8 packed": [656, 128 + 4],
    "mla fp8 plain": [576, 128 + 4],
    "mla bf16 without an indexer": [576 * 2],
    "k and v": [8 * 128 * 2, 8 * 128 * 2],
    "k and v of odd heads": [3 * 17, 3 * 19],
}
"""Bytes of a token in each buffer of a layer."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What lies where; lists have one element for each of the layer's buffers."""

    row_bytes: list[int]
    offsets: list[int]
    gaps: list[int]
    shifts: list[int]
    slot_bytes: int
    host_shift: int = 0
    segment_pages: int
    segments: int
    device_pages: int
    pairs: list[tuple[int, int]]
    seed: int = 0
    blocks: int = 2

    @property
    def host_slots(self):
        return self.segments * self.segment_pages


@dataclass
class Memory:
    """The bytes of a case."""

    case: Case
    device: str = "cpu"
    arenas: list[torch.Tensor] = field(init=False)
    """The device buffers, then the pool, each with its guards."""

    def __post_init__(self):
        case = self.case
        generator = torch.Generator().manual_seed(case.seed)
        sizes = [case.device_pages * (row + gap) for row, gap in zip(case.row_bytes, case.gaps, strict=True)]
        self.shifts = [*case.shifts, case.host_shift]
        self.sizes = [*sizes, case.host_slots * case.slot_bytes]
        self.arenas = [
            torch.randint(0, 256, (GUARD + shift + size + GUARD,), dtype=torch.uint8, generator=generator)
            for shift, size in zip(self.shifts, self.sizes, strict=True)
        ]
        if self.device != "cpu":
            self.arenas = [arena.to(self.device) for arena in self.arenas[:-1]] + [self.arenas[-1].pin_memory()]
        *buffers, pool = self.views(self.arenas)
        self.host = HostSegments(
            base=pool.data_ptr(),
            slots=case.host_slots,
            segment_pages=case.segment_pages,
            slot_bytes=case.slot_bytes,
        )
        self.rows = [
            LayerRows(
                base=buffer.data_ptr(),
                pages=case.device_pages,
                stride_bytes=buffer.stride(0),
                row_bytes=row,
                offset_bytes=offset,
            )
            for buffer, row, offset in zip(buffers, case.row_bytes, case.offsets, strict=True)
        ]

    def views(self, arenas):
        """The parts of the arenas without guards, device buffers as (pages, stride)."""
        flat = [
            arena[GUARD + shift :][:size] for arena, shift, size in zip(arenas, self.shifts, self.sizes, strict=True)
        ]
        return [*(buffer.view(self.case.device_pages, -1) for buffer in flat[:-1]), flat[-1]]

    def pairs(self):
        pages, slots = zip(*self.case.pairs, strict=True) if self.case.pairs else ((), ())
        limits = {"device_pages": self.case.device_pages, "host_slots": self.case.host_slots}
        return PagePairs(pages, slots, device=self.device, **limits)

    def layer(self, **options):
        return LayerCopy(self.host, self.rows, device=self.device, **options)

    def copied(self):
        """All bytes as they are now, on the CPU."""
        if self.device != "cpu":
            torch.cuda.synchronize()
        return [arena.to("cpu", copy=True) for arena in self.arenas]

    def check(self, direction, layer=None, *, blocks=None):
        """Copy in a direction and see that all bytes are what the reference makes of them."""
        before = self.copied()
        expected = [arena.clone() for arena in before]
        *buffers, pool = self.views(expected)
        for buffer, rows in zip(buffers, self.rows, strict=True):
            getattr(reference, direction)(buffer, pool, self.host, rows, self.case.pairs)
        getattr(layer or self.layer(), direction)(self.pairs(), blocks=blocks or self.case.blocks)
        after = self.copied()
        source = slice(None, -1) if direction == "backup" else slice(-1, None)
        for seen, wanted in zip(after[source], before[source], strict=True):
            assert torch.equal(seen, wanted), "the source has changed"
        for seen, wanted in zip(after, expected, strict=True):
            different = (seen != wanted).nonzero()
            assert not len(different), f"{len(different)} bytes differ, the first at {different[0].item()}"


@st.composite
def cases(draw, most_pages={1: 40, 16: 8, 64: 3}, layers=3):  # noqa: B006 - read only
    """Any format, page size, layer, segment length, gap and alignment; any pages to any slots."""
    page_size = draw(st.sampled_from(sorted(most_pages)))
    row_bytes = [page_size * token for token in FORMATS[draw(st.sampled_from(sorted(FORMATS)))]]
    # A slot has all layers of a buffer side by side. Some layers lack the last one.
    layer_count = draw(st.integers(1, layers))
    layer = draw(st.integers(0, layer_count - 1))
    without_last = draw(st.sets(st.integers(0, layer_count - 1))) - {layer} if len(row_bytes) > 1 else set()
    # Bytes one at a time are slow to interpret: only small pages are at odd addresses.
    uneven = [0, 0, 16, 8, 4, *([1, 7] if page_size == 1 else [])]
    start, offsets = draw(st.sampled_from(uneven)), []
    for number, row in enumerate(row_bytes):
        owners = [each for each in range(layer_count) if number < len(row_bytes) - 1 or each not in without_last]
        offsets.append(start + owners.index(layer) * row)
        start += len(owners) * row
    segment_pages = draw(st.integers(1, 5))
    segments = draw(st.integers(1, 4))
    device_pages = draw(st.integers(1, most_pages[page_size]))
    count = draw(st.integers(0, min(device_pages, segments * segment_pages)))
    pages = draw(st.permutations(range(device_pages)))[:count]
    slots = draw(st.permutations(range(segments * segment_pages)))[:count]
    return Case(
        row_bytes=row_bytes,
        offsets=offsets,
        gaps=[draw(st.sampled_from(uneven)) for _ in row_bytes],
        shifts=[draw(st.sampled_from(uneven)) for _ in row_bytes],
        slot_bytes=start + draw(st.sampled_from(uneven)),
        host_shift=draw(st.sampled_from(uneven)),
        segment_pages=segment_pages,
        segments=segments,
        device_pages=device_pages,
        pairs=list(zip(pages, slots, strict=True)),
        seed=draw(st.integers(0, 2**32 - 1)),
        blocks=draw(st.sampled_from([1, 2, 4, 8])),
    )
