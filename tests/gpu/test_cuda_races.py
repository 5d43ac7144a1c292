"""Whoever sees an ack word sees every byte of its copies: raced, alone and under load, with a control that fails.

Each race stamps every page with its number, submits, spins on the word, and looks at the host at once:
first at a word of each copy, then at all. `CPKV_TEST_RACES` sets how many for each load.
"""

import os
from collections import deque

import numpy as np
import pytest
from gpu_needed import needs_gpu

from cpkv.device import BACKUP
from cpkv.device.cuda import CudaEngine
from cpkv.device.cuda.driver import load_driver
from cpkv.layout import PageLayout

torch = needs_gpu()
from gpu_pools import gpu_pools, handle, unexpected  # noqa: E402 - needs torch

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default"), pytest.mark.timeout(240)]

RACES = int(os.environ.get("CPKV_TEST_RACES", "2500"))
PAGES = 512
LAYOUT = PageLayout.mla(target_layers=1, page_size=4, index_layers=None)
"""Rows of 4,608 and 528 bytes: 1,024 copies of 2.6 MB in a call."""


class EarlyAcks:
    """A driver that acknowledges before it copies: the mistake that the races have to find."""

    def __init__(self, driver):
        self._driver = driver
        self._held = None
        self.version = driver.version

    def __getattr__(self, name):
        return getattr(self._driver, name)

    def cuMemcpyBatchAsync(self, *arguments):  # noqa: N802 - as the driver calls it
        self._held = arguments
        return 0

    def cuStreamWriteValue64(self, *arguments):  # noqa: N802 - as the driver calls it
        return self._driver.cuStreamWriteValue64(*arguments) or self._driver.cuMemcpyBatchAsync(*self._held)


class Load:
    """What keeps the GPU busy beside the copies, with some milliseconds of it queued at any time."""

    DEPTH = 32

    def __init__(self, kind):
        self.stream = torch.cuda.Stream()
        self.kind = kind
        self.queued = deque()
        if kind == "beside loads":
            host = torch.empty(16 << 20, dtype=torch.uint8, pin_memory=True)
            device = torch.empty(16 << 20, dtype=torch.uint8, device="cuda")
            self.one = lambda: device.copy_(host, non_blocking=True)
        elif kind == "beside products":
            a, b = (torch.randn(4096, 4096, dtype=torch.bfloat16, device="cuda") for _ in range(2))
            out = torch.empty_like(a)
            self.one = lambda: torch.mm(a, b, out=out)
        elif kind == "beside memory traffic":
            source = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
            target = torch.empty_like(source)
            self.one = lambda: target.copy_(source)

    def fill(self):
        """Queue as much as has ended."""
        if self.kind == "alone":
            return
        while self.queued and self.queued[0].query():
            self.queued.popleft()
        with torch.cuda.stream(self.stream):
            while len(self.queued) < self.DEPTH:
                self.one()
                self.queued.append(self.stream.record_event())

    def is_running(self):
        return not self.stream.query()


def race(engine, kind, races):
    """Return in how many races something old was seen, and in how many the load was running at the look."""
    pools = gpu_pools(LAYOUT, pages=PAGES, slots=PAGES, segment_pages=32)
    random = np.random.default_rng(11)
    pages, slots = random.permutation(PAGES), random.permutation(PAGES)
    plan = engine.plan(pools.device, pools.host, pages, slots, "to_host")
    stamps = [tensor.view(torch.int64) for tensors in pools.tensors.values() for tensor in tensors]
    words = pools.memory.view(np.int64)
    begins = (np.concatenate([plan.destinations.ravel()]) - pools.host.address) // 8
    ends = begins + np.concatenate([plan.sizes.ravel()]) // 8 - 1
    compute = torch.cuda.Stream()
    load = Load(kind)
    torch.cuda.synchronize()
    stale = ran_beside = 0
    acks = engine.acks
    for number in range(1, races + 1):
        load.fill()
        with torch.cuda.stream(compute):
            for stamp in stamps:
                stamp.fill_(number)
        engine.submit(BACKUP, plan, 0, 1, after=handle(compute), on_failure=unexpected)
        sequence = engine.next_sequence(BACKUP) - 1
        while acks.load(BACKUP) < sequence:
            pass
        ran_beside += load.is_running()
        looked = words[ends if number % 2 else begins]
        whole = words if number % 2 else words[::-1]
        if not ((looked == number).all() and (whole == number).all()):
            stale += 1
    engine.synchronize()
    torch.cuda.synchronize()
    return stale, ran_beside


@pytest.mark.parametrize("kind", ["alone", "beside loads", "beside products", "beside memory traffic"])
def test_the_word_comes_after_every_byte(kind, tell):
    engine = CudaEngine(copy_path="batch")
    stale, ran_beside = race(engine, kind, RACES)
    tell(f"\n  batch, {kind}: {stale} of {RACES} races saw old bytes; the load was running in {ran_beside}")
    engine.close()
    assert stale == 0
    assert ran_beside == (0 if kind == "alone" else pytest.approx(RACES, rel=0.1))


@pytest.mark.parametrize("path", ["blocks", "kernel", "each"])
def test_the_word_comes_after_every_byte_of_other_paths(path, tell):
    engine = CudaEngine(copy_path=path)
    races = max(RACES // 10, 1)
    stale, _ = race(engine, "beside products", races)
    tell(f"\n  {path}, beside products: {stale} of {races} races saw old bytes")
    engine.close()
    assert stale == 0


def test_a_word_that_comes_before_its_copies_is_caught(tell):
    engine = CudaEngine(copy_path="batch", driver=EarlyAcks(load_driver()))
    stale, _ = race(engine, "alone", 100)
    tell(f"\n  control, the ack before the copies: {stale} of 100 races saw old bytes")
    engine.close()
    assert stale > 0
