"""What every copy engine promises, of the two that need no GPU."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import cpkv
from cpkv.device import BACKUP, LATE, RESTORE, STREAMS, CopyEngine, CpuEngine, CpuStream, ManualEngine
from pools import SCRIBBLE, Pools, small_layout


def ids(*values):
    return np.array(values, np.int64)


@pytest.fixture
def pools():
    pools = Pools(small_layout(), pages=8, slots=8, segment_pages=4)
    for page in range(8):
        pools.compute(page, page)
    return pools


@pytest.fixture(params=[CpuEngine, ManualEngine])
def engine(request):
    engine = request.param()
    yield engine
    engine.close()


def no_failure(error):
    raise AssertionError(error)


def submit(engine, pools, pages, slots, *, stream=BACKUP, layers=(0, 4), after=None, failed=no_failure):
    direction = "to_device" if stream == RESTORE else "to_host"
    plan = engine.plan(pools.device, pools.host, ids(*pages), ids(*slots), direction)
    sequence = engine.next_sequence(stream)
    engine.submit(stream, plan, *layers, after=after, on_failure=failed)
    return sequence


def test_engines_speak_the_protocol(engine):
    checked: CopyEngine = engine
    assert checked.name in ("cpu", "manual")
    assert checked.acks.streams == STREAMS
    assert all(isinstance(why, str) for why in checked.explain().values())


def test_an_ack_says_that_the_bytes_are_there(engine, pools):
    for page, slot in ((3, 0), (5, 6)):
        sequence = submit(engine, pools, [page], [slot])
        engine.wait(None, BACKUP, sequence)
        assert engine.acks.load(BACKUP) == sequence
        assert pools.on_host(slot, page)


def test_streams_count_for_themselves(engine, pools):
    assert [submit(engine, pools, [1], [1], stream=stream) for stream in (BACKUP, BACKUP, LATE)] == [1, 2, 1]
    engine.synchronize()
    assert [engine.acks.load(stream) for stream in range(STREAMS)] == [2, 1, 0]


def test_only_the_layers_that_were_submitted_are_copied(engine, pools):
    submit(engine, pools, [3], [0], layers=(1, 3))
    engine.synchronize()
    copied = {
        row: bytes(pools.host_row(0, row)) != bytes([SCRIBBLE]) * row.component.row_bytes for row in pools.layout.rows
    }
    assert copied == {row: row in (*pools.layout.rows_of(1), *pools.layout.rows_of(2)) for row in pools.layout.rows}


def test_the_way_back(engine, pools):
    submit(engine, pools, [2, 3], [7, 1])
    engine.synchronize()
    pools.scribble_pages(range(8))
    engine.wait(None, RESTORE, submit(engine, pools, [0, 6], [7, 1], stream=RESTORE))
    assert pools.on_device(0, 2)
    assert pools.on_device(6, 3)


def test_a_pause_waits_for_what_is_under_way_and_refuses_the_rest(engine, pools):
    submit(engine, pools, [2], [2])
    engine.pause()
    assert pools.on_host(2, 2)
    sequence = engine.next_sequence(BACKUP)
    with pytest.raises(cpkv.UsageError, match="the copy engine is paused"):
        submit(engine, pools, [3], [3])
    assert engine.next_sequence(BACKUP) == sequence
    engine.resume()
    submit(engine, pools, [3], [3])
    engine.synchronize()
    assert pools.on_host(3, 3)


def test_close_waits_for_what_is_under_way(engine, pools):
    """Nobody may unmap a slot that a copy still writes."""
    submit(engine, pools, [2], [2])
    submit(engine, pools, [3], [3], stream=LATE)
    engine.close()
    assert pools.on_host(2, 2)
    assert pools.on_host(3, 3)
    engine.resume()
    with pytest.raises(cpkv.UsageError, match="the copy engine is closed"):
        submit(engine, pools, [3], [3])
    engine.close()


def test_whatever_a_copy_thread_raises_is_told(pools):
    """An ack without a failure would say that the bytes are there."""

    def fails(*_):
        raise MemoryError("no room for a list")

    engine, told = CpuEngine(fails=fails), []
    sequence = submit(engine, pools, [3], [0], failed=told.append)
    engine.wait(None, BACKUP, sequence)
    assert [(type(error), "no room for a list" in str(error)) for error in told] == [(cpkv.errors.CopyError, True)]
    engine.close()


# --- Threads ---


class WatchedStream(CpuStream):
    """A stream whose events tell when somebody waits for them."""

    def __init__(self):
        super().__init__("compute")
        self.is_waited_for = threading.Event()

    def record(self):
        event = super().record()
        wait = event.wait
        event.wait = lambda *arguments: (self.is_waited_for.set(), wait(*arguments))[1]
        return event


def test_a_copy_begins_when_the_layer_has_been_computed(pools):
    """The old bytes are there when the copy is submitted, the new ones when it may begin."""
    compute, may_write = WatchedStream(), threading.Event()
    engine = CpuEngine()
    pools.scribble_pages([3])
    compute.run(lambda: (may_write.wait(), pools.compute(3, "new")))
    sequence = submit(engine, pools, [3], [0], after=compute)
    assert compute.is_waited_for.wait(10)
    assert engine.acks.load(BACKUP) < sequence
    may_write.set()
    engine.synchronize()
    assert pools.on_host(0, "new")
    compute.close()
    engine.close()


def test_a_copy_behind_a_mark_does_not_wait_for_what_was_queued_later(pools):
    compute, may_write, may_go_on = CpuStream("compute"), threading.Event(), threading.Event()
    engine = CpuEngine()
    pools.scribble_pages([3])
    compute.run(lambda: (may_write.wait(), pools.compute(3, "new")))
    mark = engine.mark(compute)
    compute.run(may_go_on.wait)
    submit(engine, pools, [3], [0], after=mark)
    may_write.set()
    engine.synchronize()
    assert pools.on_host(0, "new")
    may_go_on.set()
    assert engine.mark(None) is None
    compute.close()
    engine.close()


def test_a_layer_waits_for_its_own_copies_only(pools):
    """What is queued behind the wait runs when the first of two submissions has landed."""
    first, second = threading.Event(), threading.Event()
    gates = iter([first, second])
    engine = CpuEngine(delay_s=lambda _: float(not next(gates).wait()))
    compute, seen = CpuStream("compute"), []
    begun = threading.Event()
    submit(engine, pools, [1, 2], [1, 2], stream=RESTORE, layers=(0, 1))
    submit(engine, pools, [1, 2], [1, 2], stream=RESTORE, layers=(1, 4))
    engine.wait(compute, RESTORE, 1)
    compute.run(lambda: (seen.append(engine.acks.load(RESTORE)), begun.set()))
    assert not seen
    first.set()
    assert begun.wait(10)
    assert seen == [1]
    second.set()
    engine.close()
    compute.close()


def test_a_failure_is_told_before_the_ack_passes_it(pools):
    seen = []
    engine = CpuEngine(fails=lambda stream, sequence: (stream, sequence) == (BACKUP, 2))
    told = lambda error: seen.append((str(error), engine.acks.load(BACKUP)))  # noqa: E731
    for slot in range(3):
        submit(engine, pools, [slot], [slot], failed=told)
    engine.synchronize()
    assert seen == [("submission 2 of stream 0 was made to fail", 1)]
    assert engine.acks.load(BACKUP) == 3
    assert pools.on_host(0, 0)
    assert not pools.on_host(1, 1)
    assert pools.on_host(2, 2)
    engine.close()


def test_what_is_slow_is_done_at_once_when_the_engine_closes(pools):
    engine = CpuEngine(bytes_per_s=0.001, delay_s=1_000)
    submit(engine, pools, [1], [1])
    engine.close()
    assert pools.on_host(1, 1)


def test_errors_of_a_stream_are_not_lost():
    stream = CpuStream()
    stream.run(lambda: 1 // 0)
    done = []
    stream.run(lambda: done.append(1))
    with pytest.raises(ZeroDivisionError):
        stream.synchronize()
    stream.synchronize()
    assert done == [1]
    event = stream.record()
    assert event.wait(10)
    assert event.has_happened()
    stream.close()
    with pytest.raises(RuntimeError, match="stream 'stream' is closed"):
        stream.run(lambda: None)


# --- By hand ---


def test_nothing_lands_by_itself(pools):
    engine = ManualEngine()
    submit(engine, pools, [1], [1])
    assert not pools.on_host(1, 1)
    assert engine.acks.load(BACKUP) == 0
    assert engine.land(BACKUP, acknowledge=False)
    assert pools.on_host(1, 1)
    assert engine.acks.load(BACKUP) == 0
    engine.acknowledge(BACKUP)
    assert engine.acks.load(BACKUP) == 1
    assert not engine.land(BACKUP)


def test_what_lands_out_of_order_is_acknowledged_in_order(pools):
    engine = ManualEngine()
    for slot in range(3):
        submit(engine, pools, [slot], [slot])
    assert engine.land(BACKUP, place=2)
    assert pools.on_host(2, 2)
    assert engine.acks.load(BACKUP) == 0
    assert engine.land(BACKUP)
    assert engine.acks.load(BACKUP) == 1
    assert engine.land(BACKUP)
    assert engine.acks.load(BACKUP) == 3
    engine.repeat(BACKUP, 1)
    assert engine.acks.load(BACKUP) == 3


def test_a_copy_that_fails_midway(pools):
    engine, told = ManualEngine(), []
    submit(engine, pools, [1], [1], failed=told.append)
    assert engine.fail(BACKUP, copies=2)
    rows = pools.layout.rows
    assert pools.host_row(1, rows[1]).tobytes() == pools.device_row(1, rows[1]).tobytes()
    assert (pools.host_row(1, rows[2]) == SCRIBBLE).all()
    assert [str(error) for error in told] == ["copy 2 of submission 1 failed"]
    assert engine.acks.load(BACKUP) == 1
    assert not engine.fail(BACKUP)


def test_a_submission_that_is_refused_midway_still_has_its_number(pools):
    engine, told = ManualEngine(), []
    engine.refuse(copies=1)
    with pytest.raises(cpkv.CopyError, match="submission 1 of stream 0 was refused"):
        submit(engine, pools, [1], [1], failed=told.append)
    assert len(told) == 1
    assert submit(engine, pools, [2], [2]) == 2
    engine.land_all()
    assert engine.acks.load(BACKUP) == 2


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_copy_threads_and_is_told_so(pools, is_busy):
    """It would wait for ever; its end gives nothing back that is its parent's."""
    gate = threading.Event()
    engine = CpuEngine(delay_s=lambda _: float(not gate.wait(30)))

    def copy():
        submit(engine, pools, [1, 2], [1, 2])

    if not is_busy:
        gate.set()
    copy()
    if not is_busy:
        engine.synchronize()
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        told = 0
        for call in (copy, engine.synchronize, engine.pause, lambda: engine.wait(None, BACKUP, 2)):
            try:
                call()
            except cpkv.UsageError as error:
                told += f"the copy engine is of process {os.getppid()}" in str(error)
        engine.close()
        os._exit(told)
    _, status = os.waitpid(child, 0)
    gate.set()
    assert os.waitstatus_to_exitcode(status) == 4
    copy()
    engine.synchronize()
    assert engine.acks.load(BACKUP) == 2
    engine.close()


