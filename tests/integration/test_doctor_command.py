"""`cpkv doctor` from the outside: output, files, exit codes."""

import json
import re
import subprocess
import sys
from functools import partial

import pytest

from command_line import run_command

run = partial(run_command, "doctor")


def test_a_line_for_each_check_and_a_code(tmp_path):
    file = tmp_path / "out.json"
    done = run("--ranks", 2, "--json", file)
    written = json.loads(file.read_text())
    assert set(written) == {"cpkv", "ranks", "failed", "checks"}
    assert (written["ranks"], written["failed"]) == (2, done.returncode == 1)
    assert done.returncode in (0, 1)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == len(written["checks"]) > 8
    for line, check in zip(lines, written["checks"], strict=True):
        assert set(check) == {"name", "state", "seen", "wanted", "hint"}
        assert re.match(rf"{check['state']} +{re.escape(check['name'])} +\S", line)
        assert check["hint"] in line
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_machine_that_shows_no_gpu(tmp_path):
    """Whatever the machine has: without its driver the cpu engine is used, and that is no failure."""
    file = tmp_path / "out.json"
    code = (
        "import ctypes, sys; from cpkv.host import driver; driver.Driver.__init__.__defaults__ = ('libno-such.so',); "
        "from cpkv.cli import main; sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "doctor", "--json", str(file)],
        capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    checks = {check["name"]: check for check in json.loads(file.read_text())["checks"]}
    assert checks["CUDA driver"]["seen"] == "no CUDA driver: the cpu engine is used"
    assert checks["CUDA driver"]["state"] in ("ok", "warn")
    assert checks["copy engine"]["seen"].startswith("cpu: libno-such.so cannot be loaded")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--ranks", "0"], "ranks is 0, want at least 1"),
        (["--ranks", "many"], "'--ranks': Input should be a valid integer"),
        (["--json", "/no/such/folder/out.json"], "--json: /no/such/folder is no folder"),
        (["stray"], "stray"),
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
    for text in ("Usage: cpkv doctor", "--ranks", "--json", "Exits with 1 if a"):
        assert text in done.stdout
    assert "doctor" in run_command("--help").stdout
