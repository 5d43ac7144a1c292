"""Four ranks on one commit log, as processes and as threads.

Four runs of each kind and four deaths as a rule; with `CPKV_PROVE_STEPS` as many runs as make so many steps, and
a death for every two hundred of them.
"""

import itertools
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from replica import Replica

RANKS = 4
REPLICA = Path(__file__).parent.parent / "replica.py"
STEPS = 300
PROVED_STEPS = int(os.environ.get("CPKV_PROVE_STEPS", "600"))
"""Steps of the ranks as threads in all, and as processes."""
SEEDS = range(1, 1 + max(2, PROVED_STEPS // STEPS))
DEATHS = range(max(4, PROVED_STEPS // 200))
LONGEST_DELAY_S = 0.02
"""How long a rank may live after a step that is drawn: some ten steps more."""


@pytest.fixture(scope="module")
def done():
    """Count what the ranks of all runs of a kind have come to."""
    return Counter()


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


def have_agreed(outputs, done, kind, tell):
    """Every rank has said the same after each step, and the ranks have come through everything there is."""
    for output in outputs[1:]:
        assert output == outputs[0]
    assert len(outputs[0]) == STEPS + 1
    summary = outputs[0][-1]
    counts = {what: int(count) for what, count in (part.rsplit(" ", 1) for part in summary[2:].split(", "))}
    assert counts["committed"] > 10, summary
    assert counts["rolled back"] > 2, summary
    assert counts["restored"] > 5, summary
    done.update(counts)
    done["steps"] += STEPS
    if done["steps"] == STEPS * len(SEEDS):
        # Failures are few, and not in every run.
        assert done["lost"] > 0, done
        tell(f"\n{RANKS} ranks as {kind}: {dict(done)}")
        done.clear()


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_agree_at_every_step_whenever_copies_land(tmp_path, seed, done, tell):
    nonce = secrets.randbits(62)

    def run(rank):
        return list(Replica(tmp_path, nonce, rank, RANKS, seed).run(STEPS))

    with ThreadPoolExecutor(RANKS) as threads:
        outputs = list(threads.map(run, range(RANKS)))
    have_agreed(outputs, done, "threads", tell)


@pytest.mark.parametrize("seed", SEEDS)
def test_ranks_agree_at_every_step_whenever_copies_land(tmp_path, seed, done, tell):
    ranks = processes(tmp_path, seed, steps=STEPS)
    outputs = [rank.communicate(timeout=25)[0].splitlines() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    have_agreed(outputs, done, "processes", tell)
    assert list(tmp_path.iterdir()) == [], "the files of the log are gone"


@pytest.mark.parametrize("death", DEATHS)
def test_the_death_of_a_rank_at_any_moment_is_an_error_that_names_it(tmp_path, death):
    drawn = random.Random(death)
    victim = drawn.randrange(RANKS)
    ranks = processes(tmp_path, death, steps=1_000_000)
    try:
        # All of them have joined; who has not waits for the others to come.
        first = [rank.stdout.readline() for rank in ranks]
        # At a step that is drawn, and then anywhere within this one or those behind it: in the middle of a copy,
        # of a report, of an entry that is being written or read.
        lines = [ranks[victim].stdout.readline() for _ in range(drawn.randrange(60))]
        assert all(first + lines)
        time.sleep(drawn.random() * LONGEST_DELAY_S)
        ranks[victim].send_signal(signal.SIGKILL)
        ranks[victim].wait(10)
        # Its reader is in front of what it has handed out.
        last_words = first[victim] + "".join(lines) + ranks[victim].stdout.read()
        outputs = [last_words.splitlines()]
        for index, rank in enumerate(ranks):
            if index != victim:
                outputs.append((first[index] + rank.stdout.read()).splitlines())
                rank.wait(20)
                assert outputs[-1].pop() == f"RankError: the process of rank {victim} has died"
                assert rank.returncode == 3
        # All of them have agreed up to the last step that each has done.
        for step in itertools.zip_longest(*outputs):
            assert len({digest for digest in step if digest}) == 1
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdout.close()
