"""The formulas that figures of copies are made by."""

import statistics
from collections.abc import Sequence


def gigabytes_per_second(size_bytes: int, span_ns: int) -> float:
    """Return a bandwidth in 10⁹ bytes a second."""
    return size_bytes / max(span_ns, 1)


def slowdown_percent(alone_ns: int, beside_ns: int, span_ns: int) -> float:
    """Return the extra time of a load as a share of the time that the copy beside it took.

    Args:
        alone_ns: The load, with no copy.
        beside_ns: The same load, with a copy that ends before it does.
        span_ns: From the moment that the copy could begin to its end.
    """
    return 100.0 * (beside_ns - alone_ns) / max(span_ns, 1)


def layer_microseconds(layer_ns: Sequence[int]) -> float:
    """Return what the call at the end of a layer costs the thread that makes it: the median of a forward."""
    return statistics.median(layer_ns) / 1_000


def preparation_microseconds(prepare_ns: int, layers: int) -> float:
    """Return a layer's share of what is prepared once for a forward."""
    return prepare_ns / layers / 1_000
