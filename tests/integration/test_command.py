"""Commands that need what is not there."""

import subprocess
import sys
from importlib.util import find_spec

import pytest


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_the_demo_says_that_it_needs_torch():
    done = subprocess.run(
        [sys.executable, "-m", "cpkv", "demo"], capture_output=True, text=True, check=False, timeout=30
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "cpkv: the demo needs torch, which is not installed: try make demo, or pip install 'cpkv[torch]'\n"
    )
