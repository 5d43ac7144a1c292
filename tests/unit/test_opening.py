"""An engine author's way in: one call for engine, host memory and pools, and what it undoes when it fails."""

import logging
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import cpkv
from cpkv.config import CacheConfig
from cpkv.device import CpuEngine, ManualEngine, open_engine
from cpkv.device.cuda import CudaEngine
from cpkv.drivers import open_tier
from cpkv.layout import Buffers
from fake_cuda import ILLEGAL_ADDRESS, FakeDriver
from pools import small_layout


@pytest.fixture(autouse=True)
def no_driver(monkeypatch):
    def refuse(*_arguments, **_keywords):
        raise cpkv.ConfigError("the CUDA driver cannot be loaded")

    monkeypatch.setattr("cpkv.device.opening.CudaEngine", refuse)


@pytest.mark.parametrize(("name", "kind"), [("cpu", CpuEngine), ("manual", ManualEngine), ("auto", CpuEngine)])
def test_engines_by_their_names(name, kind, caplog):
    caplog.set_level(logging.INFO, "cpkv.device")
    engine = open_engine(CacheConfig(engine=name).engine)
    assert type(engine) is kind
    engine.close()
    assert caplog.messages == (["engine 'auto' is 'cpu': the CUDA driver cannot be loaded"] if name == "auto" else [])


def test_what_is_asked_for_by_name_is_not_replaced():
    with pytest.raises(cpkv.ConfigError, match="the CUDA driver cannot be loaded"):
        open_engine("cuda")
    with pytest.raises(cpkv.ConfigError, match="the CUDA driver cannot be loaded"):
        open_engine("auto", copy_path="kernel")
    with pytest.raises(cpkv.ConfigError, match="engine is 'gpu', want one of auto, cuda, cpu, manual"):
        open_engine("gpu")


def cache(**settings):
    defaults = {"page_size": 2, "device_pages": 8, "host_slots": 32, "segment_pages": 4, "copies": "tracked"}
    return cpkv.CacheManager(**defaults | {"draft": True} | settings)


def buffers(layout, pages=8):
    return {
        one.name: Buffers.of([np.zeros((pages, one.row_bytes), np.uint8) for _ in one.layers])
        for one in layout.components
    }


def mappings(tier):
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if line.startswith(f"{tier.host.address:08x}-")]


def test_a_tier_owns_what_was_opened_for_it():
    layout, seen = small_layout(), []
    with open_tier(cache(), layout, buffers(layout), engine="cpu", progress=lambda *done: seen.append(done)) as tier:
        assert tier.engine.name == "cpu"
        assert (tier.host.slots, tier.host.segment_pages) == (32, 4)
        assert tier.host.address % 4096 == 0
        assert mappings(tier)
        assert seen[-1][0] == seen[-1][1] >= 32 * layout.slot_bytes
    assert not mappings(tier)
    tier.close()


def test_memory_is_kept_until_the_copies_have_ended():
    layout = small_layout()
    tier = open_tier(cache(), layout, buffers(layout), engine="manual")
    waited = []
    close = tier.engine.close
    tier.engine.close = lambda: (waited.append(bool(mappings(tier))), close())
    tier.close()
    assert waited == [True]
    assert not mappings(tier)


def test_memory_is_kept_if_copies_are_not_known_to_end():
    layout = small_layout()
    tier = open_tier(cache(), layout, buffers(layout), engine="manual")
    close = tier.engine.close

    def fail():
        raise cpkv.CopyError("a stream has failed")

    tier.engine.close = fail
    with pytest.raises(cpkv.CopyError, match="a stream has failed"):
        tier.close()
    assert mappings(tier)
    tier.engine.close = close
    tier.close()
    assert not mappings(tier)


class Told:
    """Whoever wants to know memory, and takes it."""

    locks_memory = False
    device = SimpleNamespace(pci_address="0000:1b:00.0")
    refuses = False

    def __init__(self, _device):
        self.ranges = set()

    def register(self, address, size_bytes):
        if self.refuses:
            raise cpkv.RegistrationError("not this memory")
        self.ranges.add((address, size_bytes))

    def unregister(self, address, size_bytes):
        self.ranges.remove((address, size_bytes))


@pytest.fixture
def told(monkeypatch):
    made = []

    def register(device):
        made.append(Told(device))
        return made[-1]

    monkeypatch.setattr("cpkv.drivers.opening.CudaRegistrar", register)
    return made


def test_memory_is_kept_after_a_stream_error_however_often_the_tier_is_closed(told):
    driver, layout = FakeDriver(), small_layout()
    tier = open_tier(cache(), layout, buffers(layout), engine=CudaEngine(copy_path="batch", driver=driver))
    driver.code_of_streams = ILLEGAL_ADDRESS
    for _ in range(3):
        with pytest.raises(cpkv.CopyError, match="copy stream backup has failed"):
            tier.close()
        assert mappings(tier)
        assert told[0].ranges
    memory = tier._memory  # noqa: SLF001 - these copies have ended, whatever the driver says
    memory.before_unmap.clear()
    memory.close()
    assert not told[0].ranges


def test_a_registration_that_is_refused_leaves_nothing_open(told, monkeypatch):
    monkeypatch.setattr(Told, "refuses", True)
    driver, layout = FakeDriver(), small_layout()
    with pytest.raises(cpkv.RegistrationError, match=r"cannot be registered: range 1 of 1, .* \(not this memory\)"):
        open_tier(cache(), layout, buffers(layout), engine=CudaEngine(copy_path="batch", driver=driver))
    assert len(told) == 1
    assert (driver.streams, driver.events) == ({}, {})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"host_slots": None}, "host_slots is 0, want a cache with a host tier"),
        ({"page_size": 4}, "page_size of the layout is 2, want 4"),
        ({"draft": False}, "the layout has a draft, and the cache was made with draft=False"),
        ({"device_pages": 9}, "the device pool has 8 pages, want at least 9"),
    ],
)
def test_what_does_not_fit_leaves_nothing_open(settings, said, monkeypatch):
    closed = []

    class Engine(ManualEngine):
        def close(self):
            closed.append(self)
            super().close()

    monkeypatch.setattr("cpkv.device.opening.ManualEngine", Engine)
    layout = small_layout()
    copies = {"copies": "assumed", "draft": False} if settings == {"host_slots": None} else {}
    with pytest.raises(cpkv.ConfigError, match=said):
        open_tier(cache(**settings | copies), layout, buffers(layout), engine="manual")
    assert len(set(closed)) == (0 if settings == {"host_slots": None} else 1)


def test_more_than_the_host_has_is_refused_with_the_figures():
    layout = small_layout()
    slots = 1 << 31
    huge = cache(host_slots=slots, segment_pages=slots // 4)
    with pytest.raises(cpkv.HostMemoryError, match=f"{slots * layout.slot_bytes:,}"):
        open_tier(huge, layout, buffers(layout), engine="cpu")
