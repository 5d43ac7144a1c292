"""Print tables from what `cpkv bench copy --json` or `cpkv bench overlap --json` wrote, and draw a timeline.

python benchmarks/copy_table.py copy.json
python benchmarks/copy_table.py copy.json --timeline timeline.json --picture docs/copy-timeline.png
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpkv.bench.copy import ABSENT, COPY_MEASUREMENTS, draw, faults
from cpkv.cli.copy_figures import number

TOLERANCE_US = 50.0
"""How far the clocks of the GPU and of the thread may be apart."""


def main() -> None:
    """Print the tables, and what is wrong with the timeline, if there is one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--timeline", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    if arguments.picture and not arguments.timeline:
        parser.error("--picture needs a --timeline to be drawn")
    written = json.loads(arguments.figures.read_text(encoding="utf-8"))
    print("\n".join(markdown(written)))
    if arguments.timeline:
        trace = json.loads(arguments.timeline.read_text(encoding="utf-8"))
        found = faults(trace, tolerance_us=TOLERANCE_US)
        print("\nThe timeline:", "; ".join(found) or "every first copy has ended before the last layer, "
              "every commit comes after its acks.")  # fmt: skip
        if arguments.picture:
            draw(trace, arguments.picture)


def markdown(written: dict[str, Any]) -> Iterator[str]:
    """Return the lines of the page: machine, and a section with a table and notes for each measurement."""
    machine = dict(written["machine"])
    yield f"`{machine.pop('command')}`, {machine.pop('date')}. " + ", ".join(
        f"{name} {value}" for name, value in machine.items()
    )
    if "source" in written:
        yield f"\n{written['source'][:1].upper()}{written['source'][1:]}."
    if not written["is_complete"]:
        yield "\n**Not everything was measured.**"
    for name in dict.fromkeys(figure["measurement"] for figure in written["figures"]):
        figures = [figure for figure in written["figures"] if figure["measurement"] == name]
        yield f"\n#### {COPY_MEASUREMENTS[name].title if name in COPY_MEASUREMENTS else name}\n"
        yield from table(figures)
        notes = list(notes_of(figures))
        yield from ["", *(f"- {note}" for note in notes)] if notes else []
    yield f"\nThe engine: {'; '.join(f'{what}: {why}' for what, why in written['engine'].items())}."


def table(figures: list[dict[str, Any]]) -> Iterator[str]:
    """Return a table in Markdown, with a column for each peer that has a figure in it."""
    peers = dict.fromkeys(name for figure in figures for name, one in figure["peers"].items())
    headings = ["what", "unit", "ours", "wanted", "met", *peers]
    yield f"| {' | '.join(headings)} |"
    yield "|---" * len(headings) + "|"
    for figure in figures:
        sign = "≥" if figure["wanted"] == "at least" else "≤"
        cells = [
            figure["name"],
            figure["unit"],
            "failed" if figure["median"] is None else number(figure["median"]),
            "" if figure["target"] is None else f"{sign} {number(figure['target'])}",
            {None: "", True: "yes", False: "**no**"}[figure["is_met"]],
            *(cell(figure["peers"].get(name)) for name in peers),
        ]
        yield f"| {' | '.join(cells)} |"


def cell(peer: dict[str, Any] | None) -> str:
    """Return a peer's median, or why there is none."""
    if peer is None:
        return ""
    if peer["median"] is None:
        return ABSENT if peer["error"].startswith(ABSENT) else "failed"
    return number(peer["median"])


def notes_of(figures: list[dict[str, Any]]) -> Iterator[str]:
    """Return what is to be said of the rows of a table: each thing once, with the rows or peers that it is said of."""
    said: dict[str, list[str]] = {}
    for figure in figures:
        if figure["error"]:
            said.setdefault(f"failed: {figure['error']}", []).append(figure["name"])
        if figure["note"]:
            said.setdefault(figure["note"], []).append(figure["name"])
        for name, peer in figure["peers"].items():
            if peer["error"]:
                said.setdefault(peer["error"], []).append(name)
            if peer["note"]:
                said.setdefault(f"{name}: {peer['note']}", []).append(figure["name"])
    for what, names in said.items():
        yield f"{'; '.join(dict.fromkeys(names))}: {what}"


if __name__ == "__main__":
    main()
