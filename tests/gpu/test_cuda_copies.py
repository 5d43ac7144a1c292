"""Copies of the engine `cuda` on a GPU: every byte of every format, each way, and in the order of the streams."""

import subprocess
import sys
import threading
from contextlib import ExitStack

import numpy as np
import pytest
from gpu_needed import needs_gpu

from copy_pools import pairs
from cpkv.device import BACKUP, RESTORE
from cpkv.device.cuda import CudaEngine
from cpkv.errors import UsageError
from cpkv.layout import PageLayout

torch = needs_gpu()
from gpu_pools import (  # noqa: E402 - needs torch
    SLEEP_CYCLES_PER_MS,
    gpu_pools,
    handle,
    registered_memory,
    spin,
    submit_layers,
    unexpected,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default"), pytest.mark.timeout(120)]

PATHS = ("batch", "blocks", "kernel", "each")
MODEL = {"target_layers": 3, "draft_layers": 1, "index_layers": (0, 2)}
LAYOUTS = {
    "mla bf16": PageLayout.mla(**MODEL),
    "mla fp8 packed": PageLayout.mla(**MODEL, kv="fp8_packed"),
    "mla fp8 plain": PageLayout.mla(**MODEL, kv="float8_e4m3fn"),
    "attention": PageLayout.attention(target_layers=2, draft_layers=1, heads=2, head_dim=128),
    "one token a page": PageLayout.mla(**MODEL, kv="fp8_packed", page_size=1),
}
PAGES = SLOTS = 128


@pytest.fixture(autouse=True, scope="module")
def _kernels_are_loaded():
    """The first launch of a kernel may wait for everything on the GPU, so that happens before."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1)
        torch.ones(64, dtype=torch.uint8, device="cuda").fill_(2)
    torch.cuda.synchronize()


@pytest.fixture(params=PATHS)
def engine(request):
    engine = CudaEngine(copy_path=request.param)
    yield engine
    engine.close()


@pytest.fixture
def batch():
    engine = CudaEngine(copy_path="batch")
    yield engine
    engine.close()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("segment_pages", [1, 32, SLOTS])
def test_every_byte_goes_where_it_belongs(engine, layout, segment_pages):
    pools = gpu_pools(layout, pages=PAGES, slots=SLOTS, segment_pages=segment_pages)
    for kind in ("scattered", "runs", "blocks"):
        count = 70 if segment_pages < SLOTS else SLOTS
        pages, slots = pairs(kind, count, pages=PAGES, slots=SLOTS, segment_pages=segment_pages)
        pools.scribble(len(kind))
        wanted = pools.host_after(pages, slots)
        plan = engine.plan(pools.device, pools.host, pages, slots, "to_host")
        if engine.explain()["every size"].startswith("blocks") and kind == "blocks" and segment_pages < SLOTS:
            assert plan.blocks is not None, engine.explain()
        spin(engine, BACKUP, submit_layers(engine, BACKUP, plan, after=handle()))
        assert np.array_equal(pools.memory, wanted), f"{kind} to the host"
        pools.scribble(len(kind) + 10)
        wanted = pools.device_after(pages, slots)
        plan = engine.plan(pools.device, pools.host, pages, slots, "to_device")
        last = submit_layers(engine, RESTORE, plan, after=None)
        engine.wait(handle(), RESTORE, last)
        for (tensor, *_), after in zip(pools.rows(), wanted, strict=True):
            assert torch.equal(tensor, after), f"{kind} to the device"


def test_all_layers_at_once_are_copied_too(engine):
    pools = gpu_pools(LAYOUTS["mla fp8 packed"], pages=PAGES, slots=SLOTS, segment_pages=32)
    pages, slots = pairs("scattered", 100, pages=PAGES, slots=SLOTS, segment_pages=32)
    pools.scribble(4)
    wanted = pools.host_after(pages, slots)
    plan = engine.plan(pools.device, pools.host, pages, slots, "to_host")
    engine.submit(BACKUP, plan, 0, 4, after=handle(), on_failure=unexpected)
    engine.wait(None, BACKUP, 1)
    assert engine.acks.load(BACKUP) == 1
    assert np.array_equal(pools.memory, wanted)


def test_addresses_have_64_bits(engine):
    """Rows of 41,984 bytes: page 51,150 lies across 2³¹, 51,151 beyond it, and 102,300 beyond 2³²."""
    layout = PageLayout.mla(target_layers=1, kv="fp8_packed")
    with ExitStack() as stack:
        memory = registered_memory(102_304 * layout.slot_bytes, stack)
        pools = gpu_pools(layout, pages=102_301, slots=102_304, segment_pages=32, memory=memory)
        (tensor,) = pools.tensors["target_kv"]
        pages = np.array([51_150, 51_151, 102_300, 0])
        slots = np.array([102_303, 51_151, 51_150, 7])
        for place, page in enumerate(pages.tolist()):
            tensor[page] = place + 1
        plan = engine.plan(pools.device, pools.host, pages, slots, "to_host")
        spin(engine, BACKUP, submit_layers(engine, BACKUP, plan, after=handle()))
        rows = memory.reshape(-1, layout.slot_bytes)  # one layer: slots lie one behind the other
        for place, slot in enumerate(slots.tolist()):
            assert (rows[slot] == place + 1).all(), f"slot {slot}"
        tensor.zero_()
        plan = engine.plan(pools.device, pools.host, pages, slots, "to_device")
        engine.wait(handle(), RESTORE, submit_layers(engine, RESTORE, plan, after=handle()))
        for place, page in enumerate(pages.tolist()):
            assert bool((tensor[page] == place + 1).all()), f"page {page}"
        assert int(torch.count_nonzero(tensor[1:50_000:1_000])) == 0
        engine.close()


@pytest.mark.parametrize("where", ["default stream", "own stream"])
def test_copies_begin_when_the_layer_is_written(engine, where):
    layout = PageLayout.mla(target_layers=1)
    pools = gpu_pools(layout, pages=64, slots=64, segment_pages=32)
    (tensor,) = pools.tensors["target_kv"]
    order = np.arange(64)
    plan = engine.plan(pools.device, pools.host, order[::-1].copy(), order, "to_host")
    compute = torch.cuda.current_stream() if where == "default stream" else torch.cuda.Stream()
    for new in (1, 2):
        with torch.cuda.stream(compute):
            torch.cuda._sleep(50 * SLEEP_CYCLES_PER_MS)
            tensor.fill_(new)
        last = submit_layers(engine, BACKUP, plan, after=handle(compute))
        assert not compute.query(), "the layer was written before the copy was queued"
        assert engine.acks.load(BACKUP) < last
        spin(engine, BACKUP, last)
        assert (pools.memory == new).all()


def test_copies_behind_a_mark_begin_when_the_layer_is_written_and_no_later(engine):
    """What they are submitted with is known only after the layer was queued; later work is not waited for."""
    pools = gpu_pools(PageLayout.mla(target_layers=1), pages=64, slots=64, segment_pages=32)
    (tensor,) = pools.tensors["target_kv"]
    compute, order = torch.cuda.Stream(), np.arange(64)
    with torch.cuda.stream(compute):
        torch.cuda._sleep(50 * SLEEP_CYCLES_PER_MS)
        tensor.fill_(1)
        mark = engine.mark(handle(compute))
        torch.cuda._sleep(500 * SLEEP_CYCLES_PER_MS)
    plan = engine.plan(pools.device, pools.host, order, order, "to_host")
    last = submit_layers(engine, BACKUP, plan, after=mark)
    assert engine.acks.load(BACKUP) < last
    spin(engine, BACKUP, last)
    assert not compute.query(), "what was queued later is under way"
    assert (pools.memory == 1).all()
    torch.cuda.synchronize()


def test_copies_that_wait_for_nothing_are_seen_to_be_too_early(batch):
    """The control of the test above: without the event the host gets what was there before."""
    pools = gpu_pools(PageLayout.mla(target_layers=1), pages=64, slots=64, segment_pages=32)
    (tensor,) = pools.tensors["target_kv"]
    tensor.fill_(1)
    torch.cuda.synchronize()
    plan = batch.plan(pools.device, pools.host, np.arange(64), np.arange(64), "to_host")
    compute = torch.cuda.Stream()
    with torch.cuda.stream(compute):
        torch.cuda._sleep(50 * SLEEP_CYCLES_PER_MS)
        tensor.fill_(2)
    spin(batch, BACKUP, submit_layers(batch, BACKUP, plan, after=None))
    assert (pools.memory == 1).all()
    torch.cuda.synchronize()


def test_a_layer_waits_for_its_own_load_and_no_later_one(engine, tell):
    layers, count = 8, 32
    layout = PageLayout.mla(target_layers=layers, index_layers=None)
    pools = gpu_pools(layout, pages=PAGES, slots=SLOTS, segment_pages=32)
    pools.scribble(1)
    pages, slots = pairs("scattered", count, pages=PAGES, slots=SLOTS, segment_pages=32)
    wanted = pools.device_after(pages, slots)
    plan = engine.plan(pools.device, pools.host, pages, slots, "to_device")
    compute, delay = torch.cuda.Stream(), torch.cuda.Stream()
    copies = torch.cuda.ExternalStream(engine._streams[RESTORE].handle)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    computed = [torch.cuda.Event(enable_timing=True) for _ in range(layers)]
    seen = [[torch.empty_like(tensor) for tensor in ones] for ones in pools.tensors.values()]
    torch.cuda.synchronize()
    with torch.cuda.stream(delay):  # everything is queued before the first copy begins
        torch.cuda._sleep(100 * SLEEP_CYCLES_PER_MS)
        begin.record(delay)
    numbers = []
    for layer in range(layers):
        engine.submit(RESTORE, plan, layer, layer + 1, after=handle(delay), on_failure=unexpected)
        numbers.append(engine.next_sequence(RESTORE) - 1)
    end.record(copies)
    for layer in range(layers):
        engine.wait(handle(compute), RESTORE, numbers[layer])
        with torch.cuda.stream(compute):
            for copy, tensors in zip(seen, pools.tensors.values(), strict=True):
                copy[layer].copy_(tensors[layer])
            computed[layer].record(compute)
    assert not delay.query(), "the copies had begun before all was queued"
    torch.cuda.synchronize()
    times = [begin.elapsed_time(event) for event in (*computed, end)]
    tell(
        f"\n  {engine.explain()['every size'].split(',')[0]}: layer 0 read after {times[0]:.3f} ms, "
        f"layer {layers - 1} after {times[-2]:.3f} ms; its load ended after {times[-1]:.3f} ms"
    )
    assert times[0] < times[-1], "the first layer has waited for the last load"
    found = [seen[place][layer] for layer in range(layers) for place in range(len(seen))]
    for copy, after in zip(found, wanted, strict=True):
        assert torch.equal(copy, after)


def test_a_replay_behind_the_last_wait_reads_what_was_loaded(batch):
    layout = PageLayout.mla(target_layers=2)
    pools = gpu_pools(layout, pages=32, slots=32, segment_pages=32)
    tensors = pools.tensors["target_kv"]
    compute = torch.cuda.Stream()
    sums = torch.zeros(2, dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=compute):
        for layer, tensor in enumerate(tensors):
            sums[layer] = tensor.sum(dtype=torch.int64)
    pools.memory[:] = 3
    delay = torch.cuda.Stream()
    with torch.cuda.stream(delay):
        torch.cuda._sleep(50 * SLEEP_CYCLES_PER_MS)
    plan = batch.plan(pools.device, pools.host, np.arange(32), np.arange(32), "to_device")
    last = submit_layers(batch, RESTORE, plan, after=handle(delay))
    batch.wait(handle(compute), RESTORE, last)
    with torch.cuda.stream(compute):
        graph.replay()
    torch.cuda.synchronize()
    assert sums.tolist() == [3 * 32 * 73_728] * 2


def test_a_capture_is_refused_and_not_spoilt(engine):
    layout = PageLayout.mla(target_layers=1)
    pools = gpu_pools(layout, pages=64, slots=64, segment_pages=32)
    pools.scribble(3)
    order = np.arange(64)
    wanted = pools.host_after(order, order)
    plan = engine.plan(pools.device, pools.host, order, order, "to_host")
    busy, compute = torch.cuda.Stream(), torch.cuda.Stream()
    number = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=compute):
        number += 1
        # What belongs to no graph goes on, and is under way while the capture is.
        with torch.cuda.stream(busy):
            torch.cuda._sleep(100 * SLEEP_CYCLES_PER_MS)
        submit_layers(engine, BACKUP, plan, after=handle(busy))
        submit_layers(engine, RESTORE, plan, after=handle(busy))
        for stream in (BACKUP, RESTORE):
            with pytest.raises(UsageError, match="is being captured into a graph"):
                engine.submit(stream, plan, 0, 1, after=handle(), on_failure=unexpected)
        with pytest.raises(UsageError, match="is being captured into a graph"):
            engine.wait(handle(), RESTORE, 1)
        engine.poll()
        assert engine.acks.load(BACKUP) == 0
        number += 1
    assert engine.next_sequence(BACKUP) == 2
    assert engine.next_sequence(RESTORE) == 2
    graph.replay()
    spin(engine, BACKUP, 1)
    engine.synchronize()
    torch.cuda.synchronize()
    assert number.item() == 2
    assert np.array_equal(pools.memory, wanted)


def test_closing_waits_for_what_is_under_way(engine):
    pools = gpu_pools(PageLayout.mla(target_layers=1), pages=64, slots=64, segment_pages=32)
    (tensor,) = pools.tensors["target_kv"]
    torch.cuda._sleep(50 * SLEEP_CYCLES_PER_MS)
    tensor.fill_(9)
    order = np.arange(64)
    plan = engine.plan(pools.device, pools.host, order, order, "to_host")
    last = submit_layers(engine, BACKUP, plan, after=handle())
    assert engine.acks.load(BACKUP) < last
    engine.close()
    assert engine.acks.load(BACKUP) == last
    assert (pools.memory == 9).all()


def test_a_thread_that_never_used_the_gpu_may_copy(engine):
    pools = gpu_pools(PageLayout.mla(target_layers=1), pages=64, slots=64, segment_pages=32)
    pools.scribble(7)
    order = np.arange(64)
    wanted = pools.host_after(order, order)
    failed = []

    def work():
        try:
            plan = engine.plan(pools.device, pools.host, order, order, "to_host")
            engine.wait(None, BACKUP, submit_layers(engine, BACKUP, plan, after=None))
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []
    assert np.array_equal(pools.memory, wanted)


def test_what_copies_cost_is_measured_and_kept(monkeypatch, tmp_path, tell):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CPKV_COPY_PATH", raising=False)
    monkeypatch.setattr("cpkv.device.cuda.choice._figures_of", {})
    engine = CudaEngine(copy_path="auto")
    pools = gpu_pools(PageLayout.mla(target_layers=1), pages=64, slots=64, segment_pages=32)
    order = np.arange(64)
    plan = engine.plan(pools.device, pools.host, order, order, "to_host")
    spin(engine, BACKUP, submit_layers(engine, BACKUP, plan, after=handle()))
    said = engine.explain()
    tell("\n" + "\n".join(f"  {what}: {how}" for what, how in said.items()))
    assert said["figures"].startswith("measured on ")
    assert "not batch" not in said
    assert "not kernel" not in said
    assert said["acks"].startswith("written by the stream")
    assert (tmp_path / "cpkv" / "copy-costs.json").is_file()
    engine.close()


def test_an_engine_needs_no_torch():
    code = (
        "import sys, numpy as np\n"
        "from cpkv.device.cuda import CudaEngine\n"
        "engine = CudaEngine(copy_path='batch')\n"
        "engine.poll(); engine.synchronize()\n"
        "print('torch' in sys.modules, engine.explain()['acks'].split()[0])\n"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False written\n"
