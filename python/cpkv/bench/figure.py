"""One figure of a benchmark: what was measured, and what was wanted."""

import statistics
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One row of the table.

    Args:
        name: What was measured, with its sizes.
        unit: What the numbers count.
        samples: One number for each time it was measured; at least one.
        target: The most that is wanted of the median; `None` for what only explains other figures.
        note: What the reader has to know to judge it.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    target: float | None = None
    note: str = ""

    @property
    def least(self) -> float:
        """The least sample."""
        return min(self.samples)

    @property
    def median(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples)

    @property
    def ratio(self) -> float | None:
        """The median over the target: at most 1 where it is met."""
        return None if self.target is None else self.median / self.target

    def as_json(self) -> dict[str, object]:
        """Return everything, ready for `json.dump`."""
        return {
            "name": self.name,
            "unit": self.unit,
            "least": self.least,
            "median": self.median,
            "target": self.target,
            "ratio": self.ratio,
            "note": self.note,
            "samples": list(self.samples),
        }
