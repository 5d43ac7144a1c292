"""What the clock says, without what reading it costs.

A reading of the CPU clock is a system call and takes as long as a call into the cache. Whoever times
such calls reads it once more with nothing in between, under the conditions of the very moment, and
takes that off each part.
"""


def net_microseconds(part_ns: int, reading_ns: int, times: int = 1) -> float:
    """Return the microseconds of one of `times` parts.

    Args:
        part_ns: All parts together, between two readings each.
        reading_ns: As many readings.
        times: How many there were; none counts as one.
    """
    return max(part_ns - reading_ns, 0) / max(times, 1) / 1_000
