"""Four ranks on one commit log, as processes and as threads."""

import os
import secrets
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replica import Replica

RANKS = 4
REPLICA = Path(__file__).parent.parent / "replica.py"


def processes(directory, seed, steps):
    """Start all ranks of one server."""
    nonce = secrets.randbits(62)
    # Equal tokens have to give equal contents in all processes.
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    return [
        subprocess.Popen(
            [sys.executable, str(REPLICA), *map(str, (directory, nonce, rank, RANKS, seed, steps))],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(RANKS)
    ]


def has_done_everything(summary):
    committed, rolled_back, restored, lost = (int(part.split()[-1]) for part in summary.split(","))
    assert committed > 20, summary
    assert rolled_back > 5, summary
    assert restored > 10, summary
    assert lost > 0, summary


@pytest.mark.parametrize("seed", [3, 4])
def test_threads_agree_at_every_step_whenever_copies_land(tmp_path, seed):
    nonce = secrets.randbits(62)

    def run(rank):
        return list(Replica(tmp_path, nonce, rank, RANKS, seed).run(300))

    with ThreadPoolExecutor(RANKS) as threads:
        outputs = list(threads.map(run, range(RANKS)))
    for output in outputs[1:]:
        assert output == outputs[0]
    assert len(outputs[0]) == 301
    has_done_everything(outputs[0][-1])


@pytest.mark.parametrize("seed", [1, 2])
def test_ranks_agree_at_every_step_whenever_copies_land(tmp_path, seed):
    ranks = processes(tmp_path, seed, steps=300)
    outputs = [rank.communicate(timeout=25)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    for output in outputs[1:]:
        assert output == outputs[0]
    assert len(outputs[0]) == 301
    has_done_everything(outputs[0][-1])
    assert list(tmp_path.iterdir()) == [], "the files of the log are gone"


@pytest.mark.parametrize("victim", [0, 2])
def test_the_death_of_a_rank_is_an_error_that_names_it(tmp_path, victim):
    ranks = processes(tmp_path, 3, steps=1_000_000)
    try:
        # In the middle of its work, which no two runs interrupt at the same place.
        for _ in range(20):
            assert ranks[victim].stdout.readline()
        ranks[victim].send_signal(signal.SIGKILL)
        ranks[victim].wait(10)
        for index, rank in enumerate(ranks):
            if index != victim:
                last = rank.communicate(timeout=20)[0].splitlines()[-1]
                assert last == f"RankError: the process of rank {victim} has died"
                assert rank.returncode == 3
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
