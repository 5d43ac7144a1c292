"""Which way a plan is copied: measured, kept in a file, chosen, and told."""

import json
import logging
from contextlib import ExitStack

import numpy as np
import pytest

from copy_pools import numpy_pools
from cpkv.config import CacheConfig
from cpkv.device.cuda import CudaEngine, calibration, choice
from cpkv.device.cuda.cost import CostModel
from cpkv.device.cuda.cost_file import cost_file, read_figures, write_figures
from cpkv.device.cuda.figures import ON_H200, Figure, Figures
from cpkv.device.cuda.machine import machine
from cpkv.device.cuda.ring import Ring
from cpkv.errors import ConfigError
from cpkv.layout import PageLayout
from fake_cuda import FakeDriver

ONE = np.array([1])


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CPKV_COPY_PATH", raising=False)
    monkeypatch.setattr(choice, "_figures_of", {})
    monkeypatch.setattr(calibration, "SCRATCH_BYTES", 1 << 20)
    monkeypatch.setattr(calibration, "ROW_BYTES", (132, 1_152))


def figures(batch, kernel=(), each=(), block=None):
    by_path = {"batch": batch, "kernel": kernel, "each": each}
    runs = {path: tuple(Figure(*one) for one in ones) for path, ones in by_path.items()}
    blocks = {"to_host": Figure(*block), "to_device": Figure(*block)} if block else {}
    return Figures("a test", {"to_host": runs, "to_device": runs}, blocks)


def chosen(known, sizes, paths=("batch", "kernel", "each"), counts=None):
    counts = np.ones(len(sizes)) if counts is None else np.array(counts)
    return CostModel(known, paths).path("to_host", np.array(sizes), counts)


def test_the_kernel_has_to_be_more_than_twice_as_fast():
    """It loses half of its rate beside a forward."""
    for kernel_us, wanted in ((4.6, "batch"), (4.5, "kernel")):
        assert chosen(figures(batch=[(1000, 10.0, 0.4)], kernel=[(1000, kernel_us, 0.01)]), [1000]) == wanted


def test_the_slower_of_link_and_thread_counts():
    known = figures(batch=[(1000, 1.0, 9.0)], each=[(1000, 8.0, 1.0)])
    assert chosen(known, [1000] * 3, paths=("batch", "each")) == "each"
    assert chosen(known, [1000] * 3, paths=("batch",)) == "batch"


def test_costs_go_with_the_bytes_of_a_run():
    model = CostModel(figures(batch=[(1000, 2.0, 0.1), (3000, 3.0, 0.1)]), ("batch",))
    cost = lambda size: model.microseconds("to_host", "batch", np.array([size]), ONE)  # noqa: E731
    assert [cost(size) for size in (10, 1000, 2000, 3000, 6000)] == [2.0, 2.0, 2.5, 3.0, 6.0]
    assert model.microseconds("to_host", "batch", np.array([1000, 3000]), np.array([10, 2])) == 26.0
    assert model.microseconds("to_host", "kernel", np.array([1000]), ONE) == float("inf")


def test_blocks_are_made_from_the_calls_that_they_save():
    runs = [(1000, 1.0, 0.4)]
    assert CostModel(figures(runs, block=(1000, 1.0, 7.0)), ("batch",)).least_block("to_host") == 18
    assert CostModel(figures(runs, block=(1000, 1.0, 0.1)), ("batch",)).least_block("to_host") == 2
    assert CostModel(figures(runs, block=(1000, 1.04, 7.0)), ("batch",)).least_block("to_host") is None
    assert CostModel(figures(runs), ("batch",)).least_block("to_host") is None
    assert CostModel(figures(batch=(), each=runs, block=(1000, 1.0, 7.0)), ("each",)).least_block("to_host") == 18


def test_pages_that_lie_anywhere_go_in_a_batch_by_the_figures_of_an_h200():
    for pages in (1, 4, 16, 32):
        assert chosen(ON_H200, [73_728 * pages, 8_448 * pages]) == "batch"
    assert chosen(ON_H200, [73_728], paths=("each",)) == "each"


