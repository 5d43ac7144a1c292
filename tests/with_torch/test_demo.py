"""`cpkv demo` from the outside, with two ranks and one split, and what it says when something differs."""

import json
import multiprocessing
import os
import re
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import cpkv.cli.demo
import cpkv.demo.run
import cpkv.engine.engine
from command_line import run_command
from cpkv.cli import main
from cpkv.cli.demo import _watched
from cpkv.cp import interleave_split, zigzag_split
from cpkv.demo import DemoSettings
from cpkv.demo.recorder import Recorder
from cpkv.demo.scenarios import SCENARIOS, Scenarios, short_length
from cpkv.demo.scenarios import _problems as problems_of
from cpkv.demo.verdict import expected, judge
from cpkv.demo.watching import COMMITS, Progress, new_cells
from cpkv.device import BACKUP, RESTORE, CpuEngine
from cpkv.engine import Engine
from cpkv.engine.forward import Model
from cpkv.engine.ranks import Ranks
from cpkv.errors import ConfigError

pytestmark = pytest.mark.timeout(180)  # processes import torch

ROOT = Path(__file__).parents[2]
SMALL = ("--ranks", "2", "--split", "zigzag")


def demo(*arguments):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
    return run_command("demo", *arguments, timeout=150, env=environment)


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    ran = demo(*SMALL, "--out", folder / "out", "--json", folder / "demo.json")
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout, json.loads((folder / "demo.json").read_text()), folder / "out"


def test_every_scenario_is_equal(done):
    stdout, written, folder = done
    assert written["is_equal"]
    assert written["problems"] == []
    assert [row["scenario"] for row in written["rows"]] == list(SCENARIOS)
    assert stdout.splitlines()[-1] == f"all {len(SCENARIOS)} scenarios are equal"
    assert f"timeline                 {folder / 'timeline.json'}" in stdout
    rows = {row["scenario"]: row for row in written["rows"]}
    assert all(row["is_equal"] and row["wrong_pages"] == 0 and row["pages"] > 0 for row in rows.values())
    assert all(row["acceptance_length"] == row["expected_length"] > 1 for row in rows.values())
    assert rows["host-restored"]["host_hit_tokens"] == rows["device-hot"]["device_hit_tokens"] > 400
    assert written["all_layer_forwards"] == written["other_collectives"] == 0
    assert 0 < written["hidden"] <= 1
    for row in written["rows"]:
        assert re.search(rf"^zigzag +{row['scenario']} +equal", stdout, re.MULTILINE)


def test_the_timeline_has_what_each_rank_has_done(done):
    events = json.loads((done[2] / "timeline.json").read_text())["traceEvents"]
    for rank in range(2):
        mine = [event for event in events if event["pid"] == f"zigzag, rank {rank}"]
        timed = [event for event in mine if event["ph"] == "X"]
        # A late backup may have no page in a rank's lane.
        assert {event["cat"] for event in timed} - {"late"} == {"forward", "layer", "copy", "restore", "commit"}
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in timed)
        names = {event["tid"]: event["args"]["name"] for event in mine if event["ph"] == "M"}
        assert {event["tid"] for event in timed} <= set(names)
        assert {"layers", "backups", "commits"} < set(names.values())


