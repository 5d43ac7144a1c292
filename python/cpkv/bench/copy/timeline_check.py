"""What has to hold in every forward of a trace; looks at nothing but the trace."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cpkv.bench.copy.timeline import COMMIT

Event = Mapping[str, Any]

ROUNDING_US: Final = 0.001
"""Times are nanoseconds, written as fractions of microseconds."""


def forwards_of(trace: Mapping[str, Any]) -> dict[int, dict[str, list[Event]]]:
    """Return the events of each forward by their kind, in the order of time."""
    forwards: dict[int, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for event in sorted(trace["traceEvents"], key=lambda one: float(one.get("ts", 0))):
        if event["ph"] != "M":
            forwards[event["args"]["forward"]][event["cat"]].append(event)
    return forwards


def first_copy_leads(events: Mapping[str, Sequence[Event]]) -> bool:
    """Whether a forward's first copy has ended, and so begun, before its last layer ends.

    A copy's beginning is only known to be no earlier than the trace says; its end is measured.
    """
    copies, layers = events.get("copy", ()), events.get("layer", ())
    return bool(copies and layers) and min(map(_end, copies)) < max(map(_end, layers))


def faults(trace: Mapping[str, Any], *, tolerance_us: float = 0.0) -> list[str]:
    """Return what cannot be in the trace of forwards whose layers were copied as they ended.

    Args:
        trace: As `Timeline.as_json` makes it.
        tolerance_us: How far the clocks of the GPU and of the thread may be apart.
    """
    forwards = forwards_of(trace)
    found = [] if forwards else ["there is no forward"]
    for number, events in forwards.items():
        found += [f"forward {number} {fault}" for fault in _faults(events, tolerance_us)]
    return found


def _faults(events: Mapping[str, Sequence[Event]], tolerance_us: float) -> Iterator[str]:
    layers, copies, acks = (
        {event["args"]["layer"]: event for event in events.get(kind, ())} for kind in ("layer", "copy", "ack")
    )
    commits = [event for event in events.get("tick", ()) if event["name"] == COMMIT]
    if len(commits) != 1:
        yield f"has {len(commits)} commits, want 1"
    for what, those in (("copy", copies), ("ack", acks)):
        for layer in sorted(layers.keys() ^ those.keys()):
            yield f"has {'no' if layer in layers else 'a needless'} {what} of layer {layer}"
    for layer in sorted(layers.keys() & copies.keys() & acks.keys()):
        copy, ack = copies[layer], acks[layer]
        if copy["ts"] < _end(layers[layer]) - ROUNDING_US or copy["dur"] < 0:
            yield f"copies layer {layer} before it has ended"
        if ack["ts"] < copy["ts"] - tolerance_us:
            yield f"has an ack of layer {layer} before its copy"
        if commits and _end(commits[0]) < ack["ts"] - ROUNDING_US:
            yield f"commits before the ack of layer {layer}"
    if not first_copy_leads(events):
        yield "has no copy before its last layer ends"


def _end(event: Event) -> float:
    return float(event["ts"]) + float(event["dur"])
