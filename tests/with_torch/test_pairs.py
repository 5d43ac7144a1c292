"""Ids are checked once, wherever they come from."""

import re
from array import array

import numpy as np
import pytest
import torch

import cpkv
from cpkv.kernels import PagePairs

LIMITS = {"device_pages": 10, "host_slots": 20, "device": "cpu"}


@pytest.mark.parametrize(
    "ids", [list, tuple, np.array, torch.tensor, lambda ids: array("q", ids), lambda ids: np.array([*ids, 9])[:-1]]
)
def test_what_ids_may_be(ids):
    pairs = PagePairs(ids([9, 0, 3]), ids([2, 7, 1]), **LIMITS)
    assert pairs.pages.tolist() == [9, 0, 3]
    assert pairs.slots.tolist() == [2, 7, 1]
    assert pairs.pages.dtype == pairs.slots.dtype == torch.int64
    assert len(pairs) == 3


def test_page_ids_of_the_cache():
    cache = cpkv.CacheManager(page_size=4, device_pages=10)
    pages = cache.allocate(3)
    assert PagePairs(pages, range(3), **LIMITS).pages.tolist() == list(pages)


def test_none_at_all():
    assert len(PagePairs([], (), **LIMITS)) == 0


@pytest.mark.parametrize(
    "pages",
    [
        [1.0],
        [True],
        np.array([1], np.int32),
        np.array([1], np.uint64),
        np.array([[1]]),
        np.array(1),
        torch.tensor([1], dtype=torch.int32),
        torch.tensor([[1]]),
        ["1"],
    ],
)
def test_other_types_and_shapes(pages):
    with pytest.raises(cpkv.InputTypeError, match=r"pages: .* of shape .*, want int64 of shape \(n,\)"):
        PagePairs(pages, [1], **LIMITS)
    with pytest.raises(cpkv.InputTypeError, match="slots: "):
        PagePairs([1], pages, **LIMITS)


@pytest.mark.parametrize(
    ("pages", "slots", "text"),
    [
        ([0, 10], [0, 1], "page 10 is out of range, want 0 to 9 (1 of 2 are outside)"),
        ([0, -1], [0, 1], "page -1 is out of range, want 0 to 9 (1 of 2 are outside)"),
        ([0, 1], [20, 1 << 40], "slot 20 is out of range, want 0 to 19 (2 of 2 are outside)"),
        ([3, 1, 3], [0, 1, 2], "page 3 is given twice"),
        ([3, 1, 2], [5, 1, 5], "slot 5 is given twice"),
    ],
)
def test_ids_that_cannot_be(pages, slots, text):
    with pytest.raises(cpkv.PageError, match=re.escape(text)):
        PagePairs(pages, slots, **LIMITS)


def test_as_many_pages_as_slots():
    with pytest.raises(cpkv.InputError, match="2 pages and 1 slots"):
        PagePairs([1, 2], [1], **LIMITS)
