"""The rows of a share: layer by layer, beside no backup, the same once more, and all layers behind the forward."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cpkv.bench.copy.bandwidth import SAME
from cpkv.bench.copy.figure import CopyFigure, Peer
from cpkv.bench.copy.formulas import gigabytes_per_second, slowdown_percent
from cpkv.bench.copy.timeline import Forward
from cpkv.bench.overlap.formulas import copied_ns, hidden_percent, span_ns
from cpkv.bench.overlap.rounds import OverlapRound

REACHED: Final = "copy to layer"
FORWARD: Final = "forward"
WHOLE: Final = "forward, begin to visible"
VISIBLE: Final = "forward, end to visible"
HIDDEN: Final = "backup time hidden"
SLOWDOWN: Final = "slowdown, of the copies' span"
COPIED_SLOWDOWN: Final = "slowdown, of the copies' time"
BANDWIDTH: Final = "copies"
UNITS: Final = {
    REACHED: "%",
    FORWARD: "ms",
    WHOLE: "ms",
    VISIBLE: "ms",
    HIDDEN: "%",
    SLOWDOWN: "%",
    COPIED_SLOWDOWN: "%",
    BANDWIDTH: "GB/s",
}
"""What is told of a share, and what the numbers count."""

ALONE: Final = "copies alone"
BEHIND: Final = "all layers behind"
PLAIN: Final = "no backup"

_BACKED_UP: Final[Mapping[str, Callable[[Forward, OverlapRound], float]]] = {
    FORWARD: lambda forward, _: forward.taken_ns / 1e6,
    WHOLE: lambda forward, _: (forward.visible_ns - forward.begin_ns) / 1e6,
    VISIBLE: lambda forward, _: (forward.visible_ns - forward.end_ns) / 1e6,
    HIDDEN: lambda forward, _: hidden_percent(forward),
    SLOWDOWN: lambda forward, one: slowdown_percent(one.plain_ns, forward.taken_ns, span_ns(forward)),
    COPIED_SLOWDOWN: lambda forward, one: slowdown_percent(one.plain_ns, forward.taken_ns, copied_ns(forward)),
    BANDWIDTH: lambda forward, _: gigabytes_per_second(forward.bytes * len(forward.copied), copied_ns(forward)),
}
"""Of a forward with a backup, and the round that it is in."""

_BESIDE: Final[Mapping[str, Mapping[str, Callable[[OverlapRound], float]]]] = {
    FORWARD: {PLAIN: lambda one: one.plain_ns / 1e6, SAME: lambda one: one.again_ns / 1e6},
    SLOWDOWN: {SAME: lambda one: slowdown_percent(one.plain_ns, one.again_ns, span_ns(one.hooked))},
    COPIED_SLOWDOWN: {SAME: lambda one: slowdown_percent(one.plain_ns, one.again_ns, copied_ns(one.hooked))},
    BANDWIDTH: {ALONE: lambda one: gigabytes_per_second(one.hooked.bytes * len(one.hooked.copied), one.alone_ns)},
}
"""What else is told of a round, by the column it is in."""


def share_rows(
    title: str, rounds: Sequence[OverlapRound], targets: Mapping[str, float | None], notes: Mapping[str, str]
) -> list[CopyFigure]:
    """Return the rows of a share, in the order of `UNITS`.

    Args:
        title: Of the share.
        rounds: What was measured.
        targets: What is wanted, by what it is wanted of.
        notes: What has to be known, by what it is about.
    """

    def row(what: str, samples: Sequence[float], peers: Mapping[str, Sequence[float]]) -> CopyFigure:
        return CopyFigure(
            name=f"{title}: {what}",
            unit=UNITS[what],
            samples=tuple(samples),
            target=targets.get(what),
            wanted="at least" if what == HIDDEN else "at most",
            peers={name: Peer(samples=tuple(theirs)) for name, theirs in peers.items()},
            note=notes.get(what, ""),
        )

    rows = [row(REACHED, [100 * one.alone_ns / one.plain_ns for one in rounds], {})]
    for what, formula in _BACKED_UP.items():
        beside = {name: [of(one) for one in rounds] for name, of in _BESIDE.get(what, {}).items()}
        beside[BEHIND] = [formula(one.behind, one) for one in rounds]
        rows.append(row(what, [formula(one.hooked, one) for one in rounds], beside))
    return rows
