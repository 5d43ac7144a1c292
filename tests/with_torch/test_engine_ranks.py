"""Ranks of the reference engine: what they send, and what happens when one of them breaks or dies."""

import logging
import re
import signal

import pytest

import cpkv
from cpkv.engine import Engine, Stage
from cpkv.engine.ranks import RankFailure, Ranks, run_ranks
from engine_work import (
    CountedCollectives,
    Crowded,
    DirectAnyway,
    Drafts,
    Generated,
    Killed,
    Temperatures,
    WrongRank,
    config,
    prompts,
    seen_of,
)

pytestmark = pytest.mark.timeout(180)  # processes import torch


def test_the_cache_makes_no_collective():
    for said in run_ranks(CountedCollectives(), config(), 2):
        assert said["model"] > 20
        assert said["restored"] > 0
        assert said["all"] == said["model"], "whatever was sent, the model has sent"
        assert said["with two more"] == said["all"] + 2, "nothing goes past the count"


def test_what_is_not_page_aligned_is_not_written_directly():
    with pytest.raises(cpkv.CpkvError, match="rank 0: DirectWriteError: request 0 is not page-aligned"):
        run_ranks(DirectAnyway(), config(), 2)


@pytest.mark.parametrize("gathers_all", [False, True])
def test_both_forms_of_hidden_states_give_the_same_logits_on_all_ranks(gathers_all):
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        wanted = [seen_of(request) for request in engine.generate(prompts(1, [40, 75]), 3)]
    for said in run_ranks(Generated([40, 75], 3), config(gathers_all_hidden=gathers_all), 2):
        for seen, want in zip(said, wanted, strict=True):
            assert (seen["tokens"], seen["logits"]) == (want["tokens"], want["logits"])


def test_the_last_token_of_another_rank_is_another_one():
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        (wanted,) = [seen_of(request) for request in engine.generate(prompts(1, [100]), 4)]
    for (seen,) in run_ranks(WrongRank(), config(), 2):
        assert seen["logits"] != wanted["logits"]


@pytest.mark.parametrize("split", ["zigzag", "interleave"])
def test_requests_that_do_not_fit_at_once_take_turns_on_all_ranks(split):
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        wanted = [seen_of(request) for request in engine.generate(prompts(5, [30, 31, 32, 33]), 64)]
    ranks = run_ranks(Crowded(), config(split=split, device_pages=8, host_slots=8, chunk_tokens=50), 2)
    for said in ranks:
        for seen, want in zip(said["seen"], wanted, strict=True):
            assert (seen["tokens"], seen["logits"]) == (want["tokens"], want["logits"])
        assert said["retracted"] > 0
        assert said["victim"] is Stage.ABORTED
        assert said["wrong"] == []
        assert said["digest"] == ranks[0]["digest"]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_that_dies_in_a_forward_is_named_and_leaves_nothing(tmp_path, victim):
    with Ranks(Killed(victim), config(), 3, folder=tmp_path, patience_s=30) as ranks:
        results = ranks.results()
    for rank, said in enumerate(results):
        if rank == victim:
            assert isinstance(said, RankFailure)
            assert said.said == "the process has ended with status -9"
        else:
            assert said["said"] == f"the process of rank {victim} has died"
            assert said["seconds"] < 30, "long before the patience of the log ends"
    # The same group can begin again at once, in the same place.
    with Ranks(Temperatures([40], new_tokens=3), config(), 3, folder=tmp_path) as ranks:
        again = ranks.results()
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        (wanted,) = [seen_of(request) for request in engine.generate(prompts(1, [40]), 3)]
    for said in again:
        for temperature in ("cold", "hot", "restored", "partly restored"):
            (seen,) = said[temperature]
            assert (seen["tokens"], seen["logits"]) == (wanted["tokens"], wanted["logits"]), temperature
        assert said["bytes"]["wrong"] == said["bytes in the end"]["wrong"] == []
        assert said["digest"] == again[0]["digest"]
    assert sum(said["bytes"]["host_pages"] for said in again) == 2


def test_a_rank_that_stands_still_in_a_forward_is_named(tmp_path):
    with Ranks(Killed(1, signal.SIGSTOP), config(), 3, folder=tmp_path, patience_s=8) as ranks:
        said = [ranks.result(rank, 60) for rank in (0, 2)]
        assert ranks.result(1, 0.1) == RankFailure("", "the process has not ended in 0.1 s")
    assert re.fullmatch(r"rank 1 is silent for 8\.\d+s", said[0]["said"]), said
    # Rank 2 waits for rank 0, which has given up.
    assert re.fullmatch(r"rank 1 is silent for 8\.\d+s|rank 0 has left", said[1]["said"]), said
    assert max(one["seconds"] for one in said) < 40


def ranges(line, what):
    """Return the numbers that a line has behind some words, in their order there."""
    runs = re.search(rf"{what} ((?:\d+(?:-\d+)?(?:, )?)+)", line).group(1)
    ends = [tuple(map(int, run.split("-"))) for run in runs.strip(", ").split(", ")]
    return [number for end in ends for number in range(end[0], end[-1] + 1)]


def test_ranks_tell_where_their_drafts_write():
    (first, second) = run_ranks(Drafts(), config(), 2)
    for rank, said in enumerate((first, second)):
        mine = [line.removeprefix(f"rank {rank} of 2: ") for line in said["lines"]]
        assert mine[0] == (
            "draft pool of 256 pages, buffers registered: "
            "draft_kv of 1536 bytes a page, draft_index of 2112 bytes a page"
        )
        # 80 tokens are five pages for four segments; 20 are too few for that, and their rows are sent.
        written = [line for line in mine if line.startswith("draft rows written")]
        assert ranges(written[0], "own pages") == said["aligned_pages"]
        assert ranges(written[0], "physical rows") == [
            row for page in said["aligned_pages"] for row in range(16 * page, 16 * page + 16)
        ]
        assert written[0].startswith(f"draft rows written: {said['aligned_rows']}, physical rows ")
        assert written[0].endswith(", rows sent: 0, of pages none")
        (sent,) = [line for line in written if "rows sent: 0," not in line]
        # Zigzag by tokens: the first rank computes the first and the last five of 20.
        assert "rows sent: 10, of pages " in sent
        assert len(ranges(sent, "of pages")) == 2 - rank
        committed = [line for line in mine if line.startswith("committed: ")]
        assert re.fullmatch(
            r"committed: operation \d+, backup of a sequence's pages 0-3, device pages [\d, -]+, host slots [\d, -]+",
            committed[0],
        )
        # The fifth page, which rank 0 has computed, is rank 0's, and waits for the token behind it.
        assert len(set(said["ids"]) - set(ranges(committed[0], "device pages"))) == (rank == 0)
        assert any(re.match(r"committed: operation \d+, late backup of a sequence's pages 4, ", line) for line in mine)
    assert first["aligned_rows"] + second["aligned_rows"] == 80
    assert not set(first["ids"]) & set(second["ids"])


def test_one_rank_tells_it_on_standard_error(monkeypatch, capfd):
    monkeypatch.setenv("CPKV_DEBUG_DRAFT_SHARED_KV", "1")
    monkeypatch.setattr(logging.getLogger("cpkv.draft"), "handlers", [])
    with Engine(config()) as engine:
        engine.generate(prompts(1, [40]), 2)
    lines = capfd.readouterr().err.splitlines()
    assert lines[0].startswith("rank 0 of 1: draft pool of 256 pages, buffers registered: ")
    written = "draft rows written: 40, physical rows 0-39, own pages 0-2, rows sent: 0, of pages none"
    assert f"rank 0 of 1: {written}" in lines
