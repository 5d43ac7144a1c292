"""What is wanted of the copies on one H200, whose link takes about 55 GB/s at its best.

`Targets` without any is for other machines: their figures stand alone.
"""

from dataclasses import dataclass
from typing import Final

FULL_PAGES: Final = 512
"""Pages of a layer in a long chunk: what the bandwidths are wanted for."""
FEW_PAGES: Final = 16
"""Pages of a rank's layer in a chunk of 8k tokens on eight ranks."""

ALONE: Final = "alone"
_TO_HOST: Final = {1: {ALONE: 53.0, "matmul": 53.0, "memory": 48.0}, 16: {ALONE: 54.0, "matmul": 53.0, "memory": 50.0}}
_LONGER_TO_DEVICE: Final = {ALONE: 54.0, "matmul": 54.0, "memory": 53.0}
_TO_DEVICE: Final = {1: {ALONE: 47.0, "matmul": 53.0, "memory": 52.0}, 4: _LONGER_TO_DEVICE, 16: _LONGER_TO_DEVICE}
_SLOWDOWN_PERCENT: Final = {"matmul": 2.0, "memory": 3.0}
_HIDDEN_PERCENT: Final = 95.0
_FULL_HOOK_US: Final = {1: 450.0, 16: 45.0}


@dataclass(frozen=True, slots=True)
class Targets:
    """What is wanted, or `None` where nothing is.

    Args:
        is_known: Whether this is a machine that targets were set for.
    """

    is_known: bool

    def bandwidth(self, *, to_host: bool, pages: int, run_pages: int, load: str) -> float | None:
        """Return the least GB/s, `load` being `ALONE` or the name of one."""
        if not self.is_known or pages != FULL_PAGES:
            return None
        return (_TO_HOST if to_host else _TO_DEVICE).get(run_pages, {}).get(load)

    def slowdown(self, *, pages: int, load: str) -> float | None:
        """Return the most percent of the copy's time that a load may take longer."""
        return _SLOWDOWN_PERCENT.get(load) if self.is_known and pages == FULL_PAGES else None

    def hidden(self, *, pages: int) -> float | None:
        """Return the least percent of the copies' time that has to lie within the forward."""
        return _HIDDEN_PERCENT if self.is_known and pages == FULL_PAGES else None

    def hook_us(self, *, pages: int, run_pages: int) -> float | None:
        """Return the most microseconds of CPU for each layer, the share of the preparation included."""
        if not self.is_known:
            return None
        if pages <= FEW_PAGES:
            return 20.0
        return _FULL_HOOK_US.get(run_pages) if pages == FULL_PAGES else None

    def fragmented(self, *, pages: int, load: str) -> float | None:
        """Return the least GB/s with a full and fragmented host pool."""
        return 50.0 if self.is_known and pages == FULL_PAGES and load == "matmul" else None

    def restore_ms(self, *, layers: int, run_pages: int) -> float | None:
        """Return the most milliseconds that the calling thread may take to submit a restore."""
        return 5.0 if self.is_known and (layers, run_pages) == (78, 16) else None

    def first_layer(self) -> float | None:
        """Return after how many times one layer's time the first layer is there, with a tenth for the waits."""
        return 1.1 if self.is_known else None
