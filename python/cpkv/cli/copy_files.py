"""The files that a benchmark of copies writes: figures, a timeline, and a picture of it."""

from collections.abc import Mapping, Sequence
from io import BytesIO

from cpkv.bench.copy import CopyFigure, Run, Timeline, check_drawable, draw
from cpkv.cli.json_file import JsonFile


class CopyFiles:
    """What was asked for, refused before the work if it could not be written after it.

    Args:
        json_file: For the figures.
        timeline: For the timeline.
        picture: For its picture, as PNG.
        source: A file that is read in the same work.

    Raises:
        InputError: A file cannot be written, or is the source.
        ConfigError: No pictures can be drawn here.
    """

    def __init__(
        self, *, json_file: str | None, timeline: str | None, picture: str | None, source: str | None = None
    ) -> None:
        if picture is not None:
            check_drawable()
        self._files = {
            option: JsonFile(name, source=source, option=option)
            for option, name in (("--json", json_file), ("--timeline", timeline), ("--picture", picture))
            if name is not None
        }

    def write_figures(self, content: dict[str, object]) -> None:
        """Write what was measured so far."""
        if "--json" in self._files:
            self._files["--json"].write(content)

    def write_timeline(self, timeline: Timeline, about: Mapping[str, object]) -> None:
        """Write a timeline, and draw its last forward."""
        drawn = timeline.as_json(about)
        if "--timeline" in self._files:
            self._files["--timeline"].write(drawn)
        if "--picture" in self._files and timeline.forwards:
            png = BytesIO()
            draw(drawn, png)
            self._files["--picture"].write_bytes(png.getvalue())


def run_content(
    run: Run,
    about: Mapping[str, str | int],
    figures: Sequence[tuple[str, CopyFigure]],
    *,
    has_ended: bool,
    **settings: object,
) -> dict[str, object]:
    """Return what a run has measured so far, ready for `json.dump`.

    Args:
        run: Which one.
        about: The machine.
        figures: Each with the measurement that it is of.
        has_ended: Whether nothing more will be measured. The run is complete if also nothing was left out or failed.
        settings: What else was set, by name.
    """
    return {
        "is_complete": has_ended and all(figure.is_measured for _, figure in figures),
        "settings": {
            "engine": run.platform.name,
            "pages": list(run.pages),
            "layers": run.layers,
            "repeats": run.repeats,
            "copy_path": run.settings.copy_path,
            "peers": run.settings.peers,
            "seconds": run.settings.seconds,
            **settings,
        },
        "machine": dict(about),
        "engine": run.explained,
        "totals": dict(run.totals),
        "figures": [{"measurement": name} | figure.as_json() for name, figure in figures],
    }
