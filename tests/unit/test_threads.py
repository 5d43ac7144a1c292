"""Calls may be made from any thread: one that is long lets the interpreter go, and never waits for it with a lock."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "shared_leases.py"


@pytest.mark.parametrize("call", ["insert", "restore", "reserve", "reserve_in_two_orders"])
def test_a_lease_in_a_long_call_may_be_used_by_another_thread(call):
    command = [sys.executable, str(SCRIPT), call]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
