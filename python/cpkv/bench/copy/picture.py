"""A forward of a timeline as a picture, drawn by matplotlib, which is an extra."""

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, Final

from cpkv.bench.copy.timeline import COMMIT, ROWS
from cpkv.bench.copy.timeline_check import forwards_of
from cpkv.errors import ConfigError

_COLOURS: Final = {"layer": "#4c72b0", "copy": "#dd8452"}
_TITLES: Final = {"layer": "layers", "copy": "copies", "ack": "acks seen", "tick": "ticks, commit"}
_HALF: Final = 0.4


def check_drawable() -> None:
    """Look whether pictures can be drawn.

    Raises:
        ConfigError: matplotlib is not there.
    """
    if find_spec("matplotlib") is None:
        message = "a picture needs matplotlib, which is not installed: try pip install 'cpkv[plots]'"
        raise ConfigError(message)


def draw(trace: Mapping[str, Any], file: Path | BinaryIO, *, forward: int | None = None) -> None:
    """Draw a forward as PNG: all of it above, and its end in detail below.

    Args:
        trace: As `Timeline.as_json` makes it.
        file: Where to.
        forward: Which one; the last if not given.

    Raises:
        ConfigError: There is no such forward, or no matplotlib.
    """
    check_drawable()
    forwards = forwards_of(trace)
    number = max(forwards, default=-1) if forward is None else forward
    if number not in forwards:
        message = f"forward is {number}, want one of the {len(forwards)} of the timeline"
        raise ConfigError(message)
    events = forwards[number]
    # Without pyplot, which wants a window system.
    figure = import_module("matplotlib.figure").Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots(2, 1)
    begin = events["layer"][0]["ts"]
    end = max(event["ts"] + event.get("dur", 0.0) for several in events.values() for event in several)
    last = events["layer"][-1]
    for axis, left in zip(axes, (begin, max(last["ts"] - last["dur"], begin)), strict=True):
        _draw_rows(axis, events, begin)
        margin = (end - left) * 0.02
        axis.set_xlim((left - margin - begin) / 1e3, (end + margin - begin) / 1e3)
    axes[0].set_title(f"{len(events['layer'])} layers, each copied while the next ones are computed", fontsize=10)
    axes[1].set_title("the last layers, and when they are visible", fontsize=10)
    axes[1].set_xlabel("milliseconds")
    figure.savefig(file, format="png", dpi=110)


def _draw_rows(axis: Any, events: Mapping[str, Any], begin: float) -> None:  # noqa: ANN401 - matplotlib
    for kind, row in ROWS.items():
        for event in events[kind]:
            left = (event["ts"] - begin) / 1e3
            if kind == "ack":
                axis.plot([left, left], [row - _HALF, row + _HALF], color="#55a868", linewidth=1)
            elif kind == "tick":
                colour = "#c44e52" if event["name"] == COMMIT else "#999999"
                axis.plot([left, left], [row - _HALF, row + _HALF], color=colour, linewidth=2)
            else:
                width = event["dur"] / 1e3
                axis.barh(
                    row, width, left=left, height=2 * _HALF, color=_COLOURS[kind], edgecolor="white", linewidth=0.4
                )
    axis.set_yticks(list(ROWS.values()), [_TITLES[kind] for kind in ROWS])
    axis.invert_yaxis()
