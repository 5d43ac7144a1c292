"""A rank that stands still never ends by itself: whoever waits for the group is told after a bounded time."""

import os
import signal
import time

import pytest

import cpkv
from cpkv.engine.ranks import MARGIN_S, RankFailure, Ranks, run_ranks
from engine_work import Killed, config

pytestmark = pytest.mark.timeout(150)  # processes import torch

PATIENCE_S = 3
STANDS = RankFailure("", f"stands still: it has not ended in {PATIENCE_S + MARGIN_S:g} s after the first rank")


class SaysMuch:
    """Return more than a pipe holds."""

    def __call__(self, engine):
        return bytes((1 - engine.rank) * (1 << 22))


def test_a_rank_that_stands_still_ends_the_wait_for_the_group():
    started = time.monotonic()
    with pytest.raises(cpkv.CpkvError, match=f"rank 0: {STANDS}"):
        run_ranks(Killed(0, signal.SIGSTOP), config(), 2, patience_s=PATIENCE_S)
    assert time.monotonic() - started < 100


def test_a_rank_may_stand_still_in_the_middle_of_what_it_says():
    with Ranks(SaysMuch(), config(), 2, patience_s=PATIENCE_S) as ranks:
        assert ranks._ends[0].poll(60)  # noqa: SLF001 - it has begun to say it
        os.kill(ranks.processes[0].pid, signal.SIGSTOP)
        assert ranks.results() == [STANDS, b""]