def test_copies_run_outside_the_interpreter_lock():
    """The copy waits for a semaphore that only this thread can raise: with the lock held both would wait for ever."""
    code = """
import ctypes, sys, threading
import numpy as np
from cpkv.device import BACKUP, CpuEngine, moving
from cpkv.layout import Buffers, Component, DevicePool, HostPool, PageLayout

libc = ctypes.CDLL(None)
# Like memmove, but it waits for the semaphore that lies at the destination.
moving._move = type(moving._move)(ctypes.cast(libc.sem_wait, ctypes.c_void_p).value)
kv = Component(name="target_kv", model="target", layers=(0,), row_bytes=64)
layout = PageLayout(page_size=1, target_layers=1, components=(kv,))
device = DevicePool(layout, {"target_kv": Buffers.of([np.zeros((4, 64), np.uint8)])})
memory = np.zeros(4 * 64, np.uint8)
host = HostPool(layout=layout, slots=4, segment_pages=4, address=memory.ctypes.data)
semaphore = ctypes.c_void_p(host.address + 2 * 64)
libc.sem_init(semaphore, 0, 0)
begun = threading.Event()
engine = CpuEngine(delay_s=lambda _: float(begun.set() or 0))
plan = engine.plan(device, host, np.array([1]), np.array([2]), "to_host")
sys.setswitchinterval(1000)  # no thread gives the lock away but where it waits
engine.submit(BACKUP, plan, 0, 1, after=None, on_failure=print)
begun.wait()
assert engine.acks.load(BACKUP) == 0
libc.sem_post(semaphore)
engine.synchronize()
assert engine.acks.load(BACKUP) == 1
engine.close()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
