"""A rank process that is interrupted while its tick waits for the other rank."""

import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from interrupted_rank import STEPS, Rank

SCRIPT = Path(__file__).parent.parent / "interrupted_rank.py"


# Rank 1 waits for the first entry, rank 0 for the slowest reader of a full ring.
@pytest.mark.parametrize(("victim", "step"), [(1, 1), (0, 64)])
def test_an_interrupt_leaves_a_waiting_tick_which_goes_on_when_it_is_repeated(tmp_path, victim, step):
    nonce, other = secrets.randbits(62), 1 - victim
    rank = Rank(tmp_path, nonce, other) if other == 0 else None
    command = [sys.executable, str(SCRIPT), str(tmp_path), str(nonce), str(victim)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            rank = rank or Rank(tmp_path, nonce, other)
            assert process.stdout.readline() == "waiting\n"
            process.send_signal(signal.SIGINT)
            lines = [process.stdout.readline().strip() for _ in range(4)]
            assert lines == [
                f"interrupted in step {step}",
                f"UsageError: tick {step - 1} is out of order, want {step}",
                f"UsageError: tick {step + 1} is out of order, want {step}",
                "has work: True",
            ]
            for number in range(STEPS):
                rank.insert(number)
                rank.tick(number)
            (last,) = process.communicate(timeout=20)[0].splitlines()
            assert last == rank.result() == f"{STEPS} started, digest {rank.cache.digest():016x}"
            assert process.returncode == 0
        finally:
            process.kill()
            rank.log.close()
