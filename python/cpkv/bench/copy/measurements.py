"""The measurements of copies by name, in the order in which they are made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cpkv.bench.copy.bandwidth import (
    measure_fewer_to_device,
    measure_fewer_to_host,
    measure_to_device,
    measure_to_host,
)
from cpkv.bench.copy.counts import measure_counts
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.fragments import measure_fragments
from cpkv.bench.copy.hooks import measure_hooks
from cpkv.bench.copy.restores import measure_restores
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.visibility import measure_visibility

VISIBILITY: Final = "visibility"


@dataclass(frozen=True, slots=True)
class CopyMeasurement:
    """One thing that can be measured.

    Args:
        title: What it is called over its table.
        measure: Does it.
        serves_requests: Whether it serves those of the settings.
    """

    title: str
    measure: Callable[[Run], Iterator[CopyFigure]]
    serves_requests: bool = False


# What something is wanted of comes first.
COPY_MEASUREMENTS: Final = {
    "to-host": CopyMeasurement("To the host", measure_to_host),
    "to-device": CopyMeasurement("To the device", measure_to_device),
    "hooks": CopyMeasurement("What a hook costs the thread, for each layer", measure_hooks),
    "restores": CopyMeasurement("A restore", measure_restores),
    VISIBILITY: CopyMeasurement("Until a forward is visible", measure_visibility),
    "fragments": CopyMeasurement("Into a full and fragmented host pool", measure_fragments, serves_requests=True),
    "fewer-to-host": CopyMeasurement("To the host, fewer pages", measure_fewer_to_host),
    "fewer-to-device": CopyMeasurement("To the device, fewer pages", measure_fewer_to_device),
    # Last, as it tells of all forwards of the run.
    "counts": CopyMeasurement("What must not happen", measure_counts),
}
