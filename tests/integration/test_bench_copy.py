"""`cpkv bench copy` from the outside, without a GPU. Nothing here is about time."""

import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from command_line import run_command
from cpkv.bench.copy import COPY_MEASUREMENTS, faults

ROOT = Path(__file__).parents[2]
run = partial(run_command, "bench", "copy")
TINY = ["--engine", "cpu", "--pages", "4", "--layers", "3", "--repeats", "1"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    done = run(*TINY, "--json", folder / "out.json", "--timeline", folder / "timeline.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert {file.name for file in folder.iterdir()} == {"out.json", "timeline.json"}
    return done.stdout, (folder / "out.json").read_text(), (folder / "timeline.json").read_text()


def test_every_figure_is_measured_and_has_no_target_here(whole):
    stdout, written = whole[0], json.loads(whole[1])
    assert set(written) == {
        "source", "is_complete", "settings", "machine", "engine", "totals", "figures",
    }  # fmt: skip
    assert written["is_complete"]
    assert written["settings"] == {
        "engine": "cpu", "pages": [4], "layers": 3, "repeats": 1, "copy_path": None, "peers": "all",
        "seconds": 240.0,
    }  # fmt: skip
    assert {"date", "processor", "cores", "command", "device"} < set(written["machine"])
    figures = written["figures"]
    assert list(dict.fromkeys(figure["measurement"] for figure in figures)) == [
        name for name in COPY_MEASUREMENTS if not name.startswith("fewer-")
    ]  # fmt: skip
    for figure in figures:
        assert (figure["error"], figure["target"], figure["is_met"]) == ("", None, None)
        assert len(figure["samples"]) == 1
        assert f"  {figure['name']} " in stdout
    rows = {figure["name"]: figure for figure in figures}
    for load in ("alone", "beside matmul", "beside memory"):
        peers = rows[f"to host, 4 pages, scattered, {load}"]["peers"]
        assert list(peers) == ["contiguous", "each page", "SGLang kernel", "SGLang JIT", "SGLang direct"]
        assert peers["each page"]["samples"]
        assert peers["SGLang kernel"]["error"] == "not there: no GPU"
    assert rows["to device, 4 pages, runs of 4, slowdown of matmul"]["peers"]["A/A"]["samples"]
    fragmented = rows["to host, 4 pages, host pool full and fragmented, alone"]
    assert re.fullmatch(
        r"3 of 3 layers, 64 host slots, (89|90)% full after 4,000 requests of a made-up workload, seed 0",
        fragmented["note"],
    )
    assert fragmented["peers"]["each page"]["samples"]
    for what in ("device pages", "host slots", "copies"):
        row = rows[f"to host, 4 pages, host pool full and fragmented, runs of {what}"]
        assert 1 <= row["median"] <= 4
        assert re.fullmatch(r"the mean of \d runs?; median \d, from \d to \d", row["note"])
    assert rows["last layer done to visible, to host, 4 pages, runs of 4"]["peers"]["all layers behind"]["samples"]
    assert rows["restore, 3 layers, 4 pages, runs of 4, submission"]["peers"]["contiguous"]["samples"]
    for row in ("hook, to host, 4 pages, scattered", "hook, to host, 4 pages, scattered, by the clock"):
        assert rows[row]["peers"]["each page"]["samples"]
    led = rows["forwards without a copy before their last layer ended"]
    hooked = written["totals"]["hooked_forwards"]
    assert led["note"].startswith("of 2 forwards: 1 of the timeline, by events of the device, and 1 whose hooks")
    assert f"the other {hooked - 2} of the run's {hooked}" in led["note"]
    assert rows["forwards copied all layers at once"]["median"] == 0
    assert written["totals"]["hooked_forwards"] > 10
    assert written["totals"]["failed_submissions"] == 0


def test_no_path_of_this_machine_is_written(whole):
    for text in whole[1:]:
        assert "/tmp" not in text  # noqa: S108 - what is looked for
        assert "FILE" in text


def test_the_timeline_is_one_that_can_be(whole):
    trace = json.loads(whole[2])
    # Here a thread notes when a copy has ended. On a busy machine it does so late, even after the next has.
    late = ("before its last layer ends", "before its copy")
    assert [fault for fault in faults(trace) if not fault.endswith(late)] == []
    assert trace["otherData"]["layers"] == 3


def test_the_page_has_a_section_for_each_measurement(whole, tmp_path):
    (tmp_path / "out.json").write_text(whole[1])
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "copy_table.py", tmp_path / "out.json"],
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    figures = json.loads(whole[1])["figures"]
    measured = dict.fromkeys(figure["measurement"] for figure in figures)
    headings = re.findall(r"^#### (.+)$", done.stdout, re.MULTILINE)
    assert headings == [COPY_MEASUREMENTS[name].title for name in measured]
    assert "| what | unit | ours | wanted | met | contiguous | each page |" in done.stdout
    for figure in figures:
        assert f"| {figure['name']} | {figure['unit']} |" in done.stdout
        assert figure["note"] in done.stdout
    assert "Host pool filled by a made-up workload, seed 0." in done.stdout
    assert "Not everything was measured" not in done.stdout


def test_measurements_that_are_picked_are_all_that_is_measured(tmp_path):
    done = run(
        *TINY,
        "--only",
        "restores",
        "--only",
        "counts",
        "--only",
        "hooks",
        "--peers",
        "plain",
        "--json",
        tmp_path / "out.json",
    )
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((tmp_path / "out.json").read_text())
    assert list(written["figures"][0]["peers"]) == ["contiguous", "each page"]
    measured = dict.fromkeys(figure["measurement"] for figure in written["figures"])
    assert list(measured) == ["hooks", "restores", "counts"], "in an order of their own"
    assert written["source"] == "no requests"
    # No timeline was made: of the hooks alone is known when they were copied.
    (led, _) = (figure for figure in written["figures"] if figure["measurement"] == "counts")
    assert led["note"].startswith("of 1 forwards: 0 of the timeline, by events of the device, and 1 whose hooks")


def test_shorter_prompts_are_measured_behind_what_has_targets(tmp_path):
    picked = ("--only", "fewer-to-host", "--only", "to-host", "--peers", "none", "--pages", "2,4")
    done = run(*TINY, *picked, "--repeats", 4, "--json", tmp_path / "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    figures = json.loads((tmp_path / "out.json").read_text())["figures"]
    measured = {(figure["measurement"], figure["name"].split(",")[1], len(figure["samples"])) for figure in figures}
    assert measured == {("to-host", " 4 pages", 4), ("fewer-to-host", " 2 pages", 3)}
    assert [figure["measurement"] for figure in figures] == ["to-host"] * 5 + ["fewer-to-host"] * 5


def test_what_does_not_begin_in_time_is_told_and_the_run_ends_well(tmp_path):
    done = run(*TINY, "--only", "hooks", "--seconds", "1e-9", "--json", tmp_path / "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((tmp_path / "out.json").read_text())
    assert {figure["error"] for figure in written["figures"]} == {"not begun: the run has taken its 1e-09 s"}
    assert not written["is_complete"]
    assert "failed" in done.stdout


def test_a_trace_that_fills_no_pool_fails_its_own_rows_alone(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [1, 2]}\n')
    done = run(*TINY, "--only", "fragments", "--only", "counts", "--trace", trace, "--json", tmp_path / "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads((tmp_path / "out.json").read_text())
    errors = {figure["measurement"]: figure["error"] for figure in written["figures"]}
    assert errors["fragments"].startswith("1 requests have written 8 pages")
    assert errors["counts"] == ""
    assert written["source"] == "host pool filled by trace.jsonl"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--only", "speed"], "--only: got 'speed', want one of to-host, "),
        (["--engine", "tpu"], "engine is 'tpu', want one of auto, cuda, cpu"),
        (["--peers", "few"], "peers is 'few', want one of all, plain, none"),
        (["--pages", "4;8"], "--pages: got '4;8', want numbers with commas between them"),
        (["--engine", "cpu", "--copy-path", "batch"], "which the engine 'cpu' does not have"),
        (["--engine", "cpu", "--timeline", "x", "--only", "hooks"], "--timeline: needs the measurement 'visibility'"),
        (["--engine", "cpu", "--timeline", "/no/such/folder/out"], "--timeline: /no/such/folder is no folder"),
        (["--trace", "/no/such/trace", "--engine", "cpu"], "/no/such/trace: No such file or directory"),
    ],
)
def test_bad_options_are_told_in_one_line(arguments, wanted):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert wanted in done.stderr
    assert done.stderr.count("\n") == 1


def test_help():
    done = run("--help")
    assert done.returncode == 0
    for option in ("--engine", "--only", "--pages", "--copy-path", "--json", "--timeline", "--picture", "--seconds"):
        assert option in done.stdout
