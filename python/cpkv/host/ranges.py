"""A stretch of memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Range:
    """Where it begins and how long it is."""

    address: int
    bytes: int
