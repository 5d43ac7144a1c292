"""What is refused before anything is launched, and that every conflict is told."""

import re

import pytest
import torch

import cpkv
from cpkv.kernels import HostSegments, LayerCopy, LayerRows
from cpkv.kernels.layer import INTERPRETED
from kernel_case import Case, Memory

HOST = {"base": 0, "slots": 8, "segment_pages": 4, "slot_bytes": 100}
ROWS = {"base": 0, "pages": 8, "stride_bytes": 48, "row_bytes": 48, "offset_bytes": 0}
interpreted = pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 is not set: see make test-torch")


def raises(error, *texts):
    return pytest.raises(error, match=".*".join(map(re.escape, texts)))


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"base": -1}, ["base is -1, want 0 or more"]),
        ({"slots": 0, "slot_bytes": 0}, ["slots is 0, want 1 or more", "slot_bytes is 0"]),
        ({"slots": 9}, ["slots is 9, want whole segments of 4"]),
        ({"slot_bytes": 1 << 61}, ["end beyond 2**63"]),
    ],
)
def test_what_is_no_host_pool(change, texts):
    with raises(cpkv.ConfigError, "HostSegments: ", *texts):
        HostSegments(**HOST | change)


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        ({"pages": 0, "offset_bytes": -1}, ["pages is 0, want 1 or more", "offset_bytes is -1, want 0 or more"]),
        ({"stride_bytes": 47}, ["stride_bytes is 47, want the 48 of a row or more"]),
        ({"row_bytes": (1 << 30) + 1, "stride_bytes": 1 << 31}, ["row_bytes is 1073741825, want 1073741824 or less"]),
        ({"stride_bytes": 1 << 61}, ["end beyond 2**63"]),
    ],
)
def test_what_are_no_rows(change, texts):
    with raises(cpkv.ConfigError, "LayerRows: ", *texts):
        LayerRows(**ROWS | change)


@pytest.mark.parametrize("value", [1.0, True, "1", None])
def test_what_is_no_integer(value):
    with raises(cpkv.InputTypeError, "HostSegments wants integers, not slots ", repr(value)):
        HostSegments(**HOST | {"slots": value})
    with raises(cpkv.InputTypeError, "LayerRows wants integers, not pages ", repr(value)):
        LayerRows(**ROWS | {"pages": value})


def test_rows_of_a_tensor():
    buffer = torch.empty(10, 64, 1, 576, dtype=torch.bfloat16)
    rows = LayerRows.of(buffer, offset_bytes=5)
    assert rows == LayerRows(base=buffer.data_ptr(), pages=10, stride_bytes=73_728, row_bytes=73_728, offset_bytes=5)
    assert LayerRows.of(buffer[3:7:2], offset_bytes=0) == LayerRows(
        base=buffer[3].data_ptr(), pages=2, stride_bytes=147_456, row_bytes=73_728, offset_bytes=0
    )
    assert rows.page_address(9) == buffer[9].data_ptr()
    for wrong in (buffer[..., :512], buffer[0, 0, 0], buffer.transpose(1, 3)):
        with raises(cpkv.ConfigError, "want pages without gaps inside"):
            LayerRows.of(wrong, offset_bytes=0)


@interpreted
def test_rows_that_do_not_fit_into_a_slot():
    host = HostSegments(**HOST)
    first, second = LayerRows(**ROWS), LayerRows(**ROWS | {"offset_bytes": 47, "row_bytes": 3})
    with raises(cpkv.ConfigError, "bytes 60 to 108 of a slot of 100"):
        LayerCopy(host, [first, LayerRows(**ROWS | {"offset_bytes": 60})], device="cpu")
    with raises(cpkv.ConfigError, "rows overlap in a slot: bytes 0 to 48 and 47 to 50"):
        LayerCopy(host, [second, first], device="cpu")
    with raises(cpkv.ConfigError, "no rows"):
        LayerCopy(host, [], device="cpu")


@interpreted
def test_rows_that_are_no_multiple_of_the_word():
    host = HostSegments(**HOST)
    with raises(
        cpkv.ConfigError,
        "stride_bytes of rows 0 is 52, want a multiple of 16",
        "row_bytes of rows 0 is 44, want a multiple of 16",
        "the address on the host of rows 1 is 200, want a multiple of 16",
    ):
        LayerCopy(
            host,
            [
                LayerRows(**ROWS | {"row_bytes": 44, "stride_bytes": 52}),
                LayerRows(**ROWS | {"row_bytes": 48, "offset_bytes": 50}),
            ],
            device="cpu",
            word_bytes=16,
        )
    with raises(cpkv.ConfigError, "word_bytes is 2, want one of 16, 8, 4, 1"):
        LayerCopy(host, [LayerRows(**ROWS)], device="cpu", word_bytes=2)


def a_case(**changes):
    values = {
        "row_bytes": [48],
        "offsets": [0],
        "gaps": [0],
        "shifts": [0],
        "slot_bytes": 48,
        "segment_pages": 2,
        "segments": 2,
        "device_pages": 4,
        "pairs": [(1, 2)],
    }
    return Case(**values | changes)


@interpreted
@pytest.mark.parametrize("direction", ["backup", "restore"])
def test_what_is_not_launched(direction):
    small, large = Memory(a_case()), Memory(a_case(device_pages=5))
    before = small.copied()
    launch = getattr(small.layer(), direction)
    with raises(cpkv.InputError, "blocks is 0, want 1 or more"):
        launch(small.pairs(), blocks=0)
    with raises(cpkv.InputTypeError, "blocks is 2.0, want an integer"):
        launch(small.pairs(), blocks=2.0)
    with raises(cpkv.UsageError, "checked for 5 pages and 4 slots, want at most the 4 and 4"):
        launch(large.pairs())
    launch(Memory(a_case(pairs=[])).pairs())
    assert all(torch.equal(seen, wanted) for seen, wanted in zip(small.copied(), before, strict=True))


@interpreted
def test_compiling_copies_nothing():
    memory = Memory(a_case())
    before = memory.copied()
    memory.layer().compile()
    assert all(torch.equal(seen, wanted) for seen, wanted in zip(memory.copied(), before, strict=True))


@interpreted
def test_the_interpreter_takes_no_gpu():
    with raises(cpkv.UsageError, "the kernel does not run on cuda, want cpu, as TRITON_INTERPRET is set"):
        LayerCopy(HostSegments(**HOST), [LayerRows(**ROWS)], device="cuda")
