"""Splits of random batches against what a walk over their tokens finds."""

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from cpkv import DirectWriteError
from cpkv.cp import (
    as_last_hidden,
    collect_last_token_hidden,
    direct_writes,
    interleave_split,
    own_last_hidden,
    page_owners,
    zigzag_split,
)
from split_oracle import computed_by, locations_of, pages_for, ranks_of_pages, rows_of

SIZES = st.tuples(st.sampled_from([1, 2, 3, 4, 8]), st.sampled_from([1, 2, 16, 64]))


@st.composite
def batches(draw, cp_size, page_size):
    """Lengths around whole pages, whole rounds of segments, and 1."""
    near = st.sampled_from([-1, 0, 1])
    pages = st.integers(0, 4 * cp_size + 1)
    extends = st.builds(lambda whole, more: max(whole * page_size + more, 1), pages, near | st.integers(-3, 3))
    prefixes = st.builds(lambda whole, more: max(whole * page_size + more, 0), st.integers(0, 3), st.just(0) | near)
    requests = draw(st.lists(st.tuples(prefixes, extends, st.integers(-1, cp_size - 1)), min_size=1, max_size=4))
    return tuple(list(values) for values in zip(*requests, strict=True))


@st.composite
def zigzags(draw):
    cp_size, page_size = draw(SIZES)
    prefix, extend, ranks = draw(batches(cp_size, page_size))
    note(f"cp_size {cp_size}, page_size {page_size}, prefix {prefix}, extend {extend}, open pages {ranks}")
    return zigzag_split(prefix, extend, cp_size=cp_size, page_size=page_size, open_page_ranks=ranks), ranks


@st.composite
def splits(draw):
    if draw(st.booleans()):
        return draw(zigzags())[0]
    cp_size, page_size = draw(SIZES)
    prefix, extend, _ = draw(batches(cp_size, page_size))
    note(f"interleaved: cp_size {cp_size}, page_size {page_size}, prefix {prefix}, extend {extend}")
    return interleave_split(prefix, extend, cp_size=cp_size, page_size=page_size)


@given(splits())
def test_every_token_is_computed_once(split):
    prefix, extend = split.batch.prefix_tokens.tolist(), split.batch.extend_tokens.tolist()
    wanted = {
        (request, position)
        for request, (first, count) in enumerate(zip(prefix, extend, strict=True))
        for position in range(first, first + count)
    }
    by = computed_by(split)
    assert by.keys() == wanted
    assert {len(ranks) for ranks in by.values()} == {1}
    assert split.rank_tokens.sum() == split.tokens == len(wanted)
    assert split.padded_tokens == max(split.view(rank).tokens for rank in range(split.cp_size))


@given(splits())
def test_all_arrays_of_a_view_are_of_the_same_rows(split):
    for rank in range(split.cp_size):
        view, rows = split.view(rank), list(rows_of(split, rank))
        assert view.tokens == len(rows) == split.rank_tokens[rank]
        assert view.requests.tolist() == [request for request, _, _ in rows]
        assert view.positions.tolist() == [position for _, position, _ in rows]
        assert view.causal_lengths.tolist() == [position + 1 for _, position, _ in rows]
        assert view.rows.tolist() == [row for _, _, row in rows]
        for array in (view.requests, view.positions, view.causal_lengths, view.rows):
            assert array.dtype == np.int64
        for part, requests, positions in zip(
            view.parts, view.split_parts(view.requests), view.split_parts(view.positions), strict=True
        ):
            assert part.tokens == len(positions) == part.offsets[-1]
            assert (part.token_counts > 0).all(), "who has no token is not there"
            assert part.requests.tolist() == sorted(set(requests.tolist()))
            for place, request in enumerate(part.requests):
                here = slice(part.offsets[place], part.offsets[place + 1])
                assert set(requests[here]) == {request}
                assert part.token_counts[place] == len(positions[here]) <= part.most_tokens
                assert part.key_lengths[place] == positions[here][-1] + 1 <= part.most_keys


@given(splits())
def test_what_each_token_sees_is_what_it_sees_unsplit(split):
    first = 0
    seen = np.empty(split.tokens, np.int64)
    for rank in range(split.cp_size):
        view = split.view(rank)
        seen[view.rows] = view.causal_lengths
    for prefix, extend in zip(split.batch.prefix_tokens, split.batch.extend_tokens, strict=True):
        assert seen[first : first + extend].tolist() == list(range(prefix + 1, prefix + extend + 1))
        first += extend


@given(splits())
def test_what_was_split_is_restored_in_its_order(split):
    whole = np.arange(split.tokens * 3).reshape(split.tokens, 3)
    views = [split.view(rank) for rank in range(split.cp_size)]
    gathered = np.stack([view.padded(view.take(whole)) for view in views])
    assert gathered.shape == (split.cp_size, split.padded_tokens, 3)
    assert np.array_equal(split.restore(gathered), whole)
    assert np.array_equal(split.restore(gathered.reshape(-1, 3)), whole)


