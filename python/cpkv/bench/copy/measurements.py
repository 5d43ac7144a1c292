"""The measurements of copies by name, in the order in which they are made."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cpkv.bench.copy.bandwidth import measure_to_device, measure_to_host
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
        measure: Does it.
        serves_requests: Whether it serves those of the settings.
    """

    measure: Callable[[Run], Iterator[CopyFigure]]
    serves_requests: bool = False


COPY_MEASUREMENTS: Final = {
    "to-host": CopyMeasurement(measure_to_host),
    "hooks": CopyMeasurement(measure_hooks),
    "restores": CopyMeasurement(measure_restores),
    VISIBILITY: CopyMeasurement(measure_visibility),
    "fragments": CopyMeasurement(measure_fragments, serves_requests=True),
    "to-device": CopyMeasurement(measure_to_device),
    # Last, as it tells of all forwards of the run.
    "counts": CopyMeasurement(measure_counts),
}
