"""The kernel on a GPU: device memory, pinned host memory, the same promises as in the interpreter."""

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings

import cpkv
from cpkv.kernels import HostSegments, LayerCopy, LayerRows, PagePairs, join_index_rows, split_index_rows
from cpkv.kernels.layer import INTERPRETED
from kernel_case import FORMATS, Case, Memory, cases

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.skipif(INTERPRETED, reason="TRITON_INTERPRET is set, which keeps kernels on the CPU"),
    pytest.mark.timeout(600),
]

DIRECTIONS = ["backup", "restore"]
ROW_BYTES = 656 * 64
FAR_PAGES = [51_150, 51_151, 102_300, 102_301]
"""Rows of 41,984 bytes: the last two below and above 2**31 bytes, then the same of 2**32."""
PAGES = 102_304


@pytest.mark.parametrize("direction", DIRECTIONS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(most_pages={1: 400, 16: 64, 64: 16}))
def test_all_bytes_are_what_the_reference_makes_of_them(direction, case):
    Memory(case, "cuda").check(direction)


def scattered(row_bytes, *, count=512, device_pages=600, segments=20, layers=3, **changes):
    """Pages and slots without any order, in the middle layer of three."""
    order = random.Random(count)
    slots = segments * 32
    starts = [sum(row_bytes[:number]) * layers for number in range(len(row_bytes))]
    values = {
        "row_bytes": row_bytes,
        "offsets": [start + row for start, row in zip(starts, row_bytes, strict=True)],
        "gaps": [0] * len(row_bytes),
        "shifts": [0] * len(row_bytes),
        "slot_bytes": sum(row_bytes) * layers,
        "segment_pages": 32,
        "segments": segments,
        "device_pages": device_pages,
        "pairs": list(zip(order.sample(range(device_pages), count), order.sample(range(slots), count), strict=True)),
    }
    return Case(**values | changes)


@pytest.mark.parametrize("name", FORMATS)
def test_512_scattered_pages(name):
    memory = Memory(scattered([64 * token for token in FORMATS[name]]), "cuda")
    layer = memory.layer()
    for blocks in (1, 2, 4, 8):
        for direction in DIRECTIONS:
            memory.arenas[-1].bitwise_xor_(0xFF)  # otherwise there would be nothing left to copy
            memory.check(direction, layer, blocks=blocks)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("name", FORMATS)
def test_small_pages(name, page_size, direction):
    case = scattered([page_size * token for token in FORMATS[name]], count=5_000, device_pages=5_500, segments=200)
    Memory(case, "cuda").check(direction)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("word_bytes", [16, 8, 4, 1])
def test_each_word(word_bytes, direction):
    memory = Memory(scattered([8_448], count=40), "cuda")
    memory.check(direction, memory.layer(word_bytes=word_bytes))


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("shift", [1, 4, 8])
def test_buffers_that_are_not_aligned(shift, direction):
    memory = Memory(scattered([8_448], count=40, shifts=[shift], host_shift=shift), "cuda")
    assert memory.layer().words == (shift,)
    memory.check(direction)


def test_the_current_stream_is_used():
    """What is queued before on that stream is seen, and nothing waits for the default stream."""
    memory = Memory(scattered([8_448]), "cuda")
    layer = memory.layer()
    layer.compile()
    memory.pairs()  # so that the pinned memory for the upload is there
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)
    with torch.cuda.stream(stream):
        pairs = memory.pairs()
        for buffer in memory.views(memory.arenas)[:-1]:
            buffer.fill_(7)
        layer.backup(pairs)
    stream.synchronize()
    assert not torch.cuda.default_stream().query()
    pool = memory.views(memory.arenas)[-1]
    for _, slot in memory.case.pairs:
        place = memory.host.row_address(slot, memory.rows[0]) - memory.host.base
        assert pool[place : place + 8_448].eq(7).all()
    torch.cuda.synchronize()


# --- 64 bits ---


