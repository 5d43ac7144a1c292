"""Keys and scales in their common row, at the bytes where the engine puts them."""

import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import cpkv
from cpkv.kernels import join_index_rows, split_index_rows


@given(pages=st.integers(1, 4), page_size=st.sampled_from([1, 16, 64]), data=st.data())
def test_a_token_is_where_the_layout_says(pages, page_size, data):
    rows = torch.zeros(pages, page_size * 132, dtype=torch.uint8)
    keys, scales = split_index_rows(rows, page_size=page_size, key_dtype=torch.uint8)
    page, token = data.draw(st.integers(0, pages - 1)), data.draw(st.integers(0, page_size - 1))
    key = torch.randint(1, 256, (128,), dtype=torch.uint8)
    keys[page, token] = key
    scales[page, token] = 0.1
    expected = bytearray(pages * page_size * 132)
    start = page * page_size * 132
    expected[start + token * 128 : start + (token + 1) * 128] = bytes(key.tolist())
    struct.pack_into("<f", expected, start + page_size * 128 + token * 4, 0.1)
    assert bytes(rows.flatten().tolist()) == bytes(expected)


def test_shapes_and_types_of_a_page_of_64():
    rows = torch.zeros(3, 8448, dtype=torch.uint8)
    keys, scales = split_index_rows(rows)
    assert (keys.shape, keys.dtype) == ((3, 64, 128), torch.float8_e4m3fn)
    assert (scales.shape, scales.dtype) == ((3, 64), torch.float32)
    assert keys.data_ptr() == rows.data_ptr()
    assert scales.data_ptr() == rows.data_ptr() + 8192


@given(page_size=st.sampled_from([1, 16, 64]), gap=st.sampled_from([0, 4, 16]))
def test_joining_is_the_inverse(page_size, gap):
    rows = torch.randint(0, 256, (3, page_size * 132 + gap), dtype=torch.uint8)[:, : page_size * 132]
    for key_dtype in (torch.uint8, torch.float8_e4m3fn):
        keys, scales = split_index_rows(rows, page_size=page_size, key_dtype=key_dtype)
        joined = join_index_rows(keys, scales)
        assert torch.equal(joined, rows)
        assert joined.data_ptr() != rows.data_ptr()


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (torch.zeros(3, 8448), {}),
        (torch.zeros(8448, dtype=torch.uint8), {}),
        (torch.zeros(8448, 3, dtype=torch.uint8).T, {}),
        (torch.zeros(3, 8449, dtype=torch.uint8), {}),
        (torch.zeros(3, 256, dtype=torch.uint8), {}),
        (torch.zeros(3, 8448, dtype=torch.uint8), {"key_dtype": torch.bfloat16}),
        (torch.zeros(3, 2 * 5 + 2 * 4, dtype=torch.uint8), {"page_size": 2}),
        (torch.zeros(3, 8450, dtype=torch.uint8)[:, :8448], {}),
    ],
)
def test_what_is_no_index_buffer(rows, options):
    with pytest.raises(cpkv.InputTypeError, match="index rows"):
        split_index_rows(rows, **options)


@pytest.mark.parametrize(
    ("keys", "scales"),
    [
        (torch.zeros(3, 64, 128), torch.zeros(3, 64)),
        (torch.zeros(3, 64, 128, dtype=torch.uint8), torch.zeros(3, 64, dtype=torch.float16)),
        (torch.zeros(3, 64, 128, dtype=torch.uint8), torch.zeros(3, 63)),
        (torch.zeros(3, 8192, dtype=torch.uint8), torch.zeros(3, 64)),
    ],
)
def test_keys_and_scales_that_do_not_belong_together(keys, scales):
    with pytest.raises(cpkv.InputTypeError, match="want one-byte"):
        join_index_rows(keys, scales)
