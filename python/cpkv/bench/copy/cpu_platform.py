"""A machine without a GPU: threads for streams, so that everything but the figures is what a GPU has."""

import ctypes
import threading
import time
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cpkv.bench.copy.platform import LAYER_UNITS, Place
from cpkv.bench.copy.settings import EngineName
from cpkv.device import ComputeStream, CopyEngine, CpuEngine, CpuStream
from cpkv.errors import ConfigError

LAYER_S: Final = 0.002
"""What a layer of `LAYER_UNITS` takes; more than its copy at the sizes that are meant for this platform."""
MATMUL_SIZE: Final = 128
MEMORY_BYTES: Final = 1 << 20


class CpuMark:
    """A moment of a thread."""

    def __init__(self) -> None:
        self.time_ns = 0
        self._has_come = threading.Event()

    def come(self) -> None:
        """Note the time."""
        self.time_ns = time.perf_counter_ns()
        self._has_come.set()

    def wait(self) -> int:
        """Return the time, when it has come."""
        self._has_come.wait()
        return self.time_ns


class CpuPlatform:
    """See `Platform`."""

    name: EngineName = "cpu"
    loads = ("matmul", "memory")
    layer_unit = f"{LAYER_S / LAYER_UNITS * 1e6:.1f} us of sleep"
    lead_units = LAYER_UNITS
    hold_ms = 0.2

    def __init__(self, host_bytes: int, device_bytes: int) -> None:
        self.host_bytes = host_bytes
        self.device_bytes = device_bytes
        self._host: NDArray[np.uint8] = np.zeros(host_bytes, np.uint8)
        self._device: NDArray[np.uint8] = np.zeros(device_bytes, np.uint8)
        self._streams: dict[Place, CpuStream] = {
            place: CpuStream(place) for place in ("compute", "load", "copy", "probe")
        }
        self._matrix = np.ones((MATMUL_SIZE, MATMUL_SIZE), np.float32)
        self._product = np.empty_like(self._matrix)
        self._bytes = np.zeros(MEMORY_BYTES, np.uint8), np.zeros(MEMORY_BYTES, np.uint8)
        self._random = np.random.default_rng(0)

    @property
    def compute(self) -> ComputeStream:
        """See `Platform`."""
        return self._streams["compute"]

    @property
    def host_address(self) -> int:
        """See `Platform`."""
        return self._host.ctypes.data

    def describe(self) -> Mapping[str, str]:
        """See `Platform`."""
        return {"device": "no GPU: threads copy, sleeps compute"}

    def new_engine(self) -> CopyEngine:
        """See `Platform`."""
        return CpuEngine()

    def device_view(self, offset: int, pages: int, row_bytes: int) -> NDArray[np.uint8]:
        """See `Platform`."""
        end = offset + pages * row_bytes
        if end > self.device_bytes:
            message = f"pages end at byte {end} of the device memory, want {self.device_bytes} at most"
            raise ConfigError(message)
        return self._device[offset:end].reshape(pages, row_bytes)

    def device_address(self) -> int:
        """See `Platform`."""
        return self._device.ctypes.data

    def read_device(self, address: int, size: int) -> bytes:
        """See `Platform`."""
        offset = address - self.device_address()
        return self._device[offset : offset + size].tobytes()

    def clear_device(self) -> None:
        """See `Platform`."""
        self._device[:] = 0

    def fill_device(self) -> None:
        """See `Platform`."""
        self._device[:] = self._random.integers(0, 256, self.device_bytes, np.uint8)

    def hold(self, milliseconds: float) -> None:
        """See `Platform`."""
        self._streams["compute"].run(lambda: time.sleep(milliseconds / 1_000))

    def follow(self, place: Place, other: Place) -> None:
        """See `Platform`."""
        self._streams[place].wait(self._streams[other].record())

    def mark(self, place: Place) -> CpuMark:
        """See `Platform`."""
        mark = CpuMark()
        self._streams[place].run(mark.come)
        return mark

    def copied(self, engine: CopyEngine, stream: int, sequence: int) -> CpuMark:
        """See `Platform`."""
        engine.wait(self._streams["probe"], stream, sequence)
        return self.mark("probe")

    def load(self, name: str, units: int) -> None:
        """See `Platform`."""
        work = self._multiply if name == "matmul" else self._move
        for _ in range(units):
            self._streams["load"].run(work)

    def _multiply(self) -> None:
        np.matmul(self._matrix, self._matrix, out=self._product)

    def _move(self) -> None:
        np.copyto(*self._bytes)

    def layer(self, units: int = LAYER_UNITS) -> None:
        """See `Platform`."""
        self._streams["compute"].run(lambda: time.sleep(units * LAYER_S / LAYER_UNITS))

    def copy(self, destination: int, source: int, size: int) -> None:
        """See `Platform`."""
        self._streams["copy"].run(lambda: (ctypes.memmove(destination, source, size), None)[1])

    def align(self) -> None:
        """See `Platform`: it is the same clock."""

    def elapsed_ns(self, begin: CpuMark, end: CpuMark) -> int:
        """See `Platform`."""
        return end.wait() - begin.wait()

    def host_ns(self, mark: CpuMark) -> int:
        """See `Platform`."""
        return mark.wait()

    def synchronize(self) -> None:
        """See `Platform`."""
        for stream in self._streams.values():
            stream.synchronize()

    def close(self) -> None:
        """See `Platform`."""
        for stream in self._streams.values():
            stream.close()
