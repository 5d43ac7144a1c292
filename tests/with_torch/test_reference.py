"""The reference against a drawing and against the formula, byte by byte."""

import torch
from hypothesis import given

from cpkv.kernels import HostSegments, LayerRows, reference
from kernel_case import Memory, cases


def test_a_segment_as_it_is_drawn():
    """Two slots a segment; a slot has rows a (2 bytes) and b (1 byte); pages 0 and 1 go to slots 3 and 0."""
    host = HostSegments(base=0, slots=4, segment_pages=2, slot_bytes=3)
    a = LayerRows(base=0, pages=2, stride_bytes=3, row_bytes=2, offset_bytes=0)
    b = LayerRows(base=0, pages=2, stride_bytes=1, row_bytes=1, offset_bytes=2)
    buffer_a = torch.frombuffer(bytearray(b"AB-CD-"), dtype=torch.uint8).view(2, 3)
    buffer_b = torch.frombuffer(bytearray(b"xy"), dtype=torch.uint8).view(2, 1)
    pool = torch.frombuffer(bytearray(b"." * 12), dtype=torch.uint8)
    for buffer, rows in ((buffer_a, a), (buffer_b, b)):
        reference.backup(buffer, pool, host, rows, [(0, 3), (1, 0)])
    #                                 slots 0 and 1         slots 2 and 3
    assert bytes(pool.tolist()) == b"CD..y." + b"..AB.x"
    buffer_a.fill_(ord("?"))
    reference.restore(buffer_a, pool, host, a, [(0, 0), (1, 3)])
    assert bytes(buffer_a.flatten().tolist()) == b"CD?AB?"


@given(cases(most_pages={1: 8}))
def test_rows_lie_where_the_formula_says(case):
    memory = Memory(case)
    *_, pool = memory.views(memory.arenas)
    host = memory.host
    for rows, row_bytes, offset in zip(memory.rows, case.row_bytes, case.offsets, strict=True):
        for slot in range(case.host_slots):
            segment, column = slot // case.segment_pages, slot % case.segment_pages
            place = segment * case.segment_pages * case.slot_bytes + offset * case.segment_pages + column * row_bytes
            assert reference.host_row(pool, host, rows, slot).data_ptr() == host.base + place
            assert host.row_address(slot, rows) == host.base + place
