"""Context-parallel splits by their numbers. `tests/property/test_splits.py` has what holds of all of them."""

import numpy as np
import pytest

import cpkv
from cpkv.cp import (
    UNKNOWN,
    CpGroups,
    ExtendBatch,
    LastHidden,
    as_last_hidden,
    choose_hidden_gather,
    collect_last_token_hidden,
    direct_writes,
    interleave_split,
    narrow_bytes,
    own_last_hidden,
    page_owners,
    pick_last_hidden,
    zigzag_split,
)
from split_oracle import ranks_of_pages

BOTH = pytest.mark.parametrize("split_batch", [zigzag_split, interleave_split])


def ranges(*bounds):
    return [position for first, last in bounds for position in range(first, last + 1)]


# --- Zigzag ---


def test_lengths_are_in_the_order_of_the_rows_that_have_them():
    split = zigzag_split([0], [256], cp_size=2, page_size=64)
    first, second = split.view(0), split.view(1)
    assert first.positions.tolist() == ranges((0, 63), (192, 255))
    assert first.causal_lengths.tolist() == ranges((1, 64), (193, 256))
    assert second.positions.tolist() == ranges((64, 191))
    assert second.causal_lengths.tolist() == ranges((65, 192))
    gathered = np.concatenate([first.positions, second.positions])
    assert split.restore(gathered).tolist() == ranges((0, 255))


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 130, 511, 512, 513])
def test_short_requests_are_split_by_tokens_and_say_so(page_size, tokens):
    split = zigzag_split([0], [tokens], cp_size=4, page_size=page_size)
    pages = ranks_of_pages(split)
    assert split.page_aligned == (len(pages) >= 8)
    assert not split.page_aligned or {len(ranks) for ranks in pages.values()} == {1}
    assert (split.counts >= 0).all()
    assert split.rank_tokens.sum() == tokens
    if not split.page_aligned:
        with pytest.raises(cpkv.DirectWriteError, match=rf"request 0 is not page-aligned \({tokens} tokens behind 0, "):
            direct_writes(split.view(0), np.arange(split.view(0).tokens))


@pytest.mark.parametrize("split_batch", [zigzag_split, interleave_split])
@pytest.mark.parametrize(("prefix", "extend", "cp_size"), [(1, 3_670, 4), (0, 1, 8), (64, 5, 8), (127, 4_097, 3)])
def test_padding_is_in_what_is_sent_and_in_no_length(split_batch, prefix, extend, cp_size):
    split = split_batch([prefix], [extend], cp_size=cp_size, page_size=64)
    assert split.batch.prefix_tokens.tolist() == [prefix]
    views = [split.view(rank) for rank in range(cp_size)]
    assert {len(view.padded(view.positions)) for view in views} == {split.padded_tokens}
    assert max(part.most_keys for view in views for part in view.parts) == prefix + extend
    assert sum(part.token_counts.sum() for view in views for part in view.parts) == extend
    first = min(view.positions.min() for view in views if view.tokens)
    assert first == prefix


