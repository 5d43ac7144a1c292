"""The copy engine of GPUs against a driver without one: which calls, in which order, and what if they fail."""

import ctypes
import gc
import logging
import weakref

import numpy as np
import pytest

import cpkv
from copy_pools import numpy_pools, pairs
from cpkv.device import BACKUP, LATE, RESTORE
from cpkv.device.cuda import CudaEngine, CudaError, CudaStreamError, choice, words
from cpkv.device.cuda.abi import Copy2D, CopyAttributes
from cpkv.device.cuda.driver import Driver
from cpkv.device.plan import plan_copies
from cpkv.errors import ConfigError, CopyError, UsageError
from cpkv.layout import PageLayout
from fake_cuda import ILLEGAL_ADDRESS, INVALID_VALUE, FakeDriver

COMPUTE = 0x7
PATHS = ("batch", "blocks", "kernel", "each")
LAYOUT = PageLayout.mla(target_layers=3, draft_layers=1, page_size=1, kv="fp8_packed", index_layers=(0, 2))
"""Rows of 656 and of 132 bytes; the second target layer has no index."""


@pytest.fixture(autouse=True)
def _no_figures(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("CPKV_COPY_PATH", raising=False)
    monkeypatch.setattr(choice, "_figures_of", {})
    yield
    _kept.clear()


_kept = []
"""The memory of plans that a test has not kept itself: copies that are under way at its end are still made."""


@pytest.fixture
def driver():
    return FakeDriver(holds=True)


@pytest.fixture
def engine(driver):
    engine = CudaEngine(0, copy_path="batch", driver=driver)
    driver.calls.clear()
    yield engine
    driver.failures.clear()
    engine.close()


def pools_of(segment_pages=4, slots=32):
    return numpy_pools(LAYOUT, pages=40, slots=slots, segment_pages=segment_pages)


def planned(engine, pools=None, kind="scattered", count=8, direction="to_host"):
    pools = pools or pools_of()
    _kept.append(pools)
    pages, slots = pairs(kind, count, pages=40, slots=pools.host.slots, segment_pages=pools.host.segment_pages)
    return engine.plan(pools.device, pools.host, pages, slots, direction)


class Told:
    """Notes a failure among the calls of the driver."""

    def __init__(self, driver):
        self.driver = driver
        self.errors = []

    def __call__(self, error):
        self.errors.append(error)
        self.driver.calls.append(("told",))


def submit(engine, plan, stream=BACKUP, *, layers=(0, 4), after=COMPUTE, on_failure=pytest.fail):
    engine.submit(stream, plan, *layers, after=after, on_failure=on_failure)
    return engine.next_sequence(stream) - 1


def handle(driver, stream):
    return list(driver.streams)[stream]


# --- What is called ---


def test_structures_are_laid_out_as_the_driver_has_them():
    assert ctypes.sizeof(CopyAttributes) == 24
    assert ctypes.sizeof(Copy2D) == 128
    offsets = {name: getattr(Copy2D, name).offset for name, _ in Copy2D._fields_}
    assert (offsets["source_host"], offsets["source_pitch"]) == (24, 48)
    assert (offsets["destination_x"], offsets["destination_pitch"], offsets["height"]) == (56, 104, 120)


@pytest.mark.parametrize(
    ("stream", "extra"), [(BACKUP, []), (LATE, []), (RESTORE, ["cuEventRecord"])], ids=["backup", "late", "restore"]
)
def test_the_ack_is_the_last_of_a_submission(driver, engine, stream, extra):
    plan = planned(engine)
    submit(engine, plan, stream)
    assert driver.names("cuEventCreate") == [
        "cuCtxGetCurrent",
        "cuStreamIsCapturing",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuMemcpyBatchAsync",
        *extra,
        "cuStreamWriteValue64",
    ]
    (event, compute), *_ = driver.arguments("cuEventRecord")
    assert compute == COMPUTE
    assert driver.arguments("cuStreamWaitEvent") == [(handle(driver, stream), event, 0)]
    assert engine.acks.load(stream) == 0
    driver.run(handle(driver, stream))
    assert engine.acks.load(stream) == 1


def test_a_mark_is_recorded_when_it_is_made_and_waited_for_by_whoever_gets_it(driver, engine):
    plan = planned(engine)
    driver.calls.clear()
    mark = engine.mark(COMPUTE)
    assert driver.names("cuEventCreate") == ["cuCtxGetCurrent", "cuStreamIsCapturing", "cuEventRecord"]
    assert driver.arguments("cuEventRecord") == [(mark.event, COMPUTE)]
    driver.calls.clear()
    for _ in range(2):
        submit(engine, plan, after=mark)
    once = ["cuCtxGetCurrent", "cuStreamWaitEvent", "cuMemcpyBatchAsync", "cuStreamWriteValue64"]
    assert driver.names() == once * 2
    assert driver.arguments("cuStreamWaitEvent") == [(handle(driver, BACKUP), mark.event, 0)] * 2
    assert engine.mark(None) is None
    driver.run(handle(driver, BACKUP))


def test_events_of_marks_are_used_again_when_nobody_has_the_mark(driver, engine):
    kept, other = engine.mark(COMPUTE), engine.mark(COMPUTE)
    freed = other.event
    assert freed != kept.event
    del other
    driver.calls.clear()
    assert engine.mark(COMPUTE).event == freed
    assert "cuEventCreate" not in driver.names()


def test_a_mark_that_is_refused_is_none(driver, engine):
    driver.capturing[COMPUTE] = 1
    with pytest.raises(UsageError, match="stream 7 is being captured into a graph"):
        engine.mark(COMPUTE)
    driver.capturing.clear()
    driver.fail("cuEventRecord")
    with pytest.raises(CudaError, match="cuEventRecord on the compute stream 7"):
        engine.mark(COMPUTE)


def test_without_a_compute_stream_there_is_nothing_to_wait_for(driver, engine):
    submit(engine, planned(engine), after=None)
    assert driver.names() == ["cuCtxGetCurrent", "cuMemcpyBatchAsync", "cuStreamWriteValue64"]


def test_layers_in_a_row_are_one_call_and_nothing_is_none(driver, engine):
    plan = planned(engine, count=8)
    driver.calls.clear()
    submit(engine, plan, layers=(0, 4))
    submit(engine, plan, layers=(1, 2))
    submit(engine, plan, layers=(2, 2))
    submit(engine, planned(engine, count=0))
    counts = [arguments[3] for arguments in driver.arguments("cuMemcpyBatchAsync")]
    # Target: KV and index, KV, KV and index; draft: KV and index. No run is longer than a page here.
    assert counts == [7 * 8, 8]
    assert driver.arguments("cuStreamWriteValue64")[-1][2] == 4
    driver.run(handle(driver, BACKUP))
    assert engine.acks.load(BACKUP) == 4


def test_another_context_is_put_back(driver, engine):
    plan = planned(engine)
    driver.current = 0xD0
    driver.calls.clear()
    submit(engine, plan)
    assert driver.names()[:2] == ["cuCtxGetCurrent", "cuCtxPushCurrent"]
    assert driver.names()[-1] == "cuCtxPopCurrent"
    assert driver.current == 0xD0
    driver._functions["cuStreamIsCapturing"] = _refuse_argument
    with pytest.raises(UsageError, match="handle as an integer"):
        submit(engine, plan, after="default")
    assert driver.current == 0xD0
    assert engine.next_sequence(BACKUP) == 2


def _refuse_argument(*_):
    raise ctypes.ArgumentError


@pytest.mark.parametrize("version", [13_000, 12_090, 12_080])
def test_the_batch_call_has_the_form_of_the_version(version):
    driver = FakeDriver(version)
    engine = CudaEngine(copy_path="batch", driver=driver)
    submit(engine, planned(engine))
    assert len(driver.arguments("cuMemcpyBatchAsync")[0]) == (8 if version >= 13_000 else 9)
    assert engine.acks.load(BACKUP) == 1
    engine.close()


@pytest.mark.parametrize(("index", "told"), [(3, "at copy 3"), (2**64 - 1, r"means\)$")])
def test_the_copy_that_failed_is_named_where_the_driver_tells(index, told):
    driver = FakeDriver(12_080)

    def refuse(*arguments):
        arguments[7]._obj.value = index
        return INVALID_VALUE

    driver.cuMemcpyBatchAsync = refuse
    engine = CudaEngine(copy_path="batch", driver=driver)
    with pytest.raises(
        CopyError, match=f"cuMemcpyBatchAsync of 56 copies failed with CUDA_ERROR_INVALID_VALUE .*{told}"
    ):
        submit(engine, planned(engine), on_failure=lambda _: None)
    engine.close()


def test_an_old_driver_has_no_batch_call():
    driver = FakeDriver(12_040)
    with pytest.raises(
        ConfigError, match="copy_path is 'batch', which cannot be had: the driver has CUDA 12040, want 12080"
    ):
        CudaEngine(copy_path="batch", driver=driver)
    engine = CudaEngine(copy_path="blocks", driver=driver)
    pools = pools_of()
    submit(engine, planned(engine, pools))
    assert len(driver.arguments("cuMemcpyAsync")) == 7 * 8
    assert engine.explain()["every size"].startswith("blocks where whole segments follow each other, and each")
    engine.close()


def test_without_a_driver_making_an_engine_says_so():
    with pytest.raises(ConfigError, match=r"the CUDA driver cannot be loaded \(libmissing"):
        Driver("libmissing.so.1")
    with pytest.raises(ConfigError, match="device 7: cuDeviceGet failed with CUDA_ERROR_INVALID_DEVICE"):
        CudaEngine(7, driver=FakeDriver())


# --- Bytes ---


@pytest.mark.parametrize("direction", ["to_host", "to_device"])
@pytest.mark.parametrize("segment_pages", [1, 4, 32])
@pytest.mark.parametrize("kind", ["scattered", "runs", "blocks"])
@pytest.mark.parametrize("path", PATHS)
def test_every_byte_goes_where_it_belongs(path, kind, segment_pages, direction):
    driver = FakeDriver()
    engine = CudaEngine(copy_path=path, driver=driver)
    pools = pools_of(segment_pages)
    before = pools.memory.copy()
    device_before = {page: pools.device_rows(page) for page in range(40)}
    pages, slots = pairs(kind, 12, pages=40, slots=32, segment_pages=segment_pages)
    host_before = {slot: pools.host_rows(slot) for slot in range(32)}
    plan = engine.plan(pools.device, pools.host, pages, slots, direction)
    for layer in range(4):
        submit(engine, plan, layers=(layer, layer + 1))
    home = dict(zip(pages.tolist(), slots.tolist(), strict=True))
    origin = {slot: page for page, slot in home.items()}
    for page in range(40):
        wanted = host_before[home[page]] if page in home and direction == "to_device" else device_before[page]
        assert all(map(np.array_equal, pools.device_rows(page), wanted))
    for slot in range(32):
        wanted = device_before[origin[slot]] if slot in origin and direction == "to_host" else host_before[slot]
        assert all(map(np.array_equal, pools.host_rows(slot), wanted))
    margin = 4096
    assert np.array_equal(pools.memory[:margin], before[:margin])
    assert np.array_equal(pools.memory[-margin:], before[-margin:])
    has_blocks = path == "blocks" and kind == "blocks" and segment_pages < 32
    assert bool(driver.arguments("cuMemcpy2DAsync")) == has_blocks
    engine.close()


@pytest.mark.parametrize(
    ("kind", "direction", "path", "go_in_turns"),
    [
        ("scattered", "to_host", "batch", True),
        ("scattered", "to_device", "batch", False),
        ("runs", "to_host", "batch", False),
        ("scattered", "to_host", "each", False),
    ],
)
def test_rows_of_scattered_pages_go_to_the_host_in_turns(kind, direction, path, go_in_turns):
    engine = CudaEngine(copy_path=path, driver=FakeDriver())
    pools = pools_of(4)
    pages, slots = pairs(kind, 12, pages=40, slots=32, segment_pages=4)
    plan = engine.plan(pools.device, pools.host, pages, slots, direction)
    for layer in range(4):
        rows = plan.rows(layer, layer + 1)
        sizes, sources = plan.sizes[rows], plan.sources[rows]
        wanted = (sizes.T, sources.T) if go_in_turns else (sizes, sources)
        assert plan.arrays.sizes[rows].ravel().tolist() == wanted[0].ravel().tolist()
        assert plan.arrays.sources[rows].ravel().tolist() == wanted[1].ravel().tolist()
    engine.close()


def test_each_row_of_each_block_is_copied():
    driver = FakeDriver()
    engine = CudaEngine(copy_path="blocks", driver=driver)
    pools = pools_of(4)
    slots = np.array([*range(8), *range(16, 24)])
    pages = slots + 8
    before = [pools.device_rows(page) for page in pages]
    plan = engine.plan(pools.device, pools.host, pages, slots, "to_host")
    for layer in range(4):
        submit(engine, plan, layers=(layer, layer + 1))
    assert len(driver.arguments("cuMemcpy2DAsync")) == 7 * 2
    assert "cuMemcpyBatchAsync" not in driver.names()
    for slot, rows in zip(slots, before, strict=True):
        assert all(map(np.array_equal, pools.host_rows(slot), rows))
    engine.close()


def test_kernels_under_way_together_have_arrays_of_their_own(driver):
    engine = CudaEngine(copy_path="kernel", driver=driver)
    pools = pools_of()
    before = pools.device_rows(5)
    plan = engine.plan(pools.device, pools.host, np.array([5]), np.array([6]), "to_host")
    for layer in range(4):
        submit(engine, plan, layers=(layer, layer + 1))
    engine.close()
    assert all(map(np.array_equal, pools.host_rows(6), before))


def test_no_block_has_a_longer_pitch_than_the_driver_takes():
    pools = pools_of(4)
    for most, blocks in ((pools.host.segment_bytes, True), (pools.host.segment_bytes - 1, False)):
        driver = FakeDriver(a11=most)
        engine = CudaEngine(copy_path="blocks", driver=driver)
        assert (planned(engine, pools, "blocks", 12).blocks is not None) == blocks
        engine.close()


@pytest.mark.parametrize(
    ("begins", "ends", "blocks"), [(0, 0, True), (1, 0, False), (0, -1, False)], ids=["one", "in front", "behind"]
)
def test_no_block_lies_in_two_registrations(driver, begins, ends, blocks):
    engine = CudaEngine(copy_path="blocks", driver=driver)
    pools = pools_of(4)
    begin = pools.host.address + begins
    driver.range = (begin, pools.host.address + pools.host.bytes + ends - begin)
    for _ in range(2):
        assert (planned(engine, pools, "blocks", 12).blocks is not None) == blocks
    assert len(driver.arguments("cuPointerGetAttribute")) == 2
    assert ("not blocks" in engine.explain()) == (not blocks)
    engine.close()
    engine = CudaEngine(copy_path="blocks", driver=driver)
    driver.fail("cuPointerGetAttribute")
    assert planned(engine, pools, "blocks", 12).blocks is None
    engine.close()


def test_a_plan_of_another_engine_and_layers_that_are_not_there_are_refused(engine, driver):
    pools = pools_of()
    other = plan_copies(pools.device, pools.host, np.array([1]), np.array([1]), direction="to_host")
    with pytest.raises(UsageError, match="the plan is a CopyPlan, want one that this engine has prepared"):
        submit(engine, other)
    plan = planned(engine)
    for layers in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(UsageError, match=f"layers are {layers[0]} to {layers[1]}, want 0 to 4"):
            submit(engine, plan, layers=layers)
    assert engine.next_sequence(BACKUP) == 1
    assert "cuMemcpyBatchAsync" not in driver.names()


# --- Failures ---


@pytest.mark.parametrize("stream", [BACKUP, RESTORE])
@pytest.mark.parametrize("call", ["cuEventRecord", "cuStreamWaitEvent", "cuMemcpyBatchAsync", "cuStreamWriteValue64"])
def test_whatever_is_refused_is_told_before_the_ack(driver, engine, call, stream):
    plan = planned(engine)
    told = Told(driver)
    driver.calls.clear()
    driver.fail(call, INVALID_VALUE)
    with pytest.raises(
        CudaError, match=rf"layers 0 to 3, submission 1 of \w+: {call}.* CUDA_ERROR_INVALID_VALUE \(1: "
    ) as caught:
        submit(engine, plan, stream, on_failure=told)
    assert caught.value.code == INVALID_VALUE
    assert told.errors == [caught.value]
    names = driver.names()
    assert names[-1] == "cuStreamWriteValue64"
    assert names.index("told") < len(names) - 1
    assert ("cuMemcpyBatchAsync" in names) == (call in ("cuMemcpyBatchAsync", "cuStreamWriteValue64"))
    assert engine.next_sequence(stream) == 2
    assert submit(engine, plan, stream) == 2
    assert engine.acks.load(stream) == 0
    driver.run(handle(driver, stream))
    assert engine.acks.load(stream) == 2
    assert len(told.errors) == 1


@pytest.mark.parametrize("call", ["cuCtxPushCurrent", "cuStreamIsCapturing"])
def test_what_is_refused_before_anything_is_queued_is_told_too(driver, engine, call):
    """Else a driver that has counted the submission as done would have its ack without its copies."""
    plan = planned(engine)
    told = Told(driver)
    driver.current = 0x99
    driver.fail(call, INVALID_VALUE)
    with pytest.raises(CudaError, match=rf"submission 1 of backup: {call}.* CUDA_ERROR_INVALID_VALUE") as caught:
        submit(engine, plan, on_failure=told)
    assert told.errors == [caught.value]
    assert engine.next_sequence(BACKUP) == 2
    driver.run(handle(driver, BACKUP))
    engine.poll()
    assert engine.acks.load(BACKUP) == 1
    assert driver.current == 0x99


def test_a_refused_end_event_is_told_too(driver, engine):
    plan = planned(engine)
    told = Told(driver)
    driver.fail("cuEventRecord", 0, INVALID_VALUE)
    with pytest.raises(CudaError, match="cuEventRecord on the copy stream"):
        submit(engine, plan, RESTORE, on_failure=told)
    assert len(told.errors) == 1
    assert driver.names()[-1] == "cuStreamWriteValue64"


def test_an_ack_that_cannot_be_queued_comes_when_the_stream_is_idle(driver, engine, caplog):
    plan = planned(engine)
    told = Told(driver)
    driver.fail("cuStreamWriteValue64", INVALID_VALUE, INVALID_VALUE)
    with pytest.raises(CudaError):
        submit(engine, plan, on_failure=told)
    assert "backup: no ack behind submission 1: cuStreamWriteValue64" in caplog.text
    engine.poll()
    assert engine.acks.load(BACKUP) == 0
    driver.run(handle(driver, BACKUP))
    engine.poll()
    assert engine.acks.load(BACKUP) == 1
    assert len(told.errors) == 1


def test_an_interrupted_submission_counts_as_failed(driver, engine):
    plan = planned(engine)
    told = Told(driver)
    real = plan.queue

    def interrupted(*arguments):
        real(*arguments)
        raise KeyboardInterrupt

    object.__setattr__(plan, "queue", interrupted)
    with pytest.raises(KeyboardInterrupt):
        submit(engine, plan, on_failure=told)
    assert len(told.errors) == 1
    assert driver.names()[-1] == "cuStreamWriteValue64"
    assert engine.next_sequence(BACKUP) == 2


@pytest.mark.parametrize("status", [1, 2, -900, -906])
def test_a_captured_stream_is_refused_before_anything_is_queued(driver, engine, status):
    plan = planned(engine)
    driver.capturing[COMPUTE] = status
    driver.calls.clear()
    with pytest.raises(UsageError, match="stream 7 is being captured into a graph"):
        submit(engine, plan)
    assert driver.names() == ["cuCtxGetCurrent", "cuStreamIsCapturing"]
    assert engine.next_sequence(BACKUP) == 1
    submit(engine, plan, RESTORE, after=None)
    with pytest.raises(UsageError, match="stream 7 is being captured into a graph"):
        engine.wait(COMPUTE, RESTORE, 1)
    driver.run(handle(driver, RESTORE))


def test_a_stream_that_fails_tells_everyone_once(driver, caplog):
    engine = CudaEngine(0, copy_path="batch", driver=driver)
    plan = planned(engine)
    told = [Told(driver) for _ in range(4)]
    for one in told[:3]:
        submit(engine, plan, on_failure=one)
    submit(engine, plan, LATE, on_failure=told[3])
    driver.run(handle(driver, BACKUP), 2)  # the copies and the ack of the first
    assert engine.acks.load(BACKUP) == 1
    driver.code_of_streams = ILLEGAL_ADDRESS
    with caplog.at_level(logging.ERROR, "cpkv"):
        engine.poll()
        engine.poll()
    assert [len(one.errors) for one in told] == [0, 1, 1, 1]
    assert isinstance(told[1].errors[0], CudaStreamError)
    assert "copy stream backup has failed: cuStreamQuery returned CUDA_ERROR_ILLEGAL_ADDRESS" in caplog.text
    assert "submissions 2 to 3 are lost" in caplog.text
    assert len(caplog.records) == 2
    assert (engine.acks.load(BACKUP), engine.acks.load(LATE)) == (1, 0), "what is lost is not known to have ended"
    with pytest.raises(CudaStreamError, match="backup has failed: cuStreamSynchronize"):
        engine.synchronize()
    # Who gives memory up behind the engine has to hear of it.
    for _ in range(2):
        with pytest.raises(CudaStreamError, match="backup has failed"):
            engine.close()
    assert driver.streams == {}
    with pytest.raises(CudaStreamError, match="backup has failed"):
        engine.synchronize()


@pytest.mark.parametrize("fails", [False, True])
def test_a_close_that_is_interrupted_says_later_whether_copies_have_ended(driver, monkeypatch, fails):
    """It waits for the streams before it destroys them, whatever has interrupted it."""
    engine = CudaEngine(copy_path="batch", driver=driver)

    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(CudaEngine, "synchronize", interrupted)
    driver.code_of_streams = ILLEGAL_ADDRESS * fails
    with pytest.raises(KeyboardInterrupt):
        engine.close()
    assert driver.streams == {}
    if fails:
        with pytest.raises(CudaStreamError, match="cuStreamSynchronize failed with CUDA_ERROR_ILLEGAL_ADDRESS"):
            engine.close()
    else:
        engine.close()


def test_what_was_refused_is_not_told_again_when_its_stream_fails(driver, engine):
    plan = planned(engine)
    told = Told(driver)
    driver.fail("cuMemcpyBatchAsync", INVALID_VALUE)
    with pytest.raises(CudaError):
        submit(engine, plan, on_failure=told)
    driver.code_of_streams = ILLEGAL_ADDRESS
    engine.poll()
    assert len(told.errors) == 1
    driver.code_of_streams = 0


@pytest.mark.parametrize("code", [0, 900])
def test_looking_changes_nothing_while_copies_are_under_way(driver, engine, code):
    submit(engine, planned(engine))
    driver.code_of_streams = code
    engine.poll()
    assert engine.acks.load(BACKUP) == 0
    driver.code_of_streams = 0
    driver.run(handle(driver, BACKUP))
    driver.calls.clear()
    engine.poll()
    assert driver.calls == [], "words tell without the driver"


def test_looks_do_not_spoil_a_capture_elsewhere_or_the_context(driver, engine):
    submit(engine, planned(engine))
    driver.calls.clear()
    driver.current = 0xD0
    engine.poll()
    assert driver.current == 0xD0
    assert driver.names("cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent") == [
        "cuThreadExchangeStreamCaptureMode",
        "cuStreamQuery",
        "cuThreadExchangeStreamCaptureMode",
    ]


# --- Waits ---


def test_a_forward_waits_for_the_submission_and_no_later_one(driver, engine):
    plan = planned(engine, direction="to_device")
    for layer in range(3):
        submit(engine, plan, RESTORE, layers=(layer, layer + 1), after=None)
    ends = [event for event, stream in driver.arguments("cuEventRecord")]
    assert len(set(ends)) == 3
    driver.calls.clear()
    engine.wait(COMPUTE, RESTORE, 2)
    assert driver.arguments("cuStreamWaitEvent") == [(COMPUTE, ends[1], 0)]
    driver.run(handle(driver, RESTORE))
    driver.calls.clear()
    engine.wait(COMPUTE, RESTORE, 3)
    assert driver.calls == [], "what has landed is waited for by nobody"
    with pytest.raises(UsageError, match="submission is 4 of restore, want at most 3"):
        engine.wait(COMPUTE, RESTORE, 4)


def test_an_event_is_used_again_only_when_its_submission_has_ended(driver, engine):
    plan = planned(engine, direction="to_device")
    submit(engine, plan, RESTORE, after=None)
    submit(engine, plan, RESTORE, after=None)
    first, second = (event for event, _ in driver.arguments("cuEventRecord"))
    driver.run(handle(driver, RESTORE), 3)  # copies, event and ack of the first
    submit(engine, plan, RESTORE, after=None)
    third = driver.arguments("cuEventRecord")[-1][0]
    assert third == first != second
    engine.wait(COMPUTE, RESTORE, 2)
    assert driver.arguments("cuStreamWaitEvent")[-1] == (COMPUTE, second, 0)


def test_the_calling_thread_waits_for_the_word(driver, engine):
    plan = planned(engine, direction="to_device")
    submit(engine, plan, RESTORE, after=None)
    submit(engine, plan, RESTORE, after=None)
    engine.wait(None, RESTORE, 1)
    assert engine.acks.load(RESTORE) == 1
    assert len(driver.streams[handle(driver, RESTORE)]) == 4, "the ack of the first, and the second"
    driver.fail("cuEventSynchronize", ILLEGAL_ADDRESS)
    with pytest.raises(CudaError, match="restore, submission 2: cuEventSynchronize failed with CUDA_ERROR_ILLEGAL"):
        engine.wait(None, RESTORE, 2)


def test_other_streams_are_waited_for_as_a_whole(driver, engine):
    submit(engine, planned(engine), BACKUP)
    driver.calls.clear()
    engine.wait(COMPUTE, BACKUP, 1)
    (event, stream) = driver.arguments("cuEventRecord")[0]
    assert stream == handle(driver, BACKUP)
    assert driver.arguments("cuStreamWaitEvent") == [(COMPUTE, event, 0)]


# --- Words ---


@pytest.mark.parametrize(
    ("attributes", "failures", "reason"),
    [
        ({"a122": 0}, {}, "the GPU has no 64-bit writes of streams"),
        ({}, {"cuMemHostRegister": 712}, "registered by somebody else"),
        ({}, {"cuMemHostRegister": INVALID_VALUE}, "cuMemHostRegister failed with CUDA_ERROR_INVALID_VALUE"),
        ({}, {"cuMemHostGetDevicePointer": INVALID_VALUE}, "cuMemHostGetDevicePointer failed with"),
    ],
    ids=["no writes", "taken", "refused", "no address"],
)
def test_without_words_that_streams_write_events_do(attributes, failures, reason, caplog):
    driver = FakeDriver(holds=True, **attributes)
    for name, code in failures.items():
        driver.fail(name, code)
    engine = CudaEngine(copy_path="batch", driver=driver)
    assert reason in engine.explain()["acks"]
    assert reason in caplog.text
    plan = planned(engine)
    for _ in range(3):
        submit(engine, plan)
    assert "cuStreamWriteValue64" not in driver.names()
    events = [event for event, stream in driver.arguments("cuEventRecord") if stream != COMPUTE]
    assert len(set(events)) == 3
    driver.run(handle(driver, BACKUP), 3)  # copies and event of the first, copies of the second
    engine.poll()
    assert engine.acks.load(BACKUP) == 1
    engine.poll()
    assert engine.acks.load(BACKUP) == 1
    driver.run(handle(driver, BACKUP), 1)
    engine.poll()
    assert engine.acks.load(BACKUP) == 2
    driver.run(handle(driver, BACKUP))
    engine.poll()
    assert engine.acks.load(BACKUP) == 3
    told = Told(driver)
    submit(engine, plan, on_failure=told)
    submit(engine, plan, on_failure=told)
    driver.fail("cuEventQuery", ILLEGAL_ADDRESS)
    engine.poll()
    assert (len(told.errors), engine.acks.load(BACKUP)) == (2, 3)
    engine.close()
    assert driver.registered == set()
    assert driver.events == {}


def test_engines_whose_words_share_a_page_register_it_once(monkeypatch):
    # A page so long that whatever is allocated lies on it.
    monkeypatch.setattr(words.mmap, "PAGESIZE", 1 << 47)
    driver = FakeDriver()
    engines = [CudaEngine(copy_path="batch", driver=driver) for _ in range(2)]
    assert driver.registered == {0}
    engines[0].close()
    assert driver.registered == {0}
    submit(engines[1], planned(engines[1]))
    assert engines[1].acks.load(BACKUP) == 1
    engines[1].close()
    assert driver.registered == set()


# --- Endings ---


def test_closing_waits_and_gives_everything_back_in_order(driver):
    engine = CudaEngine(copy_path="kernel", driver=driver)
    plan = planned(engine)
    submit(engine, plan, on_failure=pytest.fail)
    submit(engine, plan, RESTORE)
    driver.calls.clear()
    engine.close()
    names = driver.names()
    assert (engine.acks.load(BACKUP), engine.acks.load(RESTORE)) == (1, 1)
    order = ["cuStreamSynchronize", "cuStreamDestroy", "cuMemHostUnregister", "cuDevicePrimaryCtxRelease"]
    places = [names.index(name) for name in order]
    assert places == sorted(places)
    for name in ("cuMemFree", "cuMemFreeHost", "cuEventDestroy", "cuModuleUnload"):
        assert names.index("cuStreamSynchronize") < names.index(name) < places[-1]
    assert (driver.streams, driver.events, driver.registered, driver.memory) == ({}, {}, set(), {})
    driver.calls.clear()
    engine.close()
    engine.synchronize()
    engine.poll()
    assert driver.calls == []
    engine.resume()
    with pytest.raises(UsageError, match="the copy engine is closed: nothing can be submitted"):
        submit(engine, plan)
    with pytest.raises(UsageError, match="the copy engine is closed"):
        planned(engine)


def test_an_engine_that_is_dropped_lets_go_of_the_words_and_then_frees_them(driver, monkeypatch):
    class Words:
        """As `AckWords`, and can be seen to be freed."""

        def __init__(self, streams):
            self.real = cpkv.AckWords(streams)

        def __getattr__(self, name):
            return getattr(self.real, name)

    monkeypatch.setattr("cpkv.device.cuda.engine.AckWords", Words)
    engine = CudaEngine(copy_path="batch", driver=driver)
    plan = planned(engine)
    submit(engine, plan)
    words_of = weakref.ref(engine.acks)
    unregister = driver.cuMemHostUnregister
    seen = []
    driver._functions["cuMemHostUnregister"] = lambda page: (seen.append(words_of()), unregister(page))[1]
    del engine
    gc.collect()
    assert seen != [None]
    seen.clear()
    assert words_of() is None
    assert (driver.streams, driver.events, driver.registered) == ({}, {}, set())
    names = driver.names()
    assert names.index("cuStreamSynchronize") < names.index("cuStreamDestroy") < names.index("cuMemHostUnregister")


@pytest.mark.parametrize(
    "call",
    ["cuEventCreate", "cuStreamCreateWithPriority", "cuCtxGetStreamPriorityRange", "cuThreadExchangeStreamCaptureMode"],
)
def test_an_engine_that_cannot_be_made_leaves_nothing(call):
    driver = FakeDriver()
    driver.fail(call)
    with pytest.raises(CudaError, match=f"{call} failed with CUDA_ERROR_INVALID_VALUE"):
        CudaEngine(copy_path="batch", driver=driver)
    assert (driver.streams, driver.events, driver.registered) == ({}, {}, set())
    assert driver.names().count("cuDevicePrimaryCtxRelease") == driver.names().count("cuDevicePrimaryCtxRetain") == 1


def test_what_cannot_be_given_back_is_logged(driver, caplog):
    engine = CudaEngine(copy_path="batch", driver=driver)
    driver.fail("cuStreamDestroy", INVALID_VALUE)
    engine.close()
    assert "cuStreamDestroy failed with CUDA_ERROR_INVALID_VALUE" in caplog.text


def test_a_paused_engine_has_ended_everything_and_refuses(engine):
    plan = planned(engine)
    submit(engine, plan)
    engine.pause()
    assert engine.acks.load(BACKUP) == 1
    with pytest.raises(UsageError, match="the copy engine is paused: nothing can be submitted"):
        submit(engine, plan)
    assert engine.next_sequence(BACKUP) == 2
    engine.resume()
    assert submit(engine, plan) == 2


def test_restores_go_first():
    driver = FakeDriver()
    CudaEngine(copy_path="batch", driver=driver).close()
    assert [priority for _, _, priority in driver.arguments("cuStreamCreateWithPriority")] == [0, 0, -5]


def test_the_arrays_of_a_submission_live_as_long_as_it(driver, engine):
    plan = planned(engine)
    arrays = weakref.ref(plan.arrays.destinations)
    submit(engine, plan)
    driver.calls.clear()
    del plan
    gc.collect()
    assert arrays() is not None
    for queue in driver.streams.values():
        queue.clear()  # not by what the fake holds
    engine.poll()
    gc.collect()
    assert arrays() is None
