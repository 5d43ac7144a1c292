"""When copies of a GPU were, as the demo tells it, with a GPU that is not there."""

import time
from types import SimpleNamespace

import pytest
import torch

from cpkv.demo.recorder import Recorder
from cpkv.demo.timed_engine import TimedCudaEngine
from cpkv.demo.watching import Progress, new_cells
from cpkv.device import BACKUP, LATE
from cpkv.device.cuda import CudaEngine

RECORDED = []
"""All events of a test."""


class Event:
    """Reached at once, or when the test says so; by the clock of the host, from another beginning."""

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self, stream):
        self.stream, self.at_ns = stream, time.monotonic_ns()
        RECORDED.append(self)

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at_ns - self.at_ns) / 1e6


@pytest.fixture
def engine(monkeypatch):
    """An engine whose copies nobody makes."""
    sequences = {BACKUP: 0, LATE: 0}

    def submit(_, stream, *__, **___):
        sequences[stream] += 1

    RECORDED.clear()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda handle, device: (handle, device))
    monkeypatch.setattr(CudaEngine, "__init__", lambda *_: None)
    monkeypatch.setattr(CudaEngine, "submit", submit)
    monkeypatch.setattr(CudaEngine, "next_sequence", lambda _, stream: sequences[stream] + 1)
    monkeypatch.setattr(CudaEngine, "device", 3)
    monkeypatch.setattr(CudaEngine, "handles", {BACKUP: 70, LATE: 71})
    return TimedCudaEngine(3)


def submit(engine, stream, *, begin_ns, end_ns):
    """Submit a copy that waits for what is reached at `begin_ns`."""
    engine.submit(stream, None, 0, 1, after=None, on_failure=None)
    began, ended = RECORDED[-2:]
    assert (began.stream, ended.stream) == (None, (engine.handles[stream], 3))
    began.at_ns, ended.at_ns = begin_ns, end_ns


def test_a_copy_begins_when_what_it_waits_for_and_the_one_before_it_have_ended(engine):
    now = time.monotonic_ns()
    submit(engine, BACKUP, begin_ns=now, end_ns=now + 5_000_000)
    submit(engine, BACKUP, begin_ns=now + 1_000_000, end_ns=now + 9_000_000)
    submit(engine, LATE, begin_ns=now + 2_000_000, end_ns=now + 3_000_000)
    submit(engine, BACKUP, begin_ns=now + 20_000_000, end_ns=now + 21_000_000)
    told = [
        (stream, sequence, round((began - now) / 1e6, 1), round((ended - now) / 1e6, 1))
        for stream, sequence, began, ended in engine.copies()
    ]
    assert told == [(BACKUP, 1, 0, 5), (BACKUP, 2, 5, 9), (LATE, 1, 2, 3), (BACKUP, 3, 20, 21)]


def test_clocks_are_aligned_when_recording_begins(engine):
    recorder, aligned = Recorder(0, "zigzag", engine), []
    engine.clock.align = lambda: aligned.append(len(RECORDED))
    model = SimpleNamespace(layer_begins=None, layer_ended=None)
    served = SimpleNamespace(config=SimpleNamespace(model=SimpleNamespace(layers=3)), model=model, tier=None)
    recorder.attach(served, Progress(new_cells(1, 4), 0, 4))
    assert aligned == [len(RECORDED)], "once, and before anything is marked"