@given(zigzags())
def test_a_rank_has_the_segments_that_zigzag_gives_it(case):
    split, _ = case
    along = [*range(split.cp_size), *reversed(range(split.cp_size))]
    by = computed_by(split)
    for request, (first, count) in enumerate(
        zip(split.batch.prefix_tokens.tolist(), split.batch.extend_tokens.tolist(), strict=True)
    ):
        ranks = [by[request, position][0] for position in range(first, first + count)]
        changes = [rank for index, rank in enumerate(ranks) if index == 0 or rank != ranks[index - 1]]
        turn = iter(along)
        assert all(rank in turn for rank in changes), f"{changes} is not on the way {along}"
        # Of two parts of the same rank, which lie side by side only in the middle, the view knows both.
        for rank in range(split.cp_size):
            front, back = split.view(rank).parts
            where = [part.first_positions[part.requests == request] for part in (front, back)]
            assert not (len(where[0]) and len(where[1])) or where[0][0] < where[1][0]


@given(zigzags())
def test_page_aligned_is_said_of_what_is_and_of_all_that_can_be(case):
    split, open_ranks = case
    pages = ranks_of_pages(split)
    size, cp_size = split.page_size, split.cp_size
    for request, (prefix, extend) in enumerate(
        zip(split.batch.prefix_tokens.tolist(), split.batch.extend_tokens.tolist(), strict=True)
    ):
        mine = {page: ranks for (other, page), ranks in pages.items() if other == request}
        is_long = len(mine) >= 2 * cp_size
        keeps_open_page = prefix % size == 0 or open_ranks[request] == 0
        assert split.are_page_aligned[request] == (cp_size == 1 or (is_long and keeps_open_page))
        if not split.are_page_aligned[request]:
            continue
        assert {len(ranks) for ranks in mine.values()} == {1}, "one owner each"
        if prefix % size:
            assert mine[prefix // size] == {0}, "it stays with the rank that began it"
        new = range(-(-prefix // size), -(-(prefix + extend) // size))
        assert page_owners(split, request).tolist() == [next(iter(mine[page])) for page in new]
    assert split.page_aligned == all(split.are_page_aligned)


@given(zigzags())
def test_ranks_have_equal_shares(case):
    split, _ = case
    size = split.page_size
    for request, (prefix, extend) in enumerate(
        zip(split.batch.prefix_tokens.tolist(), split.batch.extend_tokens.tolist(), strict=True)
    ):
        shares = split.counts[:, :, request].sum(1)
        spread = int(shares.max() - shares.min())
        if not split.are_page_aligned[request]:
            assert spread <= 1
            continue
        pages = -(-(prefix + extend) // size) - prefix // size
        if split.cp_size > 1:
            assert (split.counts[:, :, request] > 0).all(), "a page for each segment"
        lacking = pages * size - extend
        assert spread <= size or (pages == 2 * split.cp_size and spread <= lacking < 2 * size)


@given(splits())
def test_a_rank_writes_its_own_pages_and_no_others(split):
    if not split.page_aligned:
        request = next(index for index, aligned in enumerate(split.are_page_aligned) if not aligned)
        for rank in range(split.cp_size):
            view = split.view(rank)
            with pytest.raises(DirectWriteError, match=f"request {request} is not page-aligned"):
                direct_writes(view, np.zeros(view.tokens, np.int64))
        with pytest.raises(DirectWriteError, match=f"request {request} is not page-aligned"):
            page_owners(split, request)
        return
    ids = pages_for(split, first_page=5)
    written = {}
    for rank in range(split.cp_size):
        view = split.view(rank)
        locations = np.array(locations_of(split, rank, ids), np.int64)
        writes = direct_writes(view, locations)
        for (request, position, _), local in zip(rows_of(split, rank), writes.local_locations.tolist(), strict=True):
            page = ids[request, position // split.page_size]
            assert local == page // split.cp_size * split.page_size + position % split.page_size
            assert written.setdefault((rank, local), (request, position)) == (request, position)
        if split.cp_size > 1 and view.tokens:
            # One page is in the next lane: the last.
            moved = locations.copy()
            moved[view.tokens - 1] += split.page_size
            with pytest.raises(DirectWriteError, match=rf"locations\[{view.tokens - 1}\] is in page"):
                direct_writes(view, moved)
    assert len(written) == split.tokens


@given(splits())
def test_the_last_hidden_states_are_the_last_ones(split):
    hidden = np.random.default_rng(0).integers(0, 1 << 40, (split.tokens, 2))
    views = [split.view(rank) for rank in range(split.cp_size)]
    own = [own_last_hidden(view, view.take(hidden)) for view in views]
    ends = np.cumsum(split.batch.extend_tokens) - 1
    for view in views:
        sent = []
        padded = view.padded(view.take(hidden))
        collected = collect_last_token_hidden(
            view, padded, lambda mine, sent=sent: (sent.append(mine), np.stack(own))[1]
        )
        assert np.array_equal(as_last_hidden(split, collected), hidden[ends])
        assert np.array_equal(sent[0], own[view.rank])
        assert sent[0].shape == (len(split.batch), 2)
    assert np.array_equal(as_last_hidden(split, hidden), hidden[ends])
