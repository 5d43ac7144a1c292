"""The clock of a GPU beside that of the host, with a GPU that is not there."""

import random

import pytest

from cpkv.bench.copy.cuda_platform import CudaPlatform
from cpkv.device.cuda.clock import TRIES, GpuClock

APART_NS = 7_000_000_000
"""What the GPU's clock shows more than the host's."""


class Gpu:
    """Reaches a mark some time after it was made; who waits for it hears of that some time later. Nobody else waits."""

    def __init__(self, *, drift=0.0, seed=0):
        self.now_ns = 1_000_000
        self.drift = drift
        self.draw = random.Random(seed)
        self.busy_until_ns = 0
        self.marks = []

    def clock_ns(self, host_ns):
        return host_ns * (1 + self.drift) + APART_NS

    def mark(self, delay_ns=None):
        mark = Mark(self, self.draw.randrange(1_000, 40_000) if delay_ns is None else delay_ns)
        self.marks.append(mark)
        return mark


class Mark:
    def __init__(self, gpu, delay_ns):
        self.gpu = gpu
        gpu.now_ns += 500
        self.reached_ns = max(gpu.now_ns + delay_ns, gpu.busy_until_ns)
        self.was_awaited = False

    def synchronize(self):
        self.gpu.now_ns = max(self.gpu.now_ns, self.reached_ns) + self.gpu.draw.randrange(500, 20_000)
        self.was_awaited = True

    def elapsed_time(self, end):
        assert self.was_awaited, "both have to be reached, or the driver says that it is not ready"
        assert end.was_awaited
        return (self.gpu.clock_ns(end.reached_ns) - self.gpu.clock_ns(self.reached_ns)) / 1e6


@pytest.mark.parametrize("seed", range(20))
def test_a_mark_is_told_to_half_of_the_shortest_try(seed):
    """Others may be wrong by as much as 30 us here, and the average of all by half of that."""
    gpu = Gpu(seed=seed)
    read = []

    def now_ns():
        read.append(gpu.now_ns)
        return gpu.now_ns

    clock = GpuClock(gpu.mark, now_ns)
    tries = [after - before for before, after in zip(read[::2], read[1::2], strict=True)]
    assert len(tries) == TRIES
    for delay_ns in (0, 5_000, 3_000_000):
        mark = gpu.mark(delay_ns)
        assert abs(clock.nanoseconds(mark) - mark.reached_ns) <= min(tries) / 2 + 1
        assert mark.was_awaited


def test_a_mark_behind_other_work_is_not_what_counts():
    gpu = Gpu()
    gpu.busy_until_ns = gpu.now_ns + 10_000_000
    clock = GpuClock(gpu.mark, lambda: gpu.now_ns)
    mark = gpu.mark(0)
    assert abs(clock.nanoseconds(mark) - mark.reached_ns) < 30_000


def test_a_mark_from_before_the_alignment_can_be_told():
    gpu = Gpu()
    early = gpu.mark()
    early.synchronize()
    gpu.now_ns += 1_000_000
    clock = GpuClock(gpu.mark, lambda: gpu.now_ns)
    assert abs(clock.nanoseconds(early) - early.reached_ns) < 30_000


def test_clocks_that_drift_are_aligned_anew():
    gpu = Gpu(drift=1e-4)
    clock = GpuClock(gpu.mark, lambda: gpu.now_ns)
    gpu.now_ns += 10_000_000_000
    late = gpu.mark()
    assert abs(clock.nanoseconds(late) - late.reached_ns) > 900_000
    clock.align()
    assert abs(clock.nanoseconds(late) - late.reached_ns) < 30_000


def test_the_benchmark_of_copies_takes_its_times_from_it():
    gpu, marks_at_waits = Gpu(), []

    class Platform(CudaPlatform):
        """Without a GPU: nothing of it is there but what is asked for here."""

        def __init__(self):
            self._clock = GpuClock(gpu.mark, lambda: gpu.now_ns)

        def synchronize(self):
            marks_at_waits.append(len(gpu.marks))

    platform = Platform()
    gpu.now_ns += 1_000_000
    mark = gpu.mark()
    assert abs(platform.host_ns(mark) - mark.reached_ns) < 30_000
    platform.align()
    assert marks_at_waits == [TRIES + 1], "what is queued is waited for before the clocks are compared"
    assert len(gpu.marks) == 2 * TRIES + 1
