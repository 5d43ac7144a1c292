"""One figure of the copies: what was measured, what was wanted, and what the peers did."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

Wanted = Literal["at least", "at most", "exactly"]

ABSENT: Final = "not there"
"""How the error begins of a peer that is not installed here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """What somebody else's copy did at the same work.

    Args:
        samples: One number for each time it was measured.
        error: Why there are none.
        note: What the reader has to know to judge them.
    """

    samples: tuple[float, ...] = ()
    error: str = ""
    note: str = ""

    @property
    def median(self) -> float | None:
        """The median of the samples; `None` without any."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def is_absent(self) -> bool:
        """Whether it is not installed here."""
        return self.error.startswith(ABSENT)

    def as_json(self) -> dict[str, object]:
        """Return everything, ready for `json.dump`."""
        return {"median": self.median, "samples": list(self.samples), "error": self.error, "note": self.note}


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyFigure:
    """One row of the table.

    Args:
        name: What was measured, with its sizes.
        unit: What the numbers count.
        samples: One number for each time it was measured; none if that has failed.
        target: What is wanted of the median; `None` for what only explains other figures.
        wanted: Whether the target is the least, the most, or all that there may be.
        peers: What others did at the same work, by their names.
        note: What the reader has to know to judge it.
        error: Why there are no samples.
    """

    name: str
    unit: str
    samples: tuple[float, ...] = ()
    target: float | None = None
    wanted: Wanted = "at least"
    peers: Mapping[str, Peer] = field(default_factory=dict)
    note: str = ""
    error: str = ""

    @property
    def median(self) -> float | None:
        """The median of the samples; `None` without any."""
        return statistics.median(self.samples) if self.samples else None

    @property
    def is_measured(self) -> bool:
        """Whether there are samples of ours and of every peer that is installed."""
        return bool(self.samples) and all(peer.samples or peer.is_absent for peer in self.peers.values())

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; `None` if there is none. What has failed meets nothing."""
        if self.target is None:
            return None
        median = self.median
        if median is None:
            return False
        met = {"at least": median >= self.target, "at most": median <= self.target, "exactly": median == self.target}
        return met[self.wanted]

    def as_json(self) -> dict[str, object]:
        """Return everything, ready for `json.dump`."""
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "target": self.target,
            "wanted": self.wanted,
            "is_met": self.is_met,
            "note": self.note,
            "error": self.error,
            "peers": {name: peer.as_json() for name, peer in self.peers.items()},
            "samples": list(self.samples),
        }
