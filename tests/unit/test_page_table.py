"""`PageTable`: the pages of an engine's rows, read in place."""

import numpy as np
import pytest

import cpkv


def table_of(pages, rows_per_page, width):
    """The rows of such pages, for each place, in a table that is so wide; the rest is -1."""
    rows = np.full((len(pages), width), -1, np.int32)
    for place, its_pages in enumerate(pages):
        its_rows = (np.array(its_pages)[:, None] * rows_per_page + np.arange(rows_per_page)).reshape(-1)
        rows[place, : len(its_rows)] = its_rows[:width]
    return rows


@pytest.mark.parametrize("rows_per_page", [1, 3, 64])
def test_pages_are_those_of_their_place(rows_per_page):
    pages = np.random.default_rng(0).integers(0, (2**31 - 1) // rows_per_page, (3, 40))
    pages[1, 7] = (2**31 - 1) // rows_per_page - 1
    table = cpkv.PageTable(table_of(pages, rows_per_page, 40 * rows_per_page), rows_per_page)
    for place, first, end in ((0, 0, 40), (1, 7, 8), (2, 5, 33), (1, 40, 40), (0, 0, 0)):
        found = table.pages(place, first, end)
        assert isinstance(found, cpkv.PageIds)
        assert found.tolist() == pages[place, first:end].tolist()


def test_what_is_written_later_is_read_and_what_was_read_stays():
    rows = table_of([[4, 5, 6]], 2, 6)
    table = cpkv.PageTable(rows, 2)
    before = table.pages(0, 0, 3)
    rows[0, 2:4] = 18, 19
    assert table.pages(0, 0, 3).tolist() == [4, 9, 6]
    assert before.tolist() == [4, 5, 6]


def test_a_table_ends_where_it_ends():
    table = cpkv.PageTable(table_of([[1, 2, 3], [4, 5, 6]], 4, 10), 4)
    assert table.pages(0, 1, 3).tolist() == [2, 3]
    assert table.pages(0, 2, 9).tolist() == [3]
    assert table.pages(1, 3, 9).tolist() == []


def test_the_rows_live_as_long_as_the_table():
    tables = [cpkv.PageTable(np.full((1, 1_000), number, np.int32), 1) for number in range(10)]
    # New arrays would take the place of freed ones.
    others = [np.full((1, 1_000), -1, np.int32) for _ in range(100)]
    assert [table.pages(0, 999, 1_000).tolist() for table in tables] == [[number] for number in range(10)]
    assert len(others) == 100


def test_places_that_are_not_there_are_refused():
    table = cpkv.PageTable(table_of([[1, 2], [3, 4]], 4, 8), 4)
    for place in (-1, 2, 2**63):
        with pytest.raises(cpkv.InputError, match=f"place is {place}, want 0 to 1"):
            table.pages(place, 0, 1)
    with pytest.raises(cpkv.InputError, match="first is 2, want 0 to 1"):
        table.pages(0, 2, 1)
    with pytest.raises(cpkv.InputError, match="end is -1"):
        table.pages(0, 0, -1)
    with pytest.raises(cpkv.InputTypeError, match="first is 'x'"):
        table.pages(0, "x", 1)


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((2, 8), np.int64),
        np.zeros((2, 8), np.float32),
        np.zeros((2, 8), np.int32)[:, ::2],
        np.zeros((8, 2), np.int32).T,
        np.zeros(8, np.int32),
        np.zeros((0, 8), np.int32),
        np.zeros((2, 0), np.int32),
        [[1, 2]],
        None,
    ],
    ids=["int64", "float32", "strided", "transposed", "flat", "no place", "no rows", "list", "nothing"],
)
def test_other_tables_are_refused(rows):
    with pytest.raises(cpkv.InputTypeError, match="two-dimensional contiguous array of int32"):
        cpkv.PageTable(rows, 1)


def test_pages_without_rows_are_refused():
    with pytest.raises(cpkv.InputError, match="rows_per_page"):
        cpkv.PageTable(np.zeros((2, 8), np.int32), 0)
    with pytest.raises(cpkv.InputTypeError, match="rows_per_page"):
        cpkv.PageTable(np.zeros((2, 8), np.int32), "x")