def test_the_first_plan_measures_and_the_next_process_reads(monkeypatch, caplog):
    driver = FakeDriver()
    engine = CudaEngine(driver=driver)
    assert engine.explain()["every size"] == "by cost, which is measured when the first plan is prepared"
    pools = numpy_pools(PageLayout.mla(target_layers=1), pages=4, slots=4, segment_pages=4)
    arguments = (pools.device, pools.host, np.array([2, 0]), np.array([1, 3]), "to_host")
    engine.plan(*arguments)
    assert "cuMemHostAlloc" in driver.names()
    assert len(driver.memory) == 0, "scratch memory is given back"
    assert len(driver.streams) == 3
    told = engine.explain()
    assert told["figures"].startswith("measured on Fake GPU; driver ")
    assert "to_host, runs of 1152 bytes" in told
    assert "to_device, whole segments in a row" in told
    assert told["acks"].startswith("written by the stream")
    engine.close()
    content = json.loads(cost_file().read_text(encoding="utf-8"))
    assert list(content["machines"]) == [machine(driver, engine._context)]
    for forget in (False, True):
        if forget:
            monkeypatch.setattr(choice, "_figures_of", {})
        driver = FakeDriver()
        engine = CudaEngine(driver=driver)
        engine.plan(*arguments)
        assert "cuMemHostAlloc" not in driver.names()
        assert engine.explain()["figures"] == told["figures"]
        engine.close()
    assert caplog.text == ""


@pytest.mark.parametrize("call", ["cuMemAlloc", "cuMemcpyBatchAsync", "cuEventElapsedTime"])
def test_what_cannot_be_measured_is_taken_from_an_h200(call, caplog):
    driver = FakeDriver()
    engine = CudaEngine(driver=driver)
    driver.fail(call, 2)
    pools = numpy_pools(PageLayout.mla(target_layers=1), pages=4, slots=4, segment_pages=4)
    plan = engine.plan(pools.device, pools.host, np.array([2, 0]), np.array([1, 3]), "to_host")
    assert plan.path == "batch"
    assert "could not be measured, figures of an H200 are used: " + call in caplog.text
    assert engine.explain()["figures"] == ON_H200.source
    assert driver.memory == {}
    assert not cost_file().exists()
    engine.close()


def test_a_kernel_without_memory_is_not_used(caplog):
    driver = FakeDriver()
    engine = CudaEngine(driver=driver)
    known = figures(batch=[(1000, 9.0, 9.0)], kernel=[(1000, 1.0, 0.1)], each=[(1000, 9.0, 9.0)])
    choice._figures_of[machine(driver, engine._context)] = known
    pools = numpy_pools(PageLayout.mla(target_layers=1), pages=4, slots=4, segment_pages=4)
    arguments = (pools.device, pools.host, np.array([2, 0]), np.array([1, 3]), "to_host")
    driver.fail("cuMemHostAlloc", 2)
    assert engine.plan(*arguments).path == "batch"
    assert "the copy kernel gets no memory, batch is used" in caplog.text
    driver.current = 0xD0
    assert engine.plan(*arguments).path == "kernel"
    assert driver.current == 0xD0
    engine.close()


def test_the_path_may_be_said(monkeypatch):
    with pytest.raises(ConfigError, match="copy_path is 'fast', want one of auto, batch, blocks, kernel, each"):
        CudaEngine(copy_path="fast", driver=FakeDriver())
    monkeypatch.setenv("CPKV_COPY_PATH", "each")
    engine = CudaEngine(driver=FakeDriver())
    assert engine.explain()["every size"] == "each, as copy_path is 'each'"
    engine.close()
    engine = CudaEngine(copy_path="batch", driver=FakeDriver())
    assert engine.explain()["every size"] == "batch, as copy_path is 'batch'"
    engine.close()
    monkeypatch.setenv("CPKV_COPY_PATH", "quick")
    with pytest.raises(ConfigError, match="copy_path is 'quick'"):
        CudaEngine(driver=FakeDriver())
    assert CacheConfig.from_environment({"CPKV_COPY_PATH": "each"}) == CacheConfig(), "is no setting of a cache"


def test_a_kernel_that_cannot_be_had_is_told_of():
    driver = FakeDriver(a91=0)
    engine = CudaEngine(copy_path="batch", driver=driver)
    assert engine.explain()["not kernel"].startswith("kernels cannot use the addresses")
    engine.close()
    driver = FakeDriver()
    driver.fail("cuModuleLoadData", 200)
    with pytest.raises(ConfigError, match="copy_path is 'kernel', which cannot be had: cuModuleLoadData failed"):
        CudaEngine(copy_path="kernel", driver=driver)
    assert driver.registered == set()


def test_figures_come_back_from_the_file_beside_those_of_others(tmp_path):
    file = tmp_path / "new" / "costs.json"
    assert read_figures(file, "a") is None
    write_figures(file, "a", ON_H200)
    other = figures(batch=[(1000, 1.0, 1.0)])
    write_figures(file, "b", other)
    assert read_figures(file, "a") == ON_H200
    assert read_figures(file, "b").runs["to_host"]["batch"] == other.runs["to_host"]["batch"]
    assert read_figures(file, "c") is None
    assert [one.name for one in file.parent.iterdir()] == ["costs.json"], "no half-written file stays"


