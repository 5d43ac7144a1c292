"""Figures that were measured before, in a file of the user's cache directory.

One file for all machines, by what tells them apart. It is only a cache: what cannot be read is measured
again, and what cannot be written is not.
"""

import json
import logging
import math
import os
import tempfile
from pathlib import Path as FilePath
from typing import Any, Final

from cpkv.device.cuda.arrays import PATHS
from cpkv.device.cuda.figures import DIRECTIONS, Figure, Figures

FORMAT: Final = "cpkv copy costs, 1"
_logger: Final = logging.getLogger("cpkv.device")


def cost_file() -> FilePath:
    """Return where figures are kept: below `XDG_CACHE_HOME`, or `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118 - Path.home() raises without a home
    return FilePath(base) / "cpkv" / "copy-costs.json"


def read_figures(file: FilePath, machine: str) -> Figures | None:
    """Return the figures of a machine; `None` if there are none, or with a warning if they are broken."""
    machines = _read(file)
    if machine not in machines:
        return None
    try:
        return _figures(machines[machine])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        _logger.warning("the figures of %r in %s are ignored: %s: %s", machine, file, type(error).__name__, error)
        return None


def write_figures(file: FilePath, machine: str, figures: Figures) -> None:
    """Keep the figures of a machine beside those of others; a warning if that cannot be done."""
    machines = _read(file)
    machines[machine] = {
        "source": figures.source,
        "runs": {
            direction: {path: [_listed(one) for one in ones] for path, ones in by_path.items()}
            for direction, by_path in figures.runs.items()
        },
        "blocks": {direction: _listed(one) for direction, one in figures.blocks.items()},
    }
    text = json.dumps({"format": FORMAT, "machines": machines}, indent=1)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Ranks that start together write one after the other, each a whole file.
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=file.parent, delete=False) as new:
            new.write(text)
        FilePath(new.name).replace(file)
    except OSError as error:
        _logger.warning("figures are not kept: %s", error)


def _read(file: FilePath) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        _logger.warning("%s is ignored: %s", file, error)
        return {}
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        _logger.warning("%s is ignored: it is not of the format %r", file, FORMAT)
        return {}
    machines = content.get("machines")
    return machines if isinstance(machines, dict) else {}


def _listed(figure: Figure) -> list[float]:
    return [figure.size, figure.link_us, figure.submit_us]


def _figures(entry: Any) -> Figures:  # noqa: ANN401 - JSON
    runs, blocks = entry["runs"], entry["blocks"]
    return Figures(
        source=str(entry["source"]),
        runs={
            direction: {
                path: tuple(sorted((_figure(one) for one in runs[direction][path]), key=lambda one: one.size))
                for path in PATHS
                if path in runs[direction]
            }
            for direction in DIRECTIONS
        },
        blocks={direction: _figure(blocks[direction]) for direction in DIRECTIONS if direction in blocks},
    )


def _figure(entry: Any) -> Figure:  # noqa: ANN401 - JSON
    size, link_us, submit_us = entry
    figure = Figure(int(size), float(link_us), float(submit_us))
    for value in (figure.size, figure.link_us, figure.submit_us):
        if not (math.isfinite(value) and value > 0):
            message = f"a figure is {entry}, want positive numbers"
            raise ValueError(message)
    return figure
