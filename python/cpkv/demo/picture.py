"""The first forwards of a timeline as a picture, drawn by matplotlib, which is an extra."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

_COLOURS: Final = {"layer": "#4c72b0", "draft": "#8172b3", "copy": "#dd8452", "late": "#ccb974", "commit": "#c44e52"}
_LABELS: Final = {
    "layer": "layers of the target",
    "draft": "layer of the draft",
    "copy": "copies to the host",
    "late": "late copies",
    "commit": "commit",
}
_HEIGHT: Final = 0.38
MARGIN_US: Final = 10_000


def is_drawable() -> bool:
    """Whether pictures can be drawn."""
    return find_spec("matplotlib") is not None


def draw(events: Sequence[dict[str, Any]], file: Path) -> None:
    """Draw what all ranks of the first group have done until something was visible.

    Each rank has two rows: what it computed, and what was copied meanwhile. Needs matplotlib.

    Args:
        events: Of the timeline.
        file: Where to, as PNG.
    """
    events = [event for event in events if event["ph"] == "X"]
    group = events[0]["pid"].split(",")[0]
    ranks = sorted({event["pid"] for event in events if event["pid"].startswith(group)})
    begin = min(event["ts"] for event in events if event["pid"] in ranks)
    # On every rank the first commit is that of the same step.
    commits = [event for event in events if event["pid"] in ranks and event["cat"] == "commit"]
    firsts = {event["pid"]: _end(event) for event in sorted(commits, key=_end, reverse=True)}
    end = max(firsts.values(), default=begin) + MARGIN_US
    figure = import_module("matplotlib.figure").Figure(figsize=(11, 1 + len(ranks)), layout="constrained")
    axis = figure.subplots()
    named: dict[str, Any] = {}
    for row, rank in enumerate(ranks):
        for event in (event for event in events if event["pid"] == rank and event["ts"] < end):
            kind = "draft" if event["name"].startswith("draft") else event["cat"]
            if kind not in _COLOURS:
                continue
            # A commit is a moment: it is drawn as wide as a line.
            width = max(event["dur"], (end - begin) / 400 if kind == "commit" else 0) / 1e3
            named[kind] = axis.barh(
                row + (0 if kind in {"layer", "draft"} else _HEIGHT),
                width,
                left=(event["ts"] - begin) / 1e3,
                height=_HEIGHT,
                color=_COLOURS[kind],
                edgecolor="white",
                linewidth=0.4,
            )
    axis.set_yticks([row + _HEIGHT / 2 for row in range(len(ranks))], [rank.split(", ")[1] for rank in ranks])
    axis.set_xlim(0, (end - begin) / 1e3)
    axis.invert_yaxis()
    axis.set_xlabel("milliseconds")
    axis.set_title(f"{group}: prefill in chunks, copied layer by layer, visible on all ranks at once", fontsize=10)
    figure.legend(
        [named[kind] for kind in _COLOURS if kind in named],
        [_LABELS[kind] for kind in _COLOURS if kind in named],
        loc="outside lower center",
        ncols=len(named),
        frameon=False,
        fontsize=9,
    )
    figure.savefig(file, format="png", dpi=110)


def _end(event: dict[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])