def test_the_picture_is_one(done):
    assert (done[2] / "timeline.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert f"picture                  {done[2] / 'timeline.png'}" in done[0]


def test_the_table_in_the_readme_has_the_form_of_what_is_printed(done):
    shown = re.search(r"<!-- demo -->\n```\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    lines, printed = shown.group(1).splitlines(), done[0].splitlines()
    assert lines[0].split() == printed[0].split()

    def names(text):
        return [re.split(r"  +", line)[:2] for line in text if line.startswith("zigzag")], [
            re.split(r"  +|(?<=cache) |(?<=compute) ", line)[0] for line in text[-8:-2]
        ]

    assert names(lines) == names(printed)


def test_what_differs_is_named_and_ends_with_1(tmp_path, monkeypatch, capsys):
    def other(config, short):
        return {
            length: replace(seen, tokens=(*seen.tokens[:-1], seen.tokens[-1] ^ 1))
            for length, seen in expected(config, short).items()
        }

    monkeypatch.setattr(cpkv.demo.run, "expected", other)
    monkeypatch.setattr(sys, "argv", ["cpkv", "demo", *SMALL, "--out", str(tmp_path)])
    assert main() == 1
    stdout = capsys.readouterr().out
    assert "zigzag, cold: rank 0, request 0: tokens differ" in stdout
    assert "scenarios are equal" not in stdout
    assert stdout.count("DIFFER") == len(SCENARIOS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "0"], "ranks is 0, want 1 to 16"),
        (["--split", "halves"], "splits are halves, want some of zigzag, interleave"),
        (["--page-size", "0"], "page_size is 0, want 1 to 64"),
        (["--page-size", "65"], "page_size is 65, want 1 to 64"),
        (["--device", "tpu"], "device is 'tpu', want 'cpu', 'cuda' or 'cuda:' and a number"),
        (["--device", "cuda:99"], "device is 'cuda:99', and torch finds"),
        (["--out", "/proc/nothing"], "/proc/nothing: No such file or directory"),
        (["--json", "/nowhere/demo.json"], "--json: /nowhere is no folder, want one that exists"),
    ],
)
def test_what_cannot_be_run_is_told_in_one_line(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(sys, "argv", ["cpkv", "demo", *arguments])
    assert main() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert words in told.err
    assert told.err.count("\n") == 1


def test_scenarios_without_a_cache_are_not_what_they_are_called():
    scenarios, settings = Scenarios(new_cells(1, 4), "zigzag"), DemoSettings(ranks=1, splits=("zigzag",))
    with Engine(replace(settings.engine("zigzag"), is_cached=False), **scenarios.options(0)) as engine:
        report = scenarios(engine)
    told = {name: outcome.problems for name, outcome in report.outcomes.items()}
    nothing = "from the device [0, 0, 0] tokens were found, from the host [0, 0, 0], want "
    assert told["cold"] == told["short request"] == []
    assert told["device-hot"] == [nothing + "some from the device only for each request"]
    assert told["host-restored"] == [nothing + "some from the host only for each request"]
    assert told["partly restored"] == [nothing + "some from both"]
    assert told["abort in mid-backup"] == ["the aborted request is finished, and 0 pages of it are found"]
    short = short_length(1, 16)
    rows = judge({"zigzag": [report]}, expected(settings.engine("zigzag"), short), short).rows
    assert rows[0].problems[-1] == "0 pages were compared at the end, want 32"
    assert all(row.problems[-1].startswith("0 pages were compared at the end, want ") for row in rows)


def test_what_is_cold_only_once_is_told():
    scenarios, settings = Scenarios(new_cells(1, 4), "zigzag"), DemoSettings(ranks=1, splits=("zigzag",))
    with Engine(settings.engine("zigzag"), **scenarios.options(0)) as engine:
        assert not any(outcome.problems for outcome in scenarios(engine).outcomes.values())
        outcomes = scenarios(engine).outcomes
    assert outcomes["cold"].problems == [
        "from the device [224, 96, 144] tokens were found, from the host [0, 0, 0], want none"
    ]
    assert outcomes["short request"].problems == [
        "from the device [0] tokens were found, from the host [16], want none"
    ]


@pytest.mark.parametrize(
    ("ranks", "page_size", "split", "is_told"),
    [
        (2, 16, "zigzag", True),
        (4, 1, "zigzag", True),
        (2, 16, "interleave", True),
        # Those split every prompt by pages.
        (1, 16, "zigzag", False),
        (2, 1, "interleave", False),
    ],
)
def test_a_short_request_that_was_split_by_pages_is_told(ranks, page_size, split, is_told):
    settings = DemoSettings(ranks=ranks, page_size=page_size, splits=(split,))
    engine = SimpleNamespace(cp_size=ranks, config=settings.engine(split))
    request = SimpleNamespace(device_hit_tokens=0, host_hit_tokens=0)
    problem = "the short request was split by pages, want one that is too short for that"
    assert problems_of("short request", engine, [request], 0) == [problem] * is_told
    assert problems_of("short request", engine, [request], 1) == []
    length = short_length(ranks, page_size)
    split_of = zigzag_split if split == "zigzag" else interleave_split
    assert split_of([0], [length], cp_size=ranks, page_size=page_size).page_aligned == (not is_told)


def test_a_page_that_is_visible_before_it_is_whole_is_seen():
    """Somebody says that every copy has landed, as soon as it was submitted."""
    scenarios = Scenarios(new_cells(1, 4), "zigzag")
    settings = DemoSettings(ranks=1, splits=("zigzag",))
    options = scenarios.options(0) | {"copy_engine": CpuEngine(bytes_per_s=1e6)}
    with Engine(settings.engine("zigzag"), **options) as engine:
        tick = engine.cache.tick
        engine.tier.cache = SimpleNamespace(tick=lambda step, _, **named: tick(step, [1 << 40] * 3, **named))
        report = scenarios(engine)
        engine.tier.cache = engine.cache
    assert any("a backup, page 0" in wrong for wrong in report.outcomes["cold"].wrong)


def test_a_late_backup_is_compared_when_it_becomes_visible():
    """The same for late copies only, which begin long before they are written."""
    scenarios = Scenarios(new_cells(1, 4), "zigzag")
    settings = DemoSettings(ranks=1, splits=("zigzag",))
    options = scenarios.options(0) | {"copy_engine": CpuEngine(bytes_per_s=1e6)}
    with Engine(settings.engine("zigzag"), **options) as engine:
        tick, acks = engine.cache.tick, engine.tier.engine.acks
        engine.tier.cache = SimpleNamespace(
            tick=lambda step, _, **named: tick(step, [acks.load(BACKUP), 1 << 40, acks.load(RESTORE)], **named)
        )
        report = scenarios(engine)
        engine.tier.cache = engine.cache
    wrong = [one for outcome in report.outcomes.values() for one in outcome.wrong]
    assert any(one.startswith("a late backup, page") for one in wrong)
    assert not any(one.startswith("a backup") for one in wrong)


def test_a_backup_that_nobody_has_compared_is_told(monkeypatch):
    monkeypatch.setattr(cpkv.engine.engine, "late_backups", lambda *_: {})
    scenarios, settings = Scenarios(new_cells(1, 4), "zigzag"), DemoSettings(ranks=1, splits=("zigzag",))
    with Engine(settings.engine("zigzag"), **scenarios.options(0)) as engine:
        report = scenarios(engine)
    (problem,) = report.outcomes["cold"].problems
    assert re.fullmatch(r"\d of \d+ backups were compared when they became visible", problem)


def test_a_rank_that_stands_still_is_named_and_ends_the_demo(tmp_path, monkeypatch, capsys):
    def watch(_, seen):
        if seen[0].seen().steps > 3:
            for process in multiprocessing.active_children():
                if process.name == "cpkv-rank-0":
                    os.kill(process.pid, signal.SIGSTOP)

    monkeypatch.setattr(cpkv.demo.run, "Ranks", partial(Ranks, patience_s=4))
    monkeypatch.setattr(cpkv.cli.demo, "_watched", lambda _: nullcontext(watch))
    monkeypatch.setattr(sys, "argv", ["cpkv", "demo", *SMALL, "--out", str(tmp_path)])
    assert main() == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert "rank 0: stands still: it has not ended in 19 s after the first rank" in told.err
    assert told.err.count("\n") == 1


def test_who_watches_sees_layers_copies_and_commits(monkeypatch, capsys):
    cells = new_cells(2, 3)
    first, second = (Progress(cells, rank, 3) for rank in range(2))
    for layer in (0, 1, 2, 0):
        first.computed(layer)
    first.copied(0)
    second.add(COMMITS, 5)
    second.scenario(1)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with _watched(2) as watch:
        watch("zigzag", [first, second])
    lines = [line.split() for line in capsys.readouterr().err.splitlines() if "rank" in line]
    assert lines[0][2:] == ["cold", "0", "2", "▸", "1", "1", "▸", "0", "1", "▸", "0", "0"]
    assert lines[1][2:] == ["device-hot", "0", *["0", "▸", "0"] * 3, "5"]


def test_what_is_watched_is_what_was_done():
    cells = new_cells(1, 4)
    scenarios, settings = Scenarios(cells, "zigzag"), DemoSettings(ranks=1, splits=("zigzag",))
    with Engine(settings.engine("zigzag"), **scenarios.options(0)) as engine:
        report = scenarios(engine)
        committed = engine.cache.stats().committed_operations
    seen = Progress(cells, 0, 4).seen()
    assert seen.scenario == len(SCENARIOS) - 1
    copies = [event["name"] for event in report.events if event.get("cat") == "copy"]
    assert sum(seen.copied) == len(set(copies)) > 0
    assert all(0 < copied <= computed for copied, computed in zip(seen.copied, seen.computed, strict=True))
    assert sum(seen.computed) == sum(event.get("cat") == "layer" for event in report.events)
    commits = [event["name"] for event in report.events if event.get("cat") == "commit"]
    counts = [tuple(map(int, re.findall(r"\d+", name))) for name in commits]
    late = sum(late for _, late in counts)
    assert seen.commits == sum(count for count, _ in counts) == committed > late > 0
    # Those of a step are copied together.
    assert 0 < sum(event.get("cat") == "late" for event in report.events) <= late


def test_the_first_forwards_that_are_recorded_are_not_the_first_of_their_kind(monkeypatch):
    """They were computed once before, by another engine, and nobody has noticed."""
    scenarios, settings = Scenarios(new_cells(1, 4), "zigzag"), DemoSettings(ranks=1, splits=("zigzag",))
    forwards, at_begin = [], []

    def noted(name, compute):
        def forward(model, rows, *hidden):
            forwards.append((model, (name, len(rows.positions), tuple(map(len, rows.pages)))))
            return compute(model, rows, *hidden)

        return forward

    for name in ("target", "draft"):
        monkeypatch.setattr(Model, name, noted(name, getattr(Model, name)))

    def attach(recorder, engine, progress, attach=Recorder.attach):
        at_begin.append((len(forwards), engine.cache.digest(), engine.exchange.calls.total()))
        attach(recorder, engine, progress)

    monkeypatch.setattr(Recorder, "attach", attach)
    with Engine(settings.engine("zigzag"), **scenarios.options(0)) as engine:
        untouched = engine.cache.digest()
        scenarios(engine)
    ((before, digest, calls),) = at_begin
    assert (digest, calls) == (untouched, 0)
    assert not any(model is engine.model for model, _ in forwards[:before])
    recorded = [kind for model, kind in forwards[before:] if model is engine.model]
    assert {name for name, _, _ in recorded[:before]} == {"target", "draft"}
    assert [kind for _, kind in forwards[:before]] == recorded[:before]


def test_settings_name_what_is_wrong():
    with pytest.raises(ConfigError, match="ranks is 17, want 1 to 16"):
        DemoSettings(ranks=17)
    with pytest.raises(ConfigError, match="splits are none"):
        DemoSettings(splits=())
