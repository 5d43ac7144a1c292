"""`cpkv bench overlap` from the outside, without a GPU. Nothing here is about time."""

import json
from functools import partial

import pytest

from command_line import run_command
from cpkv.bench.copy import faults
from cpkv.bench.overlap.rows import UNITS

run = partial(run_command, "bench", "overlap")
TINY = ["--engine", "cpu", "--pages", "4", "--layers", "3", "--repeats", "2", "--shares", "20,90"]
TITLES = ["20 % of compute", "90 % of compute"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overlap")
    done = run(*TINY, "--json", folder / "out.json", "--timeline", folder / "timeline.json")
    assert (done.returncode, done.stderr) == (0, ""), "what is asked for is not warned of"
    assert {file.name for file in folder.iterdir()} == {"out.json", "timeline.json"}
    return done.stdout, (folder / "out.json").read_text(), (folder / "timeline.json").read_text()


def test_every_figure_is_measured_and_has_no_target_here(whole):
    stdout, written = whole[0], json.loads(whole[1])
    assert set(written) == {"is_complete", "settings", "machine", "engine", "totals", "figures"}
    assert written["is_complete"]
    assert written["settings"] == {
        "engine": "cpu", "pages": [4], "layers": 3, "repeats": 2, "copy_path": None, "peers": "none",
        "seconds": 120.0, "shares": [20, 90],
    }  # fmt: skip
    assert {"date", "processor", "cores", "command", "device"} < set(written["machine"])
    assert stdout.startswith(
        "no GPU: threads copy, sleeps compute: 3 layers and one of a draft, 4 pages a layer, 2 repeats\n"
    )
    *figures, leads, at_once = written["figures"]
    assert [figure["name"] for figure in figures] == [f"{title}: {what}" for title in TITLES for what in UNITS]
    assert [figure["measurement"] for figure in figures] == ["20 %"] * len(UNITS) + ["90 %"] * len(UNITS)
    for figure in written["figures"]:
        assert (figure["error"], figure["target"], figure["is_met"]) == ("", None, None)
        assert f"  {figure['name']} " in stdout
    for figure in figures:
        for samples in (figure["samples"], *(peer["samples"] for peer in figure["peers"].values())):
            assert len(samples) == 2
    assert {leads["measurement"], at_once["measurement"]} == {"counts"}


def test_layers_are_copied_as_they_end_and_all_at_once_only_where_that_is_asked_for(whole):
    written = json.loads(whole[1])
    rows = {figure["name"]: figure for figure in written["figures"]}
    for title in TITLES:
        hidden = rows[f"{title}: backup time hidden"]
        assert all(0 <= share <= 100 for share in hidden["samples"])
        assert hidden["peers"]["all layers behind"]["samples"] == [0.0, 0.0]
    totals = written["totals"]
    # In each share two rounds, and one before them.
    assert totals["all_layer_forwards_asked for"] == totals["all_layer_forwards"] == 2 * 3
    assert rows["forwards copied all layers at once"]["median"] == 0
    assert totals["hooked_layers"] == 4 * totals["hooked_forwards"] > 0, "three of the target, one of the draft"
    assert totals["repeated_layers"] == totals["failed_submissions"] == 0


def test_no_path_of_this_machine_is_written(whole):
    for text in whole[1:]:
        assert "/tmp" not in text  # noqa: S108 - what is looked for
        assert "FILE" in text


def test_the_timeline_has_a_forward_of_each_share_that_can_be(whole):
    trace = json.loads(whole[2])
    # Here a thread notes when a copy has ended. On a busy machine it does so late, even after the next has.
    late = ("before its last layer ends", "before its copy")
    assert [fault for fault in faults(trace) if not fault.endswith(late)] == []
    events = [event["args"] for event in trace["traceEvents"] if event["ph"] != "M"]
    assert {(event["forward"], event["title"]) for event in events} == set(enumerate(TITLES))
    assert {event["layer"] for event in events if "layer" in event} == {0, 1, 2, 3}


def test_what_does_not_begin_in_time_is_told_and_the_run_ends_well(tmp_path):
    done = run(*TINY, "--seconds", "1e-9", "--json", tmp_path / "out.json")
    assert (done.returncode, done.stderr) == (0, "")
    *figures, counts = json.loads((tmp_path / "out.json").read_text())["figures"]
    assert len(figures) == 2 * len(UNITS)
    assert {figure["error"] for figure in figures} == {"not begun: the run has taken its 1e-09 s"}
    assert counts["name"] == "forwards copied all layers at once", "there is no timeline to tell of"


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--engine", "tpu"], "engine is 'tpu', want one of auto, cuda, cpu"),
        (["--engine", "cpu", "--shares", "few"], "--shares: got 'few', want numbers with commas between them"),
        (["--engine", "cpu", "--shares", "10,0"], "shares has 0, want at least 1"),
        (["--engine", "cpu", "--repeats", "0"], "repeats is 0, want at least 1"),
        (["--engine", "cpu", "--pages", "0"], "pages is 0, want at least 1"),
        (["--engine", "cpu", "--copy-path", "batch"], "which the engine 'cpu' does not have"),
        (["--engine", "cpu", "--timeline", "/no/such/folder/out"], "--timeline: /no/such/folder is no folder"),
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
    for option in ("--engine", "--shares", "--pages", "--layers", "--repeats", "--json", "--timeline", "--picture"):
        assert option in done.stdout
