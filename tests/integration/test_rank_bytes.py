"""Four rank processes, each with the memory of its lane, copy threads of its own and one commit log."""

import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 4
RANK = Path(__file__).parent.parent / "tier_rank.py"


def processes(directory, seed, steps):
    nonce = secrets.randbits(62)
    return [
        subprocess.Popen(
            [sys.executable, str(RANK), *map(str, (directory, nonce, rank, RANKS, seed, steps))],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]


@pytest.mark.parametrize("seed", [1, 2])
def test_a_page_becomes_visible_on_all_ranks_at_the_same_step_or_on_none(tmp_path, seed):
    """Delays and failures are each rank's own; bytes are compared in each of them at every step."""
    ranks = processes(tmp_path, seed, steps=250)
    outputs = [rank.communicate(timeout=28)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    for output in outputs[1:]:
        assert output == outputs[0]
    assert len(outputs[0]) == 251
    committed, rolled_back, restored, lost = (int(part.split()[-1]) for part in outputs[0][-1].split(","))
    # How many depends on the machine's minute, as copies take their own time.
    assert committed > 5, outputs[0][-1]
    assert rolled_back > 2, outputs[0][-1]
    assert restored > 5, outputs[0][-1]
    assert lost > 0, outputs[0][-1]


@pytest.mark.parametrize("victim", [0, 3])
def test_the_death_of_a_rank_leaves_nothing_half_visible(tmp_path, victim):
    """The others have seen the same up to the step at which they hear of it."""
    ranks = processes(tmp_path, 3, steps=1_000_000)
    try:
        for _ in range(25):
            assert ranks[victim].stdout.readline()
        ranks[victim].send_signal(signal.SIGKILL)
        ranks[victim].wait(10)
        outputs = [rank.communicate(timeout=25)[0].splitlines() for index, rank in enumerate(ranks) if index != victim]
        assert {output[-1] for output in outputs} == {f"RankError: the process of rank {victim} has died"}
        seen = [output[:-1] for output in outputs]
        least = min(len(lines) for lines in seen)
        assert least >= 20
        assert all(lines[:least] == seen[0][:least] for lines in seen)
        assert [rank.returncode for index, rank in enumerate(ranks) if index != victim] == [3] * (RANKS - 1)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