def run_far(buffer, pool, layer, pairs):
    """Copy to the host and back, looking at places that Python's integers have computed."""
    host, (rows,) = layer.host, layer.rows
    pages, slots = zip(*pairs, strict=True)
    checked = PagePairs(pages, slots, device_pages=rows.pages, host_slots=host.slots)
    contents = torch.randint(1, 256, (len(pairs), rows.row_bytes), dtype=torch.uint8)
    places = [host.row_address(slot, rows) - host.base for slot in slots]
    for content, page in zip(contents, pages, strict=True):
        buffer[page].copy_(content)
    layer.backup(checked)
    torch.cuda.synchronize()
    for content, place in zip(contents, places, strict=True):
        assert torch.equal(pool[place : place + rows.row_bytes], content)
    buffer.zero_()
    layer.restore(checked)
    torch.cuda.synchronize()
    for content, page in zip(contents, pages, strict=True):
        assert torch.equal(buffer[page].cpu(), content)
    assert buffer.amax(1).nonzero().flatten().tolist() == sorted(pages)
    pool_on_gpu = pool.cuda().view(-1, rows.row_bytes)
    assert pool_on_gpu.amax(1).nonzero().flatten().tolist() == sorted(place // rows.row_bytes for place in places)


@pytest.mark.parametrize("word_bytes", [16, 1])
def test_device_pages_beyond_32_bits(word_bytes):
    buffer = torch.zeros(PAGES, ROW_BYTES, dtype=torch.uint8, device="cuda")
    pool = torch.zeros(8 * ROW_BYTES, dtype=torch.uint8).pin_memory()
    host = HostSegments(base=pool.data_ptr(), slots=8, segment_pages=4, slot_bytes=ROW_BYTES)
    layer = LayerCopy(host, [LayerRows.of(buffer, offset_bytes=0)], word_bytes=word_bytes)
    run_far(buffer, pool, layer, list(zip(FAR_PAGES, [5, 0, 7, 2], strict=True)))


@pytest.fixture(scope="module")
def far_pool():
    return torch.zeros(PAGES * ROW_BYTES, dtype=torch.uint8, pin_memory=True)


@pytest.mark.parametrize("segment_pages", [1, 32, PAGES])
def test_slots_beyond_32_bits(far_pool, segment_pages):
    far_pool.zero_()
    buffer = torch.zeros(8, ROW_BYTES, dtype=torch.uint8, device="cuda")
    host = HostSegments(base=far_pool.data_ptr(), slots=PAGES, segment_pages=segment_pages, slot_bytes=ROW_BYTES)
    layer = LayerCopy(host, [LayerRows.of(buffer, offset_bytes=0)])
    run_far(buffer, far_pool, layer, list(zip([3, 0, 7, 5], FAR_PAGES, strict=True)))


def test_more_words_than_32_bits_count(far_pool):
    """One launch over all of 4.3 GB, byte by byte: rows, words and tiles are counted beyond 2**32."""
    buffer = torch.randint(0, 256, (PAGES, ROW_BYTES), dtype=torch.uint8, device="cuda")
    host = HostSegments(base=far_pool.data_ptr(), slots=PAGES, segment_pages=32, slot_bytes=ROW_BYTES)
    layer = LayerCopy(host, [LayerRows.of(buffer, offset_bytes=0)], word_bytes=1)
    pages, slots = torch.randperm(PAGES), torch.randperm(PAGES)
    pairs = PagePairs(pages, slots, device_pages=PAGES, host_slots=PAGES)
    layer.backup(pairs, blocks=528)
    torch.cuda.synchronize()
    in_slots = far_pool.cuda().view(PAGES, ROW_BYTES)
    assert torch.equal(in_slots[slots.cuda()], buffer[pages.cuda()])
    before = buffer.clone()
    buffer.zero_()
    layer.restore(pairs, blocks=528)
    assert torch.equal(buffer, before)


# --- What the calls take ---


def test_ids_on_the_gpu_are_taken_as_they_are():
    memory = Memory(scattered([8_448]), "cuda")
    pages, slots = (torch.tensor(ids, device="cuda") for ids in zip(*memory.case.pairs, strict=True))
    limits = {"device_pages": memory.case.device_pages, "host_slots": memory.case.host_slots}
    pairs = PagePairs(pages, slots, **limits)
    assert pairs.pages.data_ptr() == pages.data_ptr()
    memory.pairs = lambda: pairs
    memory.check("backup")
    with pytest.raises(cpkv.InputTypeError, match="want contiguous int64"):
        PagePairs(pages.int(), slots, **limits)
    with pytest.raises(cpkv.InputTypeError, match="want contiguous int64"):
        PagePairs(pages[::2], slots[::2], **limits)
    with pytest.raises(cpkv.InputError, match="512 pages and 511 slots"):
        PagePairs(pages, slots[1:], **limits)
    with pytest.raises(cpkv.InputError, match="want both there or both on the CPU"):
        PagePairs(pages, slots.cpu(), **limits)


def test_pools_of_the_gpu_take_no_pairs_of_the_cpu():
    memory = Memory(scattered([8_448]), "cuda")
    with pytest.raises(cpkv.UsageError, match="the pairs are on cpu, want cuda:0"):
        memory.layer().backup(PagePairs([0], [0], device_pages=1, host_slots=1, device="cpu"))
    with pytest.raises(cpkv.UsageError, match="does not run on cpu, want cuda"):
        LayerCopy(memory.host, memory.rows, device="cpu")


def test_every_key_keeps_its_scale():
    """64-token index pages to the host and back, looked at as keys and scales."""
    pages = 40
    buffer = torch.randint(0, 256, (pages, 8_448), dtype=torch.uint8, device="cuda")
    scales = torch.rand(pages, 64, device="cuda")
    split_index_rows(buffer).scales.copy_(scales)
    keys = split_index_rows(buffer, key_dtype=torch.uint8).keys.clone()
    pool = torch.zeros(64 * 8_448, dtype=torch.uint8).pin_memory()
    host = HostSegments(base=pool.data_ptr(), slots=64, segment_pages=32, slot_bytes=8_448)
    layer = LayerCopy(host, [LayerRows.of(buffer, offset_bytes=0)])
    pairs = PagePairs(range(pages), random.Random(1).sample(range(64), pages), device_pages=pages, host_slots=64)
    layer.backup(pairs)
    torch.cuda.synchronize()
    buffer.zero_()
    layer.restore(pairs)
    seen = split_index_rows(buffer, key_dtype=torch.uint8)
    assert torch.equal(seen.keys, keys)
    assert torch.equal(seen.scales, scales)
    assert torch.equal(join_index_rows(*seen), buffer)
