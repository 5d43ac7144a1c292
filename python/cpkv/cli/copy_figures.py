"""The table of the copies: ours, what was wanted, and the peers beside it, readable without colour."""

from collections.abc import Iterable, Iterator
from typing import Final

from cpkv.bench.copy import ABSENT, CopyFigure, Peer

_LARGE: Final = 1_000
_SMALL: Final = 10


def copy_table(heading: str, figures: Iterable[CopyFigure], *, ours: str = "ours") -> str:
    """Return the figures for people, a line each, and what is to be said of them below.

    Args:
        heading: Of the table.
        figures: What is in it.
        ours: Over the column of what was measured, beside those of the peers.
    """
    figures = list(figures)
    peers = list(dict.fromkeys(name for figure in figures for name in figure.peers))
    rows = [("", "", ours, "wanted", "met", *peers), *(_row(figure, peers) for figure in figures)]
    name_width, unit_width, *widths = (max(len(cell) for cell in column) for column in zip(*rows, strict=True))
    lines = []
    for name, unit, *numbers in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(numbers, widths, strict=True)]
        lines.append("  ".join(["", f"{name:<{name_width}}", f"{unit:<{unit_width}}", *cells]).rstrip())
    notes = list(dict.fromkeys(_notes(figures)))
    return "\n".join([heading, "", *lines, "", *(f"  {note}" for note in notes), *([""] if notes else [])]) + "\n"


def number(value: float) -> str:
    """Return a number with as many digits as say something."""
    size = abs(value)
    if size >= _LARGE or value == 0:
        return f"{value:,.0f}"
    return f"{value:.2f}" if size < _SMALL else f"{value:.1f}"


def _row(figure: CopyFigure, peers: list[str]) -> tuple[str, ...]:
    met = {None: "", True: "yes", False: "no"}[figure.is_met]
    sign = {"at least": ">=", "at most": "<=", "exactly": "="}[figure.wanted]
    return (
        figure.name,
        figure.unit,
        "failed" if figure.median is None else number(figure.median),
        "" if figure.target is None else f"{sign} {number(figure.target)}",
        met,
        *(_cell(figure.peers.get(name)) for name in peers),
    )


def _cell(peer: Peer | None) -> str:
    if peer is None:
        return ""
    if peer.median is None:
        return ABSENT if peer.is_absent else "failed"
    return number(peer.median)


def _notes(figures: list[CopyFigure]) -> Iterator[str]:
    for figure in figures:
        for said in (figure.error and f"failed: {figure.error}", figure.note):
            if said:
                yield f"{figure.name}: {said}"
    for figure in figures:
        for name, peer in figure.peers.items():
            if peer.error:
                yield f"{name}: {peer.error}"
            if peer.note:
                yield f"{figure.name}: {name}: {peer.note}"
