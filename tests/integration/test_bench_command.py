"""`cpkv bench` from the outside: output, files, exit codes, signals. Nothing here is about time."""

import contextlib
import json
import os
import pty
import shutil
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from command_line import cpkv_command, run_command
from cpkv.bench import MEASUREMENTS

run = partial(run_command, "bench", "control")
TINY = ["--repeats", "2", "--limit", "20", "--ranks", "2", "--operations", "3", "--ticks", "40"]
LONG_TICKS = ["--only", "rank-ticks", "--ranks", "2", "--ticks", "1000000"]
LINE = '{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [%s]}\n'
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where logs are


def left_behind():
    return set(SHARED_MEMORY.glob("cpkv-bench-*"))


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_each_measurement_alone(name, tmp_path):
    before, file = left_behind(), tmp_path / "out.json"
    done = run("--only", name, *TINY, "--json", file)
    assert (done.returncode, done.stderr) == (0, "")
    written = json.loads(file.read_text())
    assert set(written) == {"source", "requests", "settings", "machine", "figures"}
    assert written["settings"] == {"repeats": 2, "limit": 20, "ranks": 2, "operations": 3, "ticks": 40}
    assert written["requests"] == (20 if MEASUREMENTS[name].serves_requests else 0)
    heading, _, columns, *rows = done.stdout.rstrip("\n").split("\n")
    assert heading.startswith(written["source"])
    assert columns.split() == ["least", "median", "target", "ratio"]
    assert len(rows) == len(written["figures"]) > 0
    for row, figure in zip(rows, written["figures"], strict=True):
        assert row.startswith(f"  {figure['name']} ")
        assert figure["measurement"] == name
        assert set(figure) == {
            "measurement", "name", "unit", "least", "median", "target", "ratio", "note", "samples",
        }  # fmt: skip
        assert (figure["ratio"] is None) == (figure["target"] is None)
        assert figure["least"] == min(figure["samples"])
    assert any(figure["target"] for figure in written["figures"]), "there is something to compare with"
    assert list(tmp_path.iterdir()) == [file]
    assert left_behind() == before


def test_a_trace_or_a_made_up_workload_and_it_says_which(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(LINE % ids for ids in ("1, 2", "1, 2, 3", "1, 4, 5")))
    done = run("--trace", trace, "--only", "metadata", "--only", "blocks", "--repeats", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{trace}, 3 requests: 1 repeat, ")
    rows = done.stdout.splitlines()[3:]
    assert [row.split()[0] for row in rows if row] == ["request,"] * 7 + ["metadata"], "in an order of its own"
    # 5 blocks of 8 pages, each on the device and on the host.
    assert "40 pages on the device, 40 of them on the host" in rows[7]
    done = run("--only", "metadata", "--limit", "1")
    assert done.stdout.startswith("made-up workload, seed 0, sharing 0.5, 1 request: ")
    assert run("--only", "idle-tick", "--repeats", "1").stdout.startswith("no requests: ")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--only", "speed"], "--only: got 'speed', want one of blocks, tokens, "),
        (["--repeats", "0"], "repeats is 0, want at least 1"),
        (["--repeats", "many"], "'--repeats': Input should be a valid integer"),
        (["--limit", "0"], "limit is 0, want at least 1"),
        (["--ranks", "65"], "ranks is 65, want 1 to 64"),
        (["--trace", "/no/such/trace", "--only", "idle-tick"], "/no/such/trace: No such file or directory"),
        (["--json", "/no/such/folder/out.json"], "--json: /no/such/folder is no folder"),
        (["--no-such-option"], "--no-such-option"),
        (["stray"], "stray"),
    ],
)
def test_bad_options_are_told_in_one_line(arguments, wanted):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert wanted in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_trace_leaves_no_json(tmp_path):
    trace, file = tmp_path / "trace.jsonl", tmp_path / "out.json"
    trace.write_text(LINE % "1, -2")
    done = run("--trace", trace, "--json", file)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{trace}:1: hash_ids[1]: got -2" in done.stderr
    assert not file.exists()
    done = run("--trace", trace, "--json", trace)
    assert done.returncode == 2
    assert "is the trace" in done.stderr


def ranks_of(process):
    """The rank processes that a command has started."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return []


def is_running(rank):
    """Whether a process is there and not only waited for."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def has_log(rank):
    """Whether a rank has mapped the words of the meeting, after joining the log."""
    with contextlib.suppress(OSError):
        return "/meeting" in Path(f"/proc/{rank}/maps").read_text()
    return False


def wait_for(condition):
    for _ in range(1_000):
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(condition)


def test_an_interrupt_ends_the_ranks_and_leaves_nothing(tmp_path):
    before = left_behind()
    started = cpkv_command("bench", "control", *LONG_TICKS, "--json", tmp_path / "out")
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        ranks = wait_for(lambda: len(found := ranks_of(process)) == 2 and found)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert (process.stdout.read(), process.stderr.read()) == ("", "cpkv: interrupted\n")
    assert not any(map(is_running, ranks))
    assert left_behind() == before
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_while_measuring(tmp_path):
    leader, follower = pty.openpty()
    started = cpkv_command("bench", "control", "--only", "tokens", "--repeats", "100", "--json", tmp_path / "out")
    with subprocess.Popen(started, stdout=subprocess.PIPE, stderr=follower, text=True) as process:
        os.close(follower)
        shown = b""
        while b"measuring" not in shown:
            shown += os.read(leader, 65_536)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        assert process.stdout.read() == ""
    os.close(leader)
    assert list(tmp_path.iterdir()) == []


def test_a_rank_that_dies_is_told_in_one_line():
    before = left_behind()
    with subprocess.Popen(
        cpkv_command("bench", "control", *LONG_TICKS), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        ranks = wait_for(lambda: len(found := ranks_of(process)) == 2 and found)
        os.kill(int(ranks[1]), signal.SIGKILL)
        assert process.wait(timeout=20) == 2
        assert process.stdout.read() == ""
        told = process.stderr.read()
    assert told.count("\n") == 1
    assert told.startswith(("cpkv: rank 1 ended with code -9", "cpkv: rank 0 ended with code 1: the process of rank 1"))
    assert left_behind() == before


def test_ranks_do_not_outlive_the_command():
    before = left_behind()
    with subprocess.Popen(
        cpkv_command("bench", "control", *LONG_TICKS), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        ranks = wait_for(lambda: len(found := ranks_of(process)) == 2 and found)
        wait_for(lambda: all(map(has_log, ranks)))
        process.kill()
    wait_for(lambda: not any(map(is_running, ranks)))
    for directory in left_behind() - before:  # all that a killed command cannot do itself
        shutil.rmtree(directory)


def test_help():
    for arguments in (["--help"], ["bench", "--help"], ["bench", "control", "--help"]):
        done = run_command(*arguments)
        assert done.returncode == 0
        assert "Usage: cpkv" in done.stdout
    for option in ("--trace", "--only", "--repeats", "--limit", "--ranks", "--operations", "--ticks", "--json"):
        assert option in done.stdout
