"""Commands that need what is not there."""

from importlib.util import find_spec

import pytest

from command_line import run_command


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_the_demo_says_that_it_needs_torch():
    done = run_command("demo")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "cpkv: the demo needs torch, which is not installed: try make demo, or pip install 'cpkv[torch]'\n"
    )
