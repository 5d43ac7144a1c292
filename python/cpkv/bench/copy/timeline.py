"""What has happened when, in the format of Chrome's trace viewer and Perfetto.

Each forward has its layers and their copies, both as the GPU's clock has them, the moments at which the
scheduler's thread has seen each ack, and its last ticks, one of which is the commit. A copy's beginning is
when it could begin: its layer and the copy before it had ended.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

ROWS: Final = {"layer": 1, "copy": 2, "ack": 3, "tick": 4}
_TITLES: Final = {"layer": "layers", "copy": "copies to host", "ack": "acks seen", "tick": "ticks"}
COMMIT: Final = "commit"


@dataclass(frozen=True, slots=True)
class Forward:
    """The times of one forward, in nanoseconds of one clock.

    Args:
        layers: Begin and end of what each layer has computed.
        copied: When each layer's copies had ended; one for each layer.
        acked: When each layer's ack was seen.
        ticks: Begin and end of the ticks, the last of which has committed.
        bytes: What a layer copies.
        title: What it is called, if there are several kinds of forwards.
    """

    layers: tuple[tuple[int, int], ...]
    copied: tuple[int, ...]
    acked: tuple[int, ...]
    ticks: tuple[tuple[int, int], ...]
    bytes: int
    title: str = ""

    @property
    def begin_ns(self) -> int:
        """When the first layer has begun."""
        return self.layers[0][0]

    @property
    def taken_ns(self) -> int:
        """What all layers have taken."""
        return self.end_ns - self.begin_ns

    @property
    def end_ns(self) -> int:
        """When the last layer has ended."""
        return self.layers[-1][1]

    @property
    def visible_ns(self) -> int:
        """When the tick that has committed has returned."""
        return self.ticks[-1][1]

    def copies(self) -> list[tuple[int, int]]:
        """Return begin and end of each layer's copies."""
        befores = (self.layers[0][1], *self.copied[:-1])
        return [
            (max(end, before), copied)
            for (_, end), before, copied in zip(self.layers, befores, self.copied, strict=True)
        ]


@dataclass
class Timeline:
    """Forwards one after the other."""

    forwards: list[Forward] = field(default_factory=list)

    def last_of_each(self) -> "Timeline":
        """Return the last forward of each title."""
        return Timeline(list({forward.title: forward for forward in self.forwards}.values()))

    def as_json(self, about: Mapping[str, object]) -> dict[str, object]:
        """Return the trace, ready for `json.dump`; times begin at the first forward."""
        start = self.forwards[0].layers[0][0] if self.forwards else 0
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 1, "tid": ROWS[kind], "args": {"name": title}}
            for kind, title in _TITLES.items()
        ]
        for number, forward in enumerate(self.forwards):
            events += _events(number, forward, start)
        return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(about)}


def _events(number: int, forward: Forward, start: int) -> Iterable[dict[str, Any]]:
    title = {"title": forward.title} if forward.title else {}

    def spanned(kind: str, name: str, begin: int, end: int, **more: int) -> dict[str, Any]:
        return {
            "name": name,
            "cat": kind,
            "ph": "X",
            "pid": 1,
            "tid": ROWS[kind],
            "ts": (begin - start) / 1_000,
            "dur": (end - begin) / 1_000,
            "args": {"forward": number, **title, **more},
        }

    for layer, (begin, end) in enumerate(forward.layers):
        yield spanned("layer", f"layer {layer}", begin, end, layer=layer)
    for layer, (begin, end) in enumerate(forward.copies()):
        yield spanned("copy", f"copy {layer}", begin, end, layer=layer, bytes=forward.bytes)
    for layer, seen in enumerate(forward.acked):
        yield {
            "name": f"ack {layer}",
            "cat": "ack",
            "ph": "i",
            "s": "t",
            "pid": 1,
            "tid": ROWS["ack"],
            "ts": (seen - start) / 1_000,
            "args": {"forward": number, **title, "layer": layer},
        }
    *others, commit = forward.ticks
    for begin, end in others:
        yield spanned("tick", "tick", begin, end)
    yield spanned("tick", COMMIT, *commit)