def broken(runs):
    return f'{{"format": "cpkv copy costs, 1", "machines": {{"a": {{"source": "s", "blocks": {{}}, "runs": {runs}}}}}}}'


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "\udcff",
        '{"format": "another"}',
        '{"format": "cpkv copy costs, 1", "machines": {"a": []}}',
        '{"format": "cpkv copy costs, 1", "machines": {"a": {"source": "s", "blocks": {}}}}',
        broken('{"to_host": {"batch": [[1, 0, 1]]}, "to_device": {}}'),
        broken('{"to_host": {"batch": [[1, NaN, 1]]}, "to_device": {}}'),
        broken('{"to_host": {"batch": [[1, Infinity, 1]]}, "to_device": {}}'),
        broken('{"to_host": {}}'),
    ],
)
def test_a_broken_file_is_ignored_with_a_warning_and_replaced(tmp_path, caplog, content):
    file = tmp_path / "costs.json"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with caplog.at_level(logging.WARNING, "cpkv"):
        assert read_figures(file, "a") is None
    assert "ignored" in caplog.text
    write_figures(file, "a", ON_H200)
    assert read_figures(file, "a") == ON_H200


def test_figures_that_cannot_be_kept_are_used_all_the_same(tmp_path, caplog):
    (tmp_path / "file").touch()
    write_figures(tmp_path / "file" / "costs.json", "a", ON_H200)
    assert "figures are not kept" in caplog.text


def test_a_machine_is_told_by_gpu_driver_and_link(tmp_path):
    engine = CudaEngine(copy_path="batch", driver=FakeDriver())
    assert machine(engine._driver, engine._context, tmp_path) == (
        "Fake GPU; driver unknown, CUDA 13000; link unknown xunknown"
    )
    bus = tmp_path / "bus/pci/devices/0000:1b:00.0"
    bus.mkdir(parents=True)
    (tmp_path / "module/nvidia").mkdir(parents=True)
    (bus / "max_link_speed").write_text("32.0 GT/s PCIe\n")
    (bus / "max_link_width").write_text("16\n")
    (tmp_path / "module/nvidia/version").write_text("580.1\n")
    assert machine(engine._driver, engine._context, tmp_path) == (
        "Fake GPU; driver 580.1, CUDA 13000; link 32.0 GT/s PCIe x16"
    )
    engine.close()


def test_a_ring_gives_no_byte_to_two_submissions_under_way():
    random = np.random.default_rng(5)
    stack = ExitStack()
    ring = Ring(FakeDriver(), 100, stack)
    taken, sequence, reached, refused = {}, 0, 0, 0
    for _ in range(5000):
        sequence += 1
        size = int(random.integers(1, 130))
        offset = ring.take(size, sequence, reached)
        if offset is None:
            refused += 1
            assert size > 100 or any(number > reached for number in taken)
        else:
            assert 0 <= offset <= 100 - size
            for number, (begin, end) in taken.items():
                assert number <= reached or end <= offset or offset + size <= begin
            taken[sequence] = (offset, offset + size)
        if random.random() < 0.4:
            reached = int(random.integers(reached, sequence + 1))
        taken = {number: one for number, one in taken.items() if number > reached}
    assert 100 < refused < 4900
    assert ring.take(100, sequence + 1, sequence) == 0
    stack.close()


def test_a_full_ring_lets_the_batch_call_copy(monkeypatch):
    monkeypatch.setattr("cpkv.device.cuda.kernel.RING_BYTES", 3 * 8 * 5)
    driver = FakeDriver(holds=True)
    engine = CudaEngine(copy_path="kernel", driver=driver)
    pools = numpy_pools(PageLayout.mla(target_layers=1), pages=8, slots=8, segment_pages=1)
    order = np.arange(4)
    plan = engine.plan(pools.device, pools.host, order, order[::-1].copy(), "to_host")
    for _ in range(2):
        engine.submit(0, plan, 0, 1, after=None, on_failure=pytest.fail)
    assert driver.names().count("cuLaunchKernel") == driver.names().count("cuMemcpyBatchAsync") == 1
    engine.synchronize()
    engine.submit(0, plan, 0, 1, after=None, on_failure=pytest.fail)
    assert driver.names().count("cuLaunchKernel") == 2
    engine.close()
