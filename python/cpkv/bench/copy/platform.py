"""What the benchmark needs of a machine, besides the copy engine: memory, streams, marks, loads.

A place is a stream of the benchmark's own. `compute` is where layers end, `load` runs what the copies
are measured beside, `copy` is the peers', and `probe` only waits for copies to mark their end.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal, Protocol, TypeAlias

from cpkv.bench.copy.settings import EngineName
from cpkv.device import ComputeStream, CopyEngine

Place = Literal["compute", "load", "copy", "probe"]

LAYER_UNITS: Final = 128
"""Units of a layer's work in a layer that nothing else is said of."""

Mark: TypeAlias = Any
"""A moment of a stream, known when the stream has come there."""


class Platform(Protocol):
    """One machine. Work is queued and done in the order of each place."""

    @property
    def name(self) -> EngineName:
        """Which engine copies here."""

    @property
    def loads(self) -> tuple[str, ...]:
        """The loads that there are."""

    @property
    def layer_unit(self) -> str:
        """What a unit of a layer's work is."""

    @property
    def lead_units(self) -> int:
        """Units that have to be computed before the clock of the device is that of a long forward."""

    @property
    def hold_ms(self) -> float:
        """How long `compute` has to stand still for the load and the first layers to be queued."""

    @property
    def compute(self) -> ComputeStream:
        """The place `compute`, as a copy engine takes it."""

    @property
    def device_bytes(self) -> int:
        """Device memory for pages."""

    @property
    def host_bytes(self) -> int:
        """Host memory for slots."""

    @property
    def host_address(self) -> int:
        """Where it begins."""

    def describe(self) -> Mapping[str, str]:
        """Return what the figures were measured on."""

    def new_engine(self) -> CopyEngine:
        """Return an engine; its tier closes it."""

    def device_view(self, offset: int, pages: int, row_bytes: int) -> Any:  # noqa: ANN401 - torch or numpy
        """Return device memory as bytes of shape `(pages, row_bytes)`."""

    def device_address(self) -> int:
        """Return where the device memory begins."""

    def read_device(self, address: int, size: int) -> bytes:
        """Return bytes of the device."""

    def clear_device(self) -> None:
        """Overwrite all pages with zeros."""

    def fill_device(self) -> None:
        """Overwrite all pages with random bytes."""

    def hold(self, milliseconds: float) -> None:
        """Let `compute` stand still for so long."""

    def follow(self, place: Place, other: Place) -> None:
        """Let `place` go on when `other` has come to where it is now."""

    def mark(self, place: Place) -> Mark:
        """Mark where a place is now."""

    def copied(self, engine: CopyEngine, stream: int, sequence: int) -> Mark:
        """Mark the moment at which a submission of an engine has ended. To be asked before it has."""

    def load(self, name: str, units: int) -> None:
        """Queue units of a load on `load`."""

    def layer(self, units: int = LAYER_UNITS) -> None:
        """Queue so many units of what a layer computes on `compute`."""

    def copy(self, destination: int, source: int, size: int) -> None:
        """Queue one contiguous copy between host and device on `copy`, by the plainest call there is."""

    def align(self) -> None:
        """Compare the clock of the marks with that of this thread."""

    def elapsed_ns(self, begin: Mark, end: Mark) -> int:
        """Return the time between two marks that have come."""

    def host_ns(self, mark: Mark) -> int:
        """Return when a mark has come, on the clock of `time.perf_counter_ns`."""

    def synchronize(self) -> None:
        """Wait until everything queued has ended."""

    def close(self) -> None:
        """Give everything back."""
