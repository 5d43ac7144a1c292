"""The kernel itself, run by Triton's interpreter on the CPU, against the reference."""

import mmap
from tempfile import TemporaryFile

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from cpkv.kernels import HostSegments, LayerCopy, LayerRows, PagePairs
from cpkv.kernels.layer import INTERPRETED, WORDS
from cpkv.kernels.rows import TILE_WORDS
from kernel_case import Case, Memory, cases

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 is not set: see make test-torch")

random_cases = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DIRECTIONS = ["backup", "restore"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("direction", DIRECTIONS)
@random_cases
@given(cases())
def test_all_bytes_are_what_the_reference_makes_of_them(direction, case):
    Memory(case).check(direction)


@pytest.mark.timeout(120)
@settings(random_cases, max_examples=20)
@given(cases())
def test_what_went_to_the_host_comes_back(case):
    memory = Memory(case)
    layer = memory.layer()
    before = memory.copied()
    layer.backup(memory.pairs(), blocks=case.blocks)
    for buffer, rows in zip(memory.views(memory.arenas)[:-1], memory.rows, strict=True):
        for page, _ in case.pairs:
            buffer[page, : rows.row_bytes] = 0
    layer.restore(memory.pairs(), blocks=case.blocks)
    for seen, wanted in zip(memory.arenas[:-1], before[:-1], strict=True):
        assert torch.equal(seen, wanted)


def small(row_bytes=4 * 48, *, pages=8, **changes):
    """A case that every word fits."""
    values = {
        "row_bytes": [row_bytes],
        "offsets": [64],
        "gaps": [32],
        "shifts": [0],
        "slot_bytes": row_bytes + 128,
        "segment_pages": 4,
        "segments": 2,
        "device_pages": pages,
        "pairs": [(page, (page * 3 + 1) % 8) for page in range(pages)],
    }
    return Case(**values | changes)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("word_bytes", WORDS)
def test_each_word(word_bytes, direction):
    memory = Memory(small())
    layer = memory.layer(word_bytes=word_bytes)
    assert layer.words == (word_bytes,)
    memory.check(direction, layer)


@pytest.mark.parametrize(
    ("change", "word_bytes"),
    [
        ({}, 16),
        ({"shifts": [8]}, 8),
        ({"gaps": [40]}, 8),
        ({"offsets": [66]}, 8),
        ({"offsets": [66], "segment_pages": 8, "segments": 1}, 16),
        ({"slot_bytes": 4 * 48 + 129, "offsets": [66]}, 4),
        ({"host_shift": 4}, 4),
        ({"row_bytes": 4 * 48 - 4, "gaps": [36]}, 4),
        ({"shifts": [2]}, 1),
    ],
)
def test_the_widest_word_that_fits_is_taken(change, word_bytes):
    memory = Memory(small(**change))
    layer = memory.layer()
    assert layer.words == (word_bytes,)
    memory.check("backup", layer)
    memory.check("restore", layer)


@pytest.mark.parametrize("blocks", [1, 2, 3, 100])
@pytest.mark.parametrize("words", [TILE_WORDS - 1, TILE_WORDS, TILE_WORDS + 1, 2 * TILE_WORDS + 5])
def test_rows_about_as_long_as_a_tile(words, blocks):
    memory = Memory(small(words * 16, pages=3, blocks=blocks))
    memory.check("backup")
    memory.check("restore")


def test_segments_of_one_slot_and_of_all_slots():
    for segment_pages, segments in ((1, 8), (8, 1)):
        memory = Memory(small(segment_pages=segment_pages, segments=segments))
        memory.check("backup")
        memory.check("restore")


# --- 64 bits ---
# Files of 4 GiB and more that are holes but for what is touched.

ROW_BYTES = 656 * 64
FAR_PAGES = [51_150, 51_151, 102_300, 102_301]
"""Rows of 41,984 bytes: the last two below and above 2**31 bytes, then the same of 2**32."""


def sparse(size):
    with TemporaryFile() as file:
        file.truncate(size)
        return torch.frombuffer(mmap.mmap(file.fileno(), size), dtype=torch.uint8)


def run_far(buffer, pool, host, rows, pairs):
    """Copy to the host and back, looking at addresses that Python's integers have computed."""
    layer = LayerCopy(host, [rows], device="cpu")
    pages, slots = zip(*pairs, strict=True)
    checked = PagePairs(pages, slots, device_pages=rows.pages, host_slots=host.slots, device="cpu")
    contents = torch.randint(1, 256, (len(pairs), rows.row_bytes), dtype=torch.uint8)
    places = [(page * rows.stride_bytes, host.row_address(slot, rows) - host.base) for page, slot in pairs]
    for content, (on_device, _) in zip(contents, places, strict=True):
        buffer[on_device : on_device + rows.row_bytes] = content
    layer.backup(checked)
    for content, (on_device, on_host) in zip(contents, places, strict=True):
        assert torch.equal(pool[on_host : on_host + rows.row_bytes], content)
        buffer[on_device : on_device + rows.row_bytes] = 0
    layer.restore(checked)
    for content, (on_device, _) in zip(contents, places, strict=True):
        assert torch.equal(buffer[on_device : on_device + rows.row_bytes], content)


def test_device_pages_beyond_32_bits():
    pages = FAR_PAGES[-1] + 1
    buffer, pool = sparse(pages * ROW_BYTES), sparse(8 * ROW_BYTES)
    host = HostSegments(base=pool.data_ptr(), slots=8, segment_pages=4, slot_bytes=ROW_BYTES)
    rows = LayerRows(base=buffer.data_ptr(), pages=pages, stride_bytes=ROW_BYTES, row_bytes=ROW_BYTES, offset_bytes=0)
    run_far(buffer, pool, host, rows, list(zip(FAR_PAGES, [5, 0, 7, 2], strict=True)))


@pytest.mark.parametrize("segment_pages", [1, 2, 32, 102_304])
def test_slots_beyond_32_bits(segment_pages):
    """Page-first, two kinds of segments, layer-first: the far part is the segment, or the column."""
    slots = 102_304
    buffer, pool = sparse(8 * ROW_BYTES), sparse(slots * ROW_BYTES)
    host = HostSegments(base=pool.data_ptr(), slots=slots, segment_pages=segment_pages, slot_bytes=ROW_BYTES)
    rows = LayerRows(base=buffer.data_ptr(), pages=8, stride_bytes=ROW_BYTES, row_bytes=ROW_BYTES, offset_bytes=0)
    run_far(buffer, pool, host, rows, list(zip([3, 0, 7, 5], FAR_PAGES, strict=True)))


def test_offsets_beyond_32_bits():
    """61 layers of 2,048 slots, layer-first: the last layer begins beyond 2**32."""
    slots, layers = 2_048, 61
    buffer, pool = sparse(8 * ROW_BYTES), sparse(slots * layers * ROW_BYTES)
    host = HostSegments(base=pool.data_ptr(), slots=slots, segment_pages=slots, slot_bytes=layers * ROW_BYTES)
    rows = LayerRows(
        base=buffer.data_ptr(), pages=8, stride_bytes=ROW_BYTES, row_bytes=ROW_BYTES, offset_bytes=60 * ROW_BYTES
    )
    run_far(buffer, pool, host, rows, [(1, 0), (6, 2_047), (0, 1_024)])
