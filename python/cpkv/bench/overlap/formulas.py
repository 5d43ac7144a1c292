"""The formulas that figures of the overlap are made by."""

from cpkv.bench.copy.timeline import Forward


def copied_ns(forward: Forward) -> int:
    """Return the time of all copies of a forward, which come one after the other."""
    return sum(end - begin for begin, end in forward.copies())


def span_ns(forward: Forward) -> int:
    """Return the time from the begin of a forward's first copy to the end of its last one, gaps included."""
    copies = forward.copies()
    return copies[-1][1] - copies[0][0]


def hidden_percent(forward: Forward) -> float:
    """Return how much of the time of all copies lies before the end of the last layer.

    A copy that is under way then counts up to that moment. The last layer's own copy begins there and is never
    hidden: see `most_hidden_percent`.
    """
    hidden = sum(max(min(end, forward.end_ns) - begin, 0) for begin, end in forward.copies())
    return 100.0 * hidden / max(copied_ns(forward), 1)


def most_hidden_percent(layers: int) -> float:
    """Return what can be hidden of equal copies of so many layers."""
    return 100.0 * (layers - 1) / layers


def next_units(units: int, taken_ns: float, wanted_ns: float) -> int:
    """Return how much work takes the wanted time, if `units` have taken `taken_ns`."""
    return max(round(units * wanted_ns / max(taken_ns, 1.0)), 1)
