"""Print tables from what `cpkv bench copy --json` or `cpkv bench overlap --json` wrote, and draw a timeline.

python benchmarks/copy_table.py copy.json
python benchmarks/copy_table.py copy.json --timeline timeline.json --picture docs/copy-timeline.png
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cpkv.bench.copy import draw, faults
from cpkv.cli.copy_figures import number

TOLERANCE_US = 50.0
"""How far the clocks of the GPU and of the thread may be apart."""
ABSENT = "not there"


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
    """Return the lines of the page: machine, a table for each measurement, notes."""
    machine = dict(written["machine"])
    yield f"`{machine.pop('command')}`, {machine.pop('date')}. " + ", ".join(
        f"{name} {value}" for name, value in machine.items()
    )
    if not written["is_complete"]:
        yield "\n**The run did not come to its end.**"
    for name in dict.fromkeys(figure["measurement"] for figure in written["figures"]):
        figures = [figure for figure in written["figures"] if figure["measurement"] == name]
        yield f"\n### {name}\n"
        yield from table(figures)
        notes = dict.fromkeys(note for figure in figures for note in notes_of(figure))
        yield from (f"\n- {note}" if place == 0 else f"- {note}" for place, note in enumerate(notes))
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


def notes_of(figure: dict[str, Any]) -> Iterator[str]:
    """Return what is to be said of a figure."""
    if figure["error"]:
        yield f"{figure['name']}: failed: {figure['error']}"
    if figure["note"]:
        yield f"{figure['name']}: {figure['note']}"
    for name, peer in figure["peers"].items():
        if peer["error"]:
            yield f"{name}: {peer['error']}"
        if peer["note"]:
            yield f"{figure['name']}: {name}: {peer['note']}"


if __name__ == "__main__":
    main()
