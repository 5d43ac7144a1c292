"""`cpkv bench gather` on rank processes that gather with gloo. Nothing here is about time."""

import contextlib
import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from command_line import cpkv_command, run_command
from cpkv.bench.gather import GatherCase, GatherSettings, rank_process

pytestmark = pytest.mark.timeout(180)  # processes import torch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "python")}
run = partial(run_command, "bench", "gather", timeout=150, env=ENVIRONMENT)
RANKS, TOKENS, HIDDEN = 2, 192, 24
TINY = ["--device", "cpu", "--ranks", RANKS, "--tokens", TOKENS, "--hidden", HIDDEN, "--repeats", 3]
CASES = [GatherCase(mode, batch) for mode in ("zigzag", "interleave") for batch in (1, 5)]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    file = tmp_path_factory.mktemp("gather") / "out.json"
    ran = run(*TINY, "--batch", 1, "--batch", 5, "--json", file)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout, json.loads(file.read_text())


def test_what_is_sent_and_what_comes_back(done):
    figures = {figure["name"]: figure for figure in done[1]["figures"]}
    for case in CASES:
        sent = figures[f"{case}, sent by all ranks"]
        assert sent["median"] == sent["target"] == RANKS * case.batch * HIDDEN * 2
        assert (sent["wanted"], sent["is_met"]) == ("exactly", True)
        padded = case.split(RANKS, TOKENS).padded_tokens
        assert sent["peers"]["full gather"]["samples"] == [RANKS * padded * HIDDEN * 2]
        differing = figures[f"{case}, last tokens that differ"]
        assert (differing["median"], differing["is_met"]) == (0, True)
    owners = [set(case.split(RANKS, TOKENS).last_ranks.tolist()) for case in CASES]
    assert owners == [{0}, {0}, {1}, {0, 1}], "rows of one rank, and rows of several"


def test_every_repeat_is_told_and_none_has_a_target_here(done):
    stdout, written = done
    assert set(written) == {"settings", "machine", "figures"}
    assert written["settings"] == {
        "device": "cpu", "ranks": RANKS, "tokens": TOKENS, "hidden": HIDDEN, "batches": [1, 5],
        "splits": ["zigzag", "interleave"], "repeats": 3,
    }  # fmt: skip
    assert {"date", "processor", "cores", "command", "device", "backend", "torch"} < set(written["machine"])
    assert "/" not in written["machine"]["command"]
    assert written["machine"]["command"].endswith("--json FILE")
    clocks = [figure for figure in written["figures"] if figure["name"].endswith("by the thread's clock")]
    assert len(clocks) == len(CASES)
    for figure in clocks:
        assert (figure["unit"], figure["target"], figure["is_met"]) == ("us", None, None)
        assert len(figure["samples"]) == len(figure["peers"]["full gather"]["samples"]) == 3
        assert min(figure["samples"]) > 0
    heading, _, columns, *rows = stdout.rstrip("\n").split("\n")
    assert heading == "no GPU, gloo: 192 tokens of 24 bf16 on each of 2 ranks, 3 repeats"
    assert columns.split() == ["last", "tokens", "wanted", "met", "full", "gather"]
    assert len(rows) == len(written["figures"]) == 3 * len(CASES)
    for row, figure in zip(rows, written["figures"], strict=True):
        assert row.startswith(f"  {figure['name']} ")


@pytest.mark.skipif(torch.cuda.device_count() >= RANKS, reason="there are GPUs")
def test_gpus_that_are_not_there_are_told():
    ran = run("--device", "cuda")
    assert (ran.returncode, ran.stdout) == (2, "")
    gpus = torch.cuda.device_count()
    assert ran.stderr == f"cpkv: device is 'cuda', and torch sees {gpus} GPUs, want 2: one for each rank\n"


def test_cases_and_ways_take_turns_on_every_rank_in_the_same_order(monkeypatch):
    called = []

    class Gathers:
        def __init__(self, split, *_):
            self.name = split.mode, len(split.batch)

        def compared(self):
            return {"case": self.name, "microseconds": {"narrow": {}, "full": {}}}

        def call(self, way):
            return (*self.name, way)

    def begin(call):
        called.append(call)
        return {"clock": float(len(called))}

    monkeypatch.setattr(rank_process, "Gathers", Gathers)
    monkeypatch.setattr(rank_process, "WARM_UP", 0)
    monkeypatch.setattr(rank_process, "LEAD", 1)
    monkeypatch.setattr(rank_process, "TURN", 3)
    settings = GatherSettings(repeats=8).fitted("cpu")
    reports = rank_process._measured(settings, 0, torch.device("cpu"), SimpleNamespace(ways_to_begin=[begin]))
    every = {(case.mode, case.batch, way) for case in settings.cases for way in ("narrow", "full")}
    orders = []
    for calls in (4, 4, 3):
        turns = [[called.pop(0) for _ in range(calls)] for _ in every]
        assert all(len(set(turn)) == 1 for turn in turns)
        orders.append([turn[0] for turn in turns])
    assert called == []
    assert [set(order) for order in orders] == [every] * 3, "nobody has two turns before all have had one"
    assert orders[0] == orders[1][::-1] == orders[2]
    assert [report["case"] for report in reports] == [(case.mode, case.batch) for case in settings.cases]
    for report in reports:
        assert [len(readings["clock"]) for readings in report["microseconds"].values()] == [8, 8]


def ranks_of(process):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return []


def test_a_rank_that_dies_ends_the_run_in_one_line():
    endless = cpkv_command("bench", "gather", *TINY[:-1], 1_000_000_000)
    with subprocess.Popen(
        endless, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    ) as process:
        while len(ranks := ranks_of(process)) < RANKS:
            assert process.poll() is None
            time.sleep(0.02)
        os.kill(int(ranks[1]), signal.SIGKILL)
        stdout, told = process.communicate(timeout=150)
    assert (process.returncode, stdout) == (2, "")
    assert told.count("\n") == 1
    assert told.startswith(("cpkv: rank 1 ended with code -9", "cpkv: rank 0 ended with code 1: "))
