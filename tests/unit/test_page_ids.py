"""Page ids are an immutable sequence, and an int64 buffer to everyone else."""

import array

import numpy as np
import pytest

import cpkv


@pytest.fixture
def ids():
    return cpkv.CacheManager(device_pages=10).allocate(5)


def test_they_are_a_sequence(ids):
    assert len(ids) == 5
    assert list(ids) == ids.tolist() == [0, 1, 2, 3, 4]
    assert (ids[0], ids[-1]) == (0, 4)
    assert 3 in ids
    assert 7 not in ids
    assert "x" not in ids
    assert ids[1:3].tolist() == [1, 2]
    assert ids[::-2].tolist() == [4, 2, 0]
    assert ids[3:1].tolist() == []
    assert ids[1:][1:] == ids[2:]
    assert ids != ids[1:]
    assert repr(ids[:2]) == "PageIds([0, 1])"
    for index in (5, -6):
        with pytest.raises(IndexError, match="of 5 page ids"):
            ids[index]
    with pytest.raises(TypeError):
        ids["x"]
    with pytest.raises(TypeError):
        ids[0] = 1


def test_they_are_a_read_only_int64_buffer(ids):
    part = np.asarray(ids[2:])
    assert part.dtype == np.int64
    assert part.tolist() == [2, 3, 4]
    assert not part.flags.writeable
    assert np.shares_memory(np.asarray(ids), part)
    assert array.array("q", ids).tolist() == [0, 1, 2, 3, 4]
    view = memoryview(ids)
    assert (view.format, view.shape, view.strides, view.readonly) == ("q", (5,), (8,), True)
    assert np.asarray(ids[5:]).size == 0


def test_the_rows_of_pages_are_the_callers_own(ids):
    rows = ids[3:].rows(4)
    assert memoryview(rows).cast("q").tolist() == [12, 13, 14, 15, 16, 17, 18, 19]
    assert memoryview(ids.rows(1)).cast("q").tolist() == ids.tolist()
    rows[:] = bytes(len(rows))
    assert memoryview(ids[3:].rows(4)).cast("q").tolist()[0] == 12
    assert ids[5:].rows(64) == b""
    for wrong in (0, -1, 2**63):
        with pytest.raises(cpkv.InputError, match="rows_per_page"):
            ids.rows(wrong)
    with pytest.raises(cpkv.InputTypeError, match="rows_per_page"):
        ids.rows("x")


def test_the_memory_lives_as_long_as_a_view():
    cache = cpkv.CacheManager(device_pages=100_000)
    views = [np.asarray(cache.allocate(1_000)[1:]) for _ in range(10)]
    # Nothing but the views holds the ids; new arrays would take the place of freed ones.
    others = [np.full(1_000, -1) for _ in range(100)]
    seen = np.concatenate(views)
    assert len(others) == 100
    assert len(set(seen.tolist())) == 9_990
    assert seen.min() >= 0


def test_they_can_be_given_back_in_any_form(ids):
    cache = cpkv.CacheManager(device_pages=10)
    for convert in (lambda pages: pages, list, np.asarray, lambda pages: pages[::-1]):
        pages = cache.allocate(5)
        cache.free(convert(pages))
        assert cache.free_pages() == 10
    assert len(ids) == 5
