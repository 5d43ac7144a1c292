"""Splits with torch tensors: the same as with arrays, and over rank processes that gather with gloo."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import cpkv
from cp_ranks import EXTEND, HIDDEN, PREFIX, SPLITS, batch_of
from cpkv.cp import as_last_hidden, interleave_split, own_last_hidden, zigzag_split
from cpkv.cp.tensors import CpTensors

RANKS = 2
SCRIPT = Path(__file__).parents[1] / "cp_ranks.py"
BOTH = pytest.mark.parametrize("split_batch", [zigzag_split, interleave_split])


def tensors_of(split):
    return [CpTensors.of(split.view(rank)) for rank in range(split.cp_size)]


@BOTH
@pytest.mark.parametrize("cp_size", [1, 2, 4])
@pytest.mark.parametrize("extend", [[1], [5, 4_096], [700, 1, 64]])
def test_tensors_do_what_arrays_do(split_batch, cp_size, extend):
    split = split_batch([64] * len(extend), extend, cp_size=cp_size, page_size=16)
    hidden = torch.randn(split.tokens, 8, dtype=torch.bfloat16)
    ranks = tensors_of(split)
    mine = [rank.take(hidden) for rank in ranks]
    for rank in ranks:
        view = rank.view
        assert torch.equal(mine[view.rank], hidden[torch.from_numpy(view.rows)])
        assert rank.positions.tolist() == view.positions.tolist()
        assert rank.causal_lengths.tolist() == view.causal_lengths.tolist()
        front, *back = view.split_parts(mine[view.rank])
        assert torch.equal(torch.cat([front, *back]), mine[view.rank])
    padded = torch.stack([rank.padded(rows) for rank, rows in zip(ranks, mine, strict=True)])
    assert padded.dtype == torch.bfloat16
    assert all(torch.equal(rank.restore(padded), hidden) for rank in ranks)
    assert all(torch.equal(rank.gather(rows, lambda _: padded), hidden) for rank, rows in zip(ranks, mine, strict=True))

    own = [[] for _ in ranks]
    for rank, rows in zip(ranks, mine, strict=True):
        rank.collect_last_token_hidden(
            rows,
            lambda tensor, rank=rank: own[rank.view.rank].append(tensor) or padded[:, :1].expand(-1, len(extend), -1),
        )
    for rank, rows, (tensor,) in zip(ranks, mine, own, strict=True):
        assert tensor.float().tolist() == own_last_hidden(rank.view, rows.float().numpy()).tolist()
    sent = torch.stack([tensor for (tensor,) in own])
    ends = torch.from_numpy(np.cumsum(extend) - 1)
    for rank, rows in zip(ranks, padded, strict=True):
        # Padding behind the rows changes nothing.
        collected = rank.collect_last_token_hidden(rows, lambda _: sent)
        assert torch.equal(as_last_hidden(split, collected), hidden[ends])
        assert torch.equal(as_last_hidden(split, hidden), hidden[ends])


@pytest.mark.parametrize(
    ("extend", "where"),
    [([64], [0]), ([64, 64], [0, 0]), ([64, 63], [1, 0])],
    ids=["one request", "all on a rank", "on several ranks"],
)
def test_what_is_not_finite_elsewhere_does_not_get_into_the_gather(extend, where):
    split_batch = interleave_split if len(set(where)) > 1 else zigzag_split
    split = split_batch([0] * len(extend), extend, cp_size=2, page_size=16)
    assert split.last_ranks.tolist() == where
    for rank in tensors_of(split):
        hidden = torch.full((rank.view.tokens, 4), float("nan"))
        sent = []
        rank.collect_last_token_hidden(
            hidden, lambda own, sent=sent: (sent.append(own), torch.zeros(2, len(extend), 4))[1]
        )
        assert [bool(row.isnan().all()) for row in sent[0]] == [owner == rank.view.rank for owner in where]
        assert [bool((row == 0).all()) for row in sent[0]] == [owner != rank.view.rank for owner in where]


def test_zeros_are_as_wide_as_the_hidden_states_and_of_their_type():
    rank = tensors_of(zigzag_split([0], [64], cp_size=2, page_size=16))[1]
    for width, dtype in ((4, torch.float32), (8, torch.float32), (8, torch.bfloat16)):
        sent = []
        hidden = torch.ones(32, width, dtype=dtype)
        gathered = torch.zeros(2, 1, width)
        rank.collect_last_token_hidden(
            hidden, lambda own, sent=sent, gathered=gathered: (sent.append(own), gathered)[1]
        )
        assert (sent[0].shape, sent[0].dtype, bool(sent[0].any())) == ((1, width), dtype, False)


@BOTH
def test_what_a_lone_rank_collects_is_a_copy(split_batch):
    (rank,) = tensors_of(split_batch([0], [64], cp_size=1, page_size=16))
    hidden = torch.ones(64, 4)
    collected = rank.collect_last_token_hidden(hidden, lambda own: own[None])
    hidden.zero_()
    assert collected.rows.tolist() == [[1.0] * 4]


def test_an_empty_batch_has_no_last_tokens():
    for rank in tensors_of(zigzag_split([], [], cp_size=2, page_size=16)):
        collected = rank.collect_last_token_hidden(torch.ones(0, 4), lambda own: torch.stack([own, own]))
        assert collected.rows.shape == (0, 4)


@BOTH
def test_tensors_of_another_length_are_refused(split_batch):
    split = split_batch([0], [40], cp_size=2, page_size=4)
    rank = tensors_of(split)[0]
    tokens = rank.view.tokens
    with pytest.raises(cpkv.InputError, match=r"batch_rows has shape \(39, 2\), want \(40, \.\.\.\)"):
        rank.take(torch.zeros(39, 2))
    with pytest.raises(cpkv.InputError, match=rf"rows has shape \({tokens + 1}, 2\), want \({tokens}, \.\.\.\)"):
        rank.padded(torch.zeros(tokens + 1, 2))
    with pytest.raises(cpkv.InputError, match=r"gathered has shape \(3, 2\)"):
        rank.restore(torch.zeros(3, 2))
    with pytest.raises(
        cpkv.InputError, match=rf"hidden has shape \({tokens - 1}, 2\), want \({tokens} or more, hidden\)"
    ):
        rank.collect_last_token_hidden(torch.zeros(tokens - 1, 2), lambda own: own)
    with pytest.raises(cpkv.InputError, match=r"gathered has shape \(1, 2\), want \(2, 1, hidden\)"):
        rank.collect_last_token_hidden(torch.zeros(tokens, 2), lambda own: own)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """What rank processes have said."""
    file = tmp_path_factory.mktemp("ranks") / "meeting"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(RANKS), str(file)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=100)[0]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    return said


@pytest.mark.timeout(120)  # each process imports torch
def test_rank_processes_get_every_row_where_it_belongs(outputs):
    for name, split_batch in SPLITS.items():
        split = split_batch(PREFIX, EXTEND, cp_size=RANKS, page_size=16)
        ends = torch.from_numpy(np.cumsum(EXTEND) - 1)
        for output in outputs:
            assert output[name]["is_whole"]
            assert output[name]["last"] == batch_of(split.tokens)[ends].tolist()
            # What a rank sends of the last tokens, and of all rows.
            assert output[name]["sent"] == [len(EXTEND) * HIDDEN * 4, split.padded_tokens * HIDDEN * 4]


@pytest.mark.timeout(120)  # each process imports torch
@pytest.mark.parametrize("name", SPLITS)
def test_a_collection_queues_the_same_with_both_splits_and_of_one_request_nothing_but_the_collective(outputs, name):
    collective, choose, clear = "c10d._allgather_base_", "aten.index_select", "aten.masked_fill_"
    seen = set()
    for output in outputs:
        for batch, (has_some, owners, queued) in output[name]["queued"].items():
            seen.add((batch, owners))
            in_front = [] if batch == "of one request" or not has_some else [choose]
            wanted = [*in_front, collective] if owners == 1 else [choose, clear, collective, choose]
            assert queued == wanted, (batch, has_some)
    several = ("of several ranks", 2 if name == "interleave" else 1)
    assert seen == {("of one request", 1), ("of one rank", 1), several}
