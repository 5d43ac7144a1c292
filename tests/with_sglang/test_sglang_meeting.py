"""How ranks find each other in SGLang's process groups: processes with groups like its own, and no engine."""

import multiprocessing
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from sglang.srt.distributed import parallel_state

from cpkv import CacheManager, LogError
from cpkv.sglang import ranks

RANKS = 4
SECONDS = 60
TP_GROUPS = [[0, 1], [2, 3]]
CP_GROUPS = [[0, 2], [1, 3]]


def run(tmp_path, work):
    """Do the same in each of four processes, and return what each says, by rank."""
    context = multiprocessing.get_context("fork")
    results = []
    for rank in range(RANKS):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(theirs, rank, tmp_path, work), daemon=True)
        process.start()
        theirs.close()
        results.append((process, ours))
    said = []
    for process, ours in results:
        assert ours.poll(SECONDS), "hangs"
        said.append(ours.recv())
        process.join(SECONDS)
    failed = [one for one in said if isinstance(one, str)]
    assert not failed, failed[0]
    return said


def _run(end, rank, tmp_path, work):
    try:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=rank, world_size=RANKS)
        parallel_state.get_world_group = lambda: SimpleNamespace(cpu_group=dist.group.WORLD)
        end.send(work(rank))
        dist.barrier()
    except BaseException:  # noqa: BLE001 - the test is told
        end.send(traceback.format_exc())


def own_group(groups):
    """The one of the groups that this rank is in: all have to be made on every rank."""
    made = [dist.new_group(members) for members in groups]
    return next(group for group, members in zip(made, groups, strict=True) if dist.get_rank() in members)


def params(**groups):
    """What SGLang makes a cache of, as far as it is of groups."""
    none = {"tp_cache_group": None, "attn_tp_cache_group": None, "attn_cp_cache_group": None}
    return SimpleNamespace(**none | groups, enable_kv_cache_events=dist.get_rank() == 0)


def manager(device_pages=8):
    return CacheManager(device_pages=device_pages, host_slots=8, segment_pages=1, copies="tracked")


def told(met):
    return met.rank, met.size, met.on_host, met.slots, met.has_events, met.nonce, met.is_one_host


def test_context_parallelism_times_tensor_parallelism(tmp_path):
    def work(rank):
        tp, cp = own_group(TP_GROUPS), own_group(CP_GROUPS)
        groups = {"attn_tp_cache_group": tp, "attn_cp_cache_group": cp, "tp_cache_group": tp}
        met = ranks.meet(params(**groups), slots=100 - rank)
        log = met.attach(manager())
        dist.barrier()
        names = list(Path(ranks.SHARED_MEMORY).glob(f"*{met.nonce:016x}*"))
        log.close()
        least = ranks.Minimum(met.groups)(torch.tensor([1, rank, 9 - rank], dtype=torch.int64).numpy())()
        return told(met), least.tolist(), names

    said = run(tmp_path, work)
    [nonce] = {met[5] for met, *_ in said}
    assert sorted(met[0] for met, *_ in said) == list(range(RANKS))
    assert {met[1:] for met, *_ in said} == {(RANKS, RANKS, 97, True, nonce, True)}
    assert [(least, names) for _, least, names in said] == [([1, 0, 6], [])] * RANKS


def test_replicas_of_data_parallelism_are_apart(tmp_path):
    """Each has its own tree; they share the memory of the host."""

    def work(rank):
        alone = own_group([[one] for one in range(RANKS)])
        group = own_group(TP_GROUPS)
        groups = {"attn_tp_cache_group": group, "attn_cp_cache_group": alone, "tp_cache_group": group}
        return told(ranks.meet(params(**groups), slots=100 - rank))

    said = run(tmp_path, work)
    assert [met[:5] for met in said] == [
        (0, 2, 4, 99, True),
        (1, 2, 4, 99, True),
        (0, 2, 4, 97, False),
        (1, 2, 4, 97, False),
    ]
    assert said[0][5] == said[1][5] != said[2][5] == said[3][5]


def test_hosts_that_share_no_memory(tmp_path):
    def work(rank):
        ranks.place = lambda: f"host {rank // 2}"
        return told(ranks.meet(params(tp_cache_group=dist.group.WORLD), slots=100))

    said = run(tmp_path, work)
    assert [(met[0], met[1], met[2], met[6]) for met in said] == [(rank, 4, 2, False) for rank in range(RANKS)]


def test_one_rank_meets_nobody():
    met = ranks.meet(SimpleNamespace(), slots=7)
    assert (met.size, met.slots, str(met)) == (1, 7, "alone")
    assert met.attach(manager()) is None
    met.wait()


@pytest.mark.parametrize("hosts", [1, RANKS])
def test_caches_with_other_settings_do_not_come_together(hosts, tmp_path):
    def work(rank):
        ranks.place = lambda: f"host {rank % hosts}"
        met = ranks.meet(params(tp_cache_group=dist.group.WORLD), slots=8)
        with pytest.raises(LogError, match="that of another rank 0x"):
            met.attach(manager(device_pages=8 + rank // 3))
        return met.nonce

    [nonce] = set(run(tmp_path, work))
    assert not list(Path(ranks.SHARED_MEMORY).glob(f"*{nonce:016x}*")), "nothing is left"
