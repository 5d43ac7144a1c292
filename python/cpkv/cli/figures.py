"""The table of a benchmark, readable without colour and at any width."""

from collections.abc import Iterable

from cpkv.bench import Figure

_HEADINGS = ("", "", "least", "median", "target", "ratio", "")


def counted(number: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def figure_table(heading: str, figures: Iterable[Figure]) -> str:
    """Return the figures for people, a line each."""
    rows = [_HEADINGS, *(_row(figure) for figure in figures)]
    name_width, unit_width, *widths, _ = (max(len(cell) for cell in column) for column in zip(*rows, strict=True))
    lines = []
    for name, unit, *numbers, note in rows:
        cells = [f"{cell:>{width}}" for cell, width in zip(numbers, widths, strict=True)]
        lines.append("  ".join(["", f"{name:<{name_width}}", f"{unit:<{unit_width}}", *cells, note]).rstrip())
    return "\n".join([heading, "", *lines, ""]) + "\n"


def _row(figure: Figure) -> tuple[str, ...]:
    has_repeats = len(figure.samples) > 1
    return (
        figure.name,
        figure.unit,
        f"{figure.least:,.2f}" if has_repeats else "",
        f"{figure.median:,.2f}",
        "" if figure.target is None else f"{figure.target:,.2f}",
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        figure.note,
    )
