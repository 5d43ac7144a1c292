"""A request that gives way before it is known whether what it has read was restored."""

import pytest

from cpkv.device import RESTORE, CpuEngine
from cpkv.engine import Engine, Stage
from engine_work import config, evict_all, prompts, seen_of
from rank_threads import run_threads

pytestmark = pytest.mark.timeout(60)

NEW_TOKENS = 6


@pytest.mark.parametrize("is_failing", [True, False])
def test_who_gives_way_during_a_restore_keeps_no_token_that_has_read_it(tmp_path, is_failing):
    older, younger = prompts(1, [20, 75])
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        wanted = [seen_of(request) for request in engine.generate([older, younger], NEW_TOKENS)]

    def options(rank):
        # Rank 0 has all of its bytes; it hears of the other's failure with a later tick.
        failing = (RESTORE, 1) if is_failing and rank == 1 else None
        return {"copy_engine": CpuEngine(fails=lambda stream, number: (stream, number) == failing)}

    def work(engine):
        engine.generate([younger], NEW_TOKENS)
        evict_all(engine)
        first = engine.submit(older, NEW_TOKENS)
        while first.stage is not Stage.DECODE:
            engine.step()
        victim = engine.submit(younger, NEW_TOKENS)
        while victim.stage is not Stage.DECODE:
            engine.step()
        assert victim.host_hit_tokens
        assert victim.lease.restores(), "nobody knows yet"
        engine._retract_one(engine.requests)
        assert victim.stage is Stage.WAITING
        told = (victim.retracted, list(victim.generated), victim.host_hit_tokens)
        engine.run()
        engine.cache.check_integrity()
        return told, victim.losses, [seen_of(request) for request in (first, victim)], engine.cache.digest()

    ranks = run_threads(work, config(), 2, tmp_path, options)
    for told, losses, seen, digest in ranks:
        for each, want in zip(seen, wanted, strict=True):
            assert (each["tokens"], each["logits"]) == (want["tokens"], want["logits"])
        assert told == (1, [], 0), "its token was taken back"
        assert losses <= is_failing, "giving way is no loss"
        assert digest == ranks[0][-1]
