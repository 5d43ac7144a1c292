"""The reference engine on a GPU says what it says without one: its arithmetic is the same everywhere."""

import pytest
from gpu_needed import needs_gpu

from cpkv.demo import DemoSettings, run_demo
from cpkv.demo.run import TIMELINE
from cpkv.engine import Engine
from cpkv.engine.ranks import RankFailure, Ranks, run_ranks
from engine_work import NEW_TOKENS, Killed, Temperatures, config, prompts, seen_of

torch = needs_gpu()
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default"), pytest.mark.timeout(300)]

LENGTHS = [1, 64, 230]


@pytest.mark.parametrize(("cp_size", "split"), [(1, "zigzag"), (2, "zigzag"), (2, "interleave")])
def test_cold_hot_and_restored_are_what_a_machine_without_a_gpu_says(cp_size, split):
    with Engine(config(host_slots=0, is_cached=False)) as engine:
        wanted = [seen_of(request) for request in engine.generate(prompts(1, LENGTHS), NEW_TOKENS)]
    for said in run_ranks(Temperatures(LENGTHS), config(split=split, device="cuda"), cp_size):
        for temperature in ("cold", "hot", "restored", "partly restored"):
            for seen, want in zip(said[temperature], wanted, strict=True):
                assert (seen["tokens"], seen["logits"]) == (want["tokens"], want["logits"])
        assert said["bytes"]["wrong"] == []
        assert said["all_layer"] == 0


def test_the_scenarios_of_the_demo_are_equal(tmp_path):
    verdict = run_demo(DemoSettings(ranks=2, splits=("zigzag",), device="cuda"), tmp_path)
    assert verdict.problems == ()
    assert verdict.hidden is not None
    assert (tmp_path / TIMELINE).stat().st_size > 0


def test_a_rank_that_dies_in_a_forward_is_named_under_nccl_too(tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU: NCCL wants one for each rank")
    with Ranks(Killed(0), config(device="cuda"), 2, folder=tmp_path, patience_s=20) as ranks:
        dead, said = (ranks.result(rank, 120) for rank in range(2))
    assert isinstance(dead, RankFailure)
    assert said["said"] == "the process of rank 0 has died"
    assert said["seconds"] < 60
