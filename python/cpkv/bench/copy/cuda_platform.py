"""A machine with an NVIDIA GPU, by way of torch: streams, events, loads and memory of its own."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from cpkv.bench.copy.cuda_runtime import CudaRuntime
from cpkv.bench.copy.pinned import PinnedMemory
from cpkv.bench.copy.platform import LAYER_UNITS, Place
from cpkv.bench.copy.settings import EngineName
from cpkv.bench.nvidia_smi import nvidia_smi
from cpkv.device import ComputeStream, CopyEngine
from cpkv.device.cuda.clock import GpuClock
from cpkv.drivers import torch_stream
from cpkv.errors import ConfigError

MATMUL_SIZE: Final = 8_192
MEMORY_BYTES: Final = 512 << 20
UNIT_DEPTH: Final = MATMUL_SIZE // LAYER_UNITS
"""Of the inner dimension of a product: a layer of `LAYER_UNITS` is one square product."""
LEAD_PRODUCTS: Final = 64
"""A tenth of a second, in which the clock comes down to what the power allows."""
WARM_UP_UNITS: Final = 32
_CYCLES: Final = 20_000_000
_PLACES: Final[tuple[Place, ...]] = ("compute", "load", "copy", "probe")


class CudaPlatform:
    """See `Platform`.

    Args:
        host_bytes: Pinned memory for slots.
        device_bytes: Memory of the GPU for pages.
        copy_path: How the engine copies; `None` leaves it the choice.

    Raises:
        ConfigError: There is no GPU, or not so much memory can be pinned.
    """

    name: EngineName = "cuda"
    loads = ("matmul", "memory")
    layer_unit = f"an inner dimension of {UNIT_DEPTH} of bf16 products of {MATMUL_SIZE} x {MATMUL_SIZE}"
    lead_units = LEAD_PRODUCTS * LAYER_UNITS
    hold_ms = 8.0

    def __init__(self, host_bytes: int, device_bytes: int, copy_path: str | None) -> None:
        # Imported by name: neither is there without a GPU.
        self.torch: Any = import_module("torch")
        self._engines: Any = import_module("cpkv.device.cuda")
        torch = self.torch
        if not torch.cuda.is_available():
            message = "torch sees no GPU: want one, or the engine 'cpu'"
            raise ConfigError(message)
        self._copy_path = copy_path
        self.host_bytes = host_bytes
        self.device_bytes = device_bytes
        self._flat = torch.empty(device_bytes, dtype=torch.uint8, device="cuda")
        self._streams = {place: torch.cuda.Stream() for place in _PLACES}
        torch.cuda.set_stream(self._streams["compute"])
        self._current = torch_stream(torch.cuda.current_device())
        self._runtime = CudaRuntime()
        shape = (MATMUL_SIZE, MATMUL_SIZE)
        # Random, as a product of zeros draws less power and is faster.
        self._left, self._right = (torch.randn(shape, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        self._product = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        self._layer_product = torch.empty_like(self._product)
        self._source = torch.randint(0, 256, (MEMORY_BYTES,), dtype=torch.uint8, device="cuda")
        self._target = torch.empty_like(self._source)
        self._memory = PinnedMemory(self._runtime, host_bytes)
        self._cycles_per_ms = self._warm_up()
        self._clock = GpuClock(partial(self.mark, "probe"), time.perf_counter_ns)

    def _warm_up(self) -> float:
        """Run everything once, and return how fast the clock of the GPU is then."""
        torch = self.torch
        torch.cuda.synchronize()
        for name in self.loads:
            self.load(name, WARM_UP_UNITS)
        self.layer()
        self.synchronize()
        with torch.cuda.stream(self._streams["compute"]):
            torch.cuda._sleep(_CYCLES // 10)  # noqa: SLF001 - torch has no other
        begin = self.mark("compute")
        with torch.cuda.stream(self._streams["compute"]):
            torch.cuda._sleep(_CYCLES)  # noqa: SLF001 - torch has no other
        end = self.mark("compute")
        self.synchronize()
        return _CYCLES / max(self.elapsed_ns(begin, end) / 1e6, 1e-3)

    @property
    def compute(self) -> ComputeStream:
        """See `Platform`: asked of torch each time, as a model's hooks do."""
        return self._current()

    @property
    def host_address(self) -> int:
        """See `Platform`."""
        return self._memory.address

    def host_tensor(self) -> Any:  # noqa: ANN401 - torch
        """Return all host memory as a tensor of bytes."""
        return self.torch.from_numpy(self._memory.array)

    def stream(self, place: Place) -> Any:  # noqa: ANN401 - torch
        """Return a place as torch has it."""
        return self._streams[place]

    def describe(self) -> Mapping[str, str]:
        """See `Platform`."""
        torch = self.torch
        said = nvidia_smi("driver_version", "pcie.link.gen.max", "pcie.link.width.max")
        link = f"PCIe gen {said['pcie.link.gen.max']} x{said['pcie.link.width.max']}"
        return {
            "device": str(torch.cuda.get_device_name()),
            "driver": said["driver_version"],
            "cuda": str(torch.version.cuda),
            "torch": str(torch.__version__),
            "link": link,
            "connections": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "as the driver has it"),
            **_versions(),
        }

    def new_engine(self) -> CopyEngine:
        """See `Platform`."""
        engine: CopyEngine = self._engines.CudaEngine(
            self.torch.cuda.current_device(), **({} if self._copy_path is None else {"copy_path": self._copy_path})
        )
        return engine

    def device_view(self, offset: int, pages: int, row_bytes: int) -> Any:  # noqa: ANN401 - torch
        """See `Platform`."""
        end = offset + pages * row_bytes
        if end > self.device_bytes:
            message = f"pages end at byte {end} of the device memory, want {self.device_bytes} at most"
            raise ConfigError(message)
        return self._flat[offset:end].view(pages, row_bytes)

    def device_address(self) -> int:
        """See `Platform`."""
        return int(self._flat.data_ptr())

    def read_device(self, address: int, size: int) -> bytes:
        """See `Platform`."""
        offset = address - self.device_address()
        content: bytes = self._flat[offset : offset + size].cpu().numpy().tobytes()
        return content

    def clear_device(self) -> None:
        """See `Platform`."""
        self._flat.zero_()
        self.torch.cuda.synchronize()

    def fill_device(self) -> None:
        """See `Platform`."""
        self._flat.random_(0, 256)
        self.torch.cuda.synchronize()

    def hold(self, milliseconds: float) -> None:
        """See `Platform`."""
        with self.torch.cuda.stream(self._streams["compute"]):
            self.torch.cuda._sleep(int(milliseconds * self._cycles_per_ms))  # noqa: SLF001 - torch has no other

    def follow(self, place: Place, other: Place) -> None:
        """See `Platform`."""
        self._streams[place].wait_stream(self._streams[other])

    def mark(self, place: Place) -> Any:  # noqa: ANN401 - torch
        """See `Platform`."""
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self._streams[place])
        return event

    def copied(self, engine: CopyEngine, stream: int, sequence: int) -> Any:  # noqa: ANN401 - torch
        """See `Platform`.

        The mark is on the copy stream itself: one on a stream that waits for it would itself wait for its
        turn among the launches of a load, by some milliseconds in the end.
        """
        if sequence == engine.next_sequence(stream) - 1 and isinstance(engine, self._engines.CudaEngine):
            event = self.torch.cuda.Event(enable_timing=True)
            event.record(self.torch.cuda.ExternalStream(engine.handles[stream]))
            return event
        engine.wait(self._streams["probe"].cuda_stream, stream, sequence)
        return self.mark("probe")

    def load(self, name: str, units: int) -> None:
        """See `Platform`."""
        with self.torch.cuda.stream(self._streams["load"]):
            for _ in range(units):
                if name == "matmul":
                    self.torch.mm(self._left, self._right, out=self._product)
                else:
                    self._target.copy_(self._source)

    def layer(self, units: int = LAYER_UNITS) -> None:
        """See `Platform`: as few products as have room for them, of about the same inner dimension."""
        with self.torch.cuda.stream(self._streams["compute"]):
            for part in even_parts(units, LAYER_UNITS):
                depth = part * UNIT_DEPTH
                self.torch.mm(self._left[:, :depth], self._right[:depth], out=self._layer_product)

    def copy(self, destination: int, source: int, size: int) -> None:
        """See `Platform`."""
        self._runtime.copy(destination, source, size, self._streams["copy"].cuda_stream)

    def align(self) -> None:
        """See `Platform`."""
        self.synchronize()
        self._clock.align()

    def elapsed_ns(self, begin: Any, end: Any) -> int:  # noqa: ANN401 - torch
        """See `Platform`."""
        return int(begin.elapsed_time(end) * 1e6)

    def host_ns(self, mark: Any) -> int:  # noqa: ANN401 - torch
        """See `Platform`."""
        return self._clock.nanoseconds(mark)

    def synchronize(self) -> None:
        """See `Platform`."""
        self.torch.cuda.synchronize()

    def close(self) -> None:
        """See `Platform`."""
        self.synchronize()
        self.torch.cuda.set_stream(self.torch.cuda.default_stream())
        self._memory.close()


def even_parts(count: int, most: int) -> list[int]:
    """Return `count` as the sum of as few numbers as there can be up to `most`, which differ by 1 at the most."""
    parts = -(-count // most)
    return [count * (part + 1) // parts - count * part // parts for part in range(parts)]


def _versions() -> dict[str, str]:
    """Return which of the peers are installed."""
    found = {}
    for name in ("sglang", "sglang-kernel", "sgl-kernel"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
