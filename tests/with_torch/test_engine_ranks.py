"""Ranks of the reference engine: what they send, and what happens when one of them breaks or dies."""

import pytest

import cpkv
from cpkv.engine import Engine
from cpkv.engine.ranks import RankFailure, Ranks, run_ranks
from engine_work import CountedCollectives, DirectAnyway, Killed, Temperatures, WrongRank, config, prompts, seen_of

pytestmark = pytest.mark.timeout(180)  # processes import torch


def test_the_cache_makes_no_collective():
    for said in run_ranks(CountedCollectives(), config(), 2):
        assert said["model"] > 20
        assert said["restored"] > 0
        assert said["all"] == said["model"], "whatever was sent, the model has sent"


def test_what_is_not_page_aligned_is_not_written_directly():
    with pytest.raises(cpkv.CpkvError, match="rank 0: DirectWriteError: request 0 is not page-aligned"):
        run_ranks(DirectAnyway(), config(), 2)


def test_the_last_token_of_another_rank_is_another_one():
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        (wanted,) = [seen_of(request) for request in engine.generate(prompts(1, [100]), 4)]
    for (seen,) in run_ranks(WrongRank(), config(), 2):
        assert seen["logits"] != wanted["logits"]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_in_a_forward_is_named_and_leaves_nothing(victim):
    with Ranks(Killed(victim), config(), 3) as ranks:
        results = ranks.results()
    for rank, said in enumerate(results):
        if rank == victim:
            assert isinstance(said, RankFailure)
            assert said.said == "the process has ended with status -9"
        else:
            assert said["said"] == f"the process of rank {victim} has died"
    # The same group can begin again at once.
    again = run_ranks(Temperatures([40], new_tokens=3), config(), 3)
    assert {said["digest"] for said in again} == {again[0]["digest"]}


def test_a_rank_tells_where_its_draft_writes(monkeypatch, capfd):
    monkeypatch.setenv("CPKV_DEBUG_DRAFT_SHARED_KV", "1")
    with Engine(config()) as engine:
        engine.generate(prompts(1, [40]), 2)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0] == (
        "rank 0 of 1: draft pool of 256 pages, buffers registered: "
        "draft_kv of 1536 bytes a page, draft_index of 2112 bytes a page"
    )
    assert "rank 0 of 1: draft rows written: 40 in own pages [0, 1, 2], rows sent: 0" in lines
    assert any(line.startswith("rank 0 of 1: committed [") for line in lines)