def test_a_page_that_a_chunk_cuts_stays_with_the_rank_that_began_it():
    chunks = [(0, 700), (700, 650), (1_350, 700)]
    owners = {}
    for prefix, extend in chunks:
        page = prefix // 64
        known = {} if prefix % 64 == 0 else {"open_page_ranks": [owners[page]]}
        split = zigzag_split([prefix], [extend], cp_size=2, page_size=64, **known)
        assert split.page_aligned
        for (_, page), ranks in ranks_of_pages(split).items():
            assert ranks == {owners.setdefault(page, next(iter(ranks)))}
    assert sorted(owners) == list(range(2_050 // 64 + 1))


@pytest.mark.parametrize("known", [None, [UNKNOWN], [1]])
def test_a_page_that_cannot_stay_is_not_aligned(known):
    split = zigzag_split([100], [1_000], cp_size=2, page_size=64, open_page_ranks=known)
    assert not split.page_aligned
    with pytest.raises(cpkv.DirectWriteError, match="request 0 is not page-aligned"):
        page_owners(split, 0)


def test_a_batch_is_aligned_if_all_of_its_requests_are():
    split = zigzag_split([64, 0, 128], [512, 100, 640], cp_size=4, page_size=64)
    assert split.are_page_aligned.tolist() == [True, False, True]
    assert not split.page_aligned
    # Each request alone has its owners: the batch is what cannot be written directly.
    assert page_owners(split, 0).tolist() == [0, 1, 2, 3, 3, 2, 1, 0]
    with pytest.raises(cpkv.DirectWriteError, match="request 1 is not page-aligned"):
        direct_writes(split.view(0), np.zeros(split.view(0).tokens, np.int64))


def test_unequal_parts_are_split_where_they_part():
    # Five pages for four segments.
    split = zigzag_split([0], [5 * 16], cp_size=2, page_size=16)
    view = split.view(0)
    queries = np.arange(view.tokens * 4).reshape(view.tokens, 4)
    front, back = view.split_parts(queries)
    assert (len(front), len(back)) == (32, 16)
    assert np.array_equal(np.concatenate([front, back]), queries)
    assert [part.key_lengths.tolist() for part in view.parts] == [[32], [80]]


def test_rank_0_has_a_page_more_where_its_two_are_hardly_any():
    # It has the first page, of which one token is left, and the last one, of which there is one.
    split = zigzag_split([63], [1 + 14 * 64 + 1], cp_size=2, page_size=64, open_page_ranks=[0])
    assert split.page_aligned
    assert split.rank_tokens.tolist() == [2 + 7 * 64, 7 * 64]


# --- Interleaved ---


def test_who_has_no_token_on_a_rank_is_in_none_of_its_arrays():
    split = interleave_split([0, 0], [5, 4_096], cp_size=8, page_size=64)
    for rank in range(8):
        (part,) = split.view(rank).parts
        assert part.requests.tolist() == ([0, 1] if rank < 5 else [1])
        assert len(part.requests) == len(part.key_lengths) == len(part.token_counts) == len(part.offsets) - 1
        assert part.most_tokens == 512
        assert part.most_keys == 4_096 - 7 + rank
    assert split.rank_tokens.tolist() == [513] * 5 + [512] * 3


def test_offsets_are_sums_of_what_each_request_verifies():
    split = interleave_split([10, 20, 30], [4, 1, 3], cp_size=1, page_size=64)
    (part,) = split.view(0).parts
    assert part.offsets.tolist() == [0, 4, 5, 8]
    assert split.view(0).positions.tolist() == [10, 11, 12, 13, 20, 30, 31, 32]


@pytest.mark.parametrize(("cp_size", "page_size", "is_aligned"), [(1, 64, True), (4, 64, False), (4, 1, True)])
def test_cards_are_pages_only_if_pages_are_tokens(cp_size, page_size, is_aligned):
    split = interleave_split([3, 128], [300, 9], cp_size=cp_size, page_size=page_size)
    assert split.page_aligned == is_aligned
    if cp_size > 1 and is_aligned:
        assert page_owners(split, 1).tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]


# --- Writing ---


def test_a_location_has_to_be_this_ranks_and_where_the_token_is():
    split = zigzag_split([0], [16], cp_size=2, page_size=4)
    view = split.view(1)
    pages = np.array([3, 7])  # the lane of rank 1
    locations = (pages[:, None] * 4 + np.arange(4)).ravel()
    assert direct_writes(view, locations).local_locations.tolist() == [4, 5, 6, 7, 12, 13, 14, 15]
    with pytest.raises(
        cpkv.DirectWriteError, match=r"locations\[4\] is in page 2, which is rank 0's, want one of rank 1's "
    ):
        direct_writes(view, np.r_[locations[:4], 8:12])
    with pytest.raises(
        cpkv.InputError, match=r"locations\[1\] is 14, offset 2 of page 3, want .* offset 1, as position 5"
    ):
        direct_writes(view, locations[[0, 2, 1, 3, 4, 5, 6, 7]])
    with pytest.raises(cpkv.InputError, match=r"locations\[0\] is -4"):
        direct_writes(view, locations - 16)
    with pytest.raises(cpkv.InputError, match=r"locations are int64 of shape \(7,\), want integers of shape \(8,\)"):
        direct_writes(view, locations[:7])
    with pytest.raises(cpkv.InputError, match="locations are float64"):
        direct_writes(view, locations.astype(np.float64))
    with pytest.raises(cpkv.InputError, match="request is 1, want 0 to 0"):
        page_owners(split, 1)


def test_rows_of_a_rank_are_not_taken_for_those_of_last_tokens():
    # Two requests, and a rank that has two rows.
    split = zigzag_split([0, 0], [4, 4], cp_size=4, page_size=16)
    view = split.view(1)
    assert view.tokens == len(split.batch)
    with pytest.raises(cpkv.InputError, match=r"hidden has shape \(2, 1\), want \(8, hidden\) of all tokens"):
        as_last_hidden(split, view.take(np.arange(8.0)[:, None]))


def test_a_page_is_not_two_pages():
    split = zigzag_split([0], [64], cp_size=2, page_size=16)
    view = split.view(0)
    with pytest.raises(
        cpkv.InputError, match=r"locations\[0\] and locations\[16\] are both in page 0, want one each: "
    ):
        direct_writes(view, np.r_[0:16, 0:16])
    split = zigzag_split([0, 0], [32, 32], cp_size=1, page_size=16)
    with pytest.raises(cpkv.InputError, match="position 0 of request 0 and position 16 of request 1"):
        direct_writes(split.view(0), np.r_[0:16, 16:32, 32:48, 0:16])


def test_turns_go_by_positions_so_that_chunks_do_not_all_begin_with_the_same_rank():
    whole = interleave_split([0], [11], cp_size=4, page_size=1)
    chunks = [interleave_split([first], [1], cp_size=4, page_size=1) for first in range(11)]
    assert page_owners(whole, 0).tolist() == [page_owners(chunk, 0)[0] for chunk in chunks]
    assert whole.rank_tokens.tolist() == [3, 3, 3, 2]


def test_pages_come_from_the_lanes_that_the_cache_gives_them_from():
    cache = cpkv.CacheManager(page_size=4, device_pages=32, lanes=2)
    split = zigzag_split([0, 0], [16, 23], cp_size=2, page_size=4)
    ids = [np.array(cache.allocate(lanes=page_owners(split, request))) for request in range(2)]
    flat = np.concatenate(
        [(pages[:, None] * 4 + np.arange(4)).ravel()[:tokens] for pages, tokens in zip(ids, (16, 23), strict=True)]
    )
    local = [direct_writes(split.view(rank), split.view(rank).take(flat)).local_locations for rank in range(2)]
    assert [len(set(rows.tolist())) for rows in local] == split.rank_tokens.tolist()
    assert max(map(np.max, local)) < 16 * 4


# --- Last tokens ---


@BOTH
def test_a_narrow_gather_moves_one_row_a_request_and_rank(split_batch):
    split = split_batch([0, 64], [1_000, 300], cp_size=4, page_size=16)
    hidden = np.random.default_rng(1).random((split.tokens, 8), np.float32)
    moved = []

    def all_gather(own):
        moved.append(own.nbytes)
        return np.stack([own_last_hidden(split.view(rank), split.view(rank).take(hidden)) for rank in range(4)])

    view = split.view(2)
    collected = collect_last_token_hidden(view, view.take(hidden), all_gather)
    assert np.array_equal(as_last_hidden(split, collected), hidden[[999, 1_299]])
    assert moved == [2 * 8 * 4]
    assert narrow_bytes(split, 8, 4) == 4 * moved[0]


def test_the_wrong_ranks_row_is_another_one():
    split = zigzag_split([0], [1_000], cp_size=4, page_size=16)
    hidden = np.arange(1_000.0)[:, None]
    own = np.stack([own_last_hidden(split.view(rank), split.view(rank).take(hidden)) for rank in range(4)])
    assert pick_last_hidden(split, own).rows[0] == 999
    assert own[1:].sum() == 0, "nobody else claims it"


@pytest.mark.parametrize(
    ("needs", "reasons"),
    [
        ({}, ()),
        ({"needs_input_logprobs": True}, ("log-probabilities of prompt tokens",)),
        ({"captures_hidden": True}, ("hidden states are returned",)),
        ({"captures_for_draft": True}, ("a draft reads all hidden states",)),
        (
            {"needs_input_logprobs": True, "captures_for_draft": True},
            ("log-probabilities of prompt tokens", "a draft reads all hidden states"),
        ),
    ],
)
def test_what_is_gathered_has_its_reasons(needs, reasons):
    gather = choose_hidden_gather(**needs)
    assert (gather.is_narrow, gather.reasons) == (not reasons, reasons)


def test_hidden_states_of_another_number_are_refused():
    split = zigzag_split([0, 0], [40, 9], cp_size=2, page_size=4)
    view = split.view(0)
    with pytest.raises(cpkv.InputError, match=r"hidden has shape \(48, 3\), want \(49, hidden\) of all tokens"):
        as_last_hidden(split, np.zeros((48, 3)))
    with pytest.raises(cpkv.InputError, match=r"hidden has shape \(3, 3\), want \(2, hidden\) of last tokens"):
        as_last_hidden(split, LastHidden(np.zeros((3, 3))))
    with pytest.raises(cpkv.InputError, match=rf"hidden has shape \(3, 3\), want \({view.tokens} or more, hidden\)"):
        own_last_hidden(view, np.zeros((3, 3)))
    with pytest.raises(cpkv.InputError, match=r"gathered has shape \(2, 1, 3\), want \(2, 2, hidden\)"):
        pick_last_hidden(split, np.zeros((2, 1, 3)))
    with pytest.raises(cpkv.InputError, match=r"gathered has shape \(7, 3\), want \(2, "):
        split.restore(np.zeros((7, 3)))
    for method in (view.split_parts, view.padded):
        with pytest.raises(cpkv.InputError, match=rf"rows has shape \(1, 3\), want \({view.tokens}, \.\.\.\)"):
            method(np.zeros((1, 3)))
    with pytest.raises(cpkv.InputError, match=r"batch_rows has shape \(1, 3\), want \(49, \.\.\.\)"):
        view.take(np.zeros((1, 3)))


# --- Groups ---


@pytest.mark.parametrize("cp_size", [1, 2, 4, 8])
@pytest.mark.parametrize("dp_size", [1, 2])
def test_processes_of_a_rank_own_the_same_pages(cp_size, dp_size):
    groups = CpGroups(world_size=16, cp_size=cp_size, dp_size=dp_size)
    split = zigzag_split([0], [4_096], cp_size=cp_size, page_size=64)
    owners = page_owners(split, 0)
    owned = {process: np.flatnonzero(owners == groups.cp_rank(process)).tolist() for process in range(16)}
    for process in range(16):
        members = groups.members(process)
        assert process == members[groups.cp_rank(process)]
        assert sorted(page for member in members for page in owned[member]) == list(range(64))
        assert sum(other == owned[process] for other in owned.values()) == groups.heads_size * dp_size
    assert groups.heads_size * cp_size * dp_size == 16


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(
        cpkv.ConfigError, match="world_size is 8, want a multiple of 3 context-parallel ranks x 1 groups"
    ):
        CpGroups(world_size=8, cp_size=3)
    with pytest.raises(cpkv.ConfigError, match="dp_size is 0, want an integer of at least 1"):
        CpGroups(world_size=8, cp_size=2, dp_size=0)
    groups = CpGroups(world_size=8, cp_size=2)
    for process in (-1, 8):
        with pytest.raises(cpkv.InputError, match=f"process is {process}, want 0 to 7"):
            groups.cp_rank(process)
        with pytest.raises(cpkv.InputError, match=f"process is {process}, want 0 to 7"):
            groups.members(process)


# --- Bad input ---


@BOTH
@pytest.mark.parametrize(
    ("prefix", "extend", "error", "words"),
    [
        ([0, 0], [1], cpkv.InputError, "there are 2 prefix_tokens and 1 extend_tokens, want one each a request"),
        ([-1], [1], cpkv.InputError, r"prefix_tokens\[0\] is -1, want 0 to 1099511627776"),
        ([0, 0], [3, 0], cpkv.InputError, r"extend_tokens\[1\] is 0, want 1 to"),
        ([0], [1 << 41], cpkv.InputError, r"extend_tokens\[0\] is 2199023255552, want 1 to"),
        ([0, 0], [1 << 40, 1 << 40], cpkv.InputError, "extend_tokens are 2 requests of up to 1099511627776 tokens"),
        ([0.0], [1], cpkv.InputTypeError, "prefix_tokens has elements of float64, want integers"),
        ([0], [True], cpkv.InputTypeError, "extend_tokens has elements of bool, want integers"),
        ([0], ["1"], cpkv.InputTypeError, "extend_tokens has elements of <U1, want integers"),
        ([[0]], [1], cpkv.InputError, r"prefix_tokens has shape \(1, 1\), want \(batch,\)"),
        (np.array([1 << 63], np.uint64), [1], cpkv.InputError, "prefix_tokens has 9223372036854775808, want"),
    ],
)
def test_lengths_that_cannot_be_are_named(split_batch, prefix, extend, error, words):
    with pytest.raises(error, match=words):
        split_batch(prefix, extend, cp_size=2, page_size=64)


@BOTH
@pytest.mark.parametrize(("size", "said"), [(0, "0"), (-2, "-2"), (2.0, "2.0"), (True, "True"), (None, "None")])
def test_sizes_that_cannot_be_are_named(split_batch, size, said):
    with pytest.raises(cpkv.ConfigError, match=f"cp_size is {said}, want an integer of at least 1"):
        split_batch([0], [1], cp_size=size, page_size=64)
    with pytest.raises(cpkv.ConfigError, match=f"page_size is {said}, want an integer of at least 1"):
        split_batch([0], [1], cp_size=2, page_size=size)


def test_ranks_that_are_not_there_are_named():
    split = zigzag_split([0], [100], cp_size=2, page_size=4)
    for rank in (-1, 2):
        with pytest.raises(cpkv.InputError, match=f"rank is {rank}, want 0 to 1"):
            split.view(rank)
    with pytest.raises(cpkv.InputError, match=r"open_page_ranks\[0\] is 2, want 0 to 1, or -1 for unknown"):
        zigzag_split([1], [100], cp_size=2, page_size=4, open_page_ranks=[2])
    with pytest.raises(
        cpkv.InputError, match=r"open_page_ranks are int64 of shape \(2,\), want integers of shape \(1,\)"
    ):
        zigzag_split([1], [100], cp_size=2, page_size=4, open_page_ranks=[0, 0])


@BOTH
def test_no_requests_are_a_batch(split_batch):
    split = split_batch([], [], cp_size=2, page_size=64)
    assert (split.tokens, split.padded_tokens, split.page_aligned) == (0, 0, True)
    view = split.view(1)
    assert (view.tokens, len(view.positions), len(view.rows), len(view.requests)) == (0, 0, 0, 0)
    assert split.restore(np.zeros((2, 0, 5))).shape == (0, 5)
    assert collect_last_token_hidden(view, np.zeros((0, 5)), lambda own: np.stack([own, own])).rows.shape == (0, 5)


def test_the_lengths_are_copied():
    lengths = np.array([100])
    batch = ExtendBatch.of([0], lengths)
    lengths[0] = 7
    assert batch.extend_tokens.tolist() == [100]
    assert len(batch) == 1
