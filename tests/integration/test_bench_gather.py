"""`cpkv bench gather` where nothing is gathered: its help, and what it refuses."""

from functools import partial
from importlib.util import find_spec

import pytest

from command_line import run_command

run = partial(run_command, "bench", "gather")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["--device", "tpu"], "device is 'tpu', want one of auto, cuda, cpu"),
        (["--ranks", "1"], "ranks is 1, want 2 to 64"),
        (["--split", "halves"], "splits are halves, want some of zigzag, interleave"),
        (["--batch", "8", "--batch", "0"], "batch is 0, want at least 1"),
        (["--tokens", "15", "--batch", "8"], "tokens is 15, want at least 16, 2 for each request"),
        (["--repeats", "many"], "'--repeats': Input should be a valid integer"),
        (["--json", "/no/such/folder/out.json"], "--json: /no/such/folder is no folder"),
        (["stray"], "stray"),
    ],
)
def test_bad_options_are_told_in_one_line(arguments, wanted):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert wanted in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_it_says_what_is_missing():
    done = run("--device", "cpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "cpkv: gathering needs torch, which is not installed: try pip install 'cpkv[torch]'\n"


def test_help():
    done = run("--help")
    assert done.returncode == 0
    for option in ("--device", "--ranks", "--tokens", "--hidden", "--batch", "--split", "--repeats", "--json"):
        assert option in done.stdout
