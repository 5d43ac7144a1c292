"""`cpkv demo`: a small model on context-parallel ranks, whose answers do not depend on what was cached."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from cpkv.cli.json_file import JsonFile
from cpkv.cli.output import write_out
from cpkv.errors import ConfigError

if TYPE_CHECKING:
    from cpkv.demo import Verdict
    from cpkv.demo.run import Watch
    from cpkv.demo.watching import Progress

DIFFERS: Final = 1
_NAMES: Final = 2


def demo(  # noqa: PLR0913 - one parameter for each option
    *,
    ranks: Annotated[int, typer.Option(help="Context-parallel rank processes.")] = 4,
    page_size: Annotated[int, typer.Option(help="Tokens of a page.")] = 16,
    split: Annotated[
        str, typer.Option(help="How the ranks share a prompt: zigzag, interleave, or both one after the other.")
    ] = "both",
    device: Annotated[str, typer.Option(help="Where the model runs: cpu or cuda.")] = "cpu",
    folder: Annotated[
        str | None,
        typer.Option(
            "--out", metavar="FOLDER", help="Where the timeline goes.  [default: a new folder]", show_default=False
        ),
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write all results there.")] = None,
) -> None:
    """Serve the same prompts cold, hot, restored and aborted, and compare tokens, logits and bytes.

    Exits with 1 if anything differs, or if a scenario is not what it is called.
    """
    if find_spec("torch") is None:
        message = "the demo needs torch, which is not installed: try make demo, or pip install 'cpkv[torch]'"
        raise ConfigError(message)
    from cpkv.demo import DemoSettings, run_demo  # noqa: PLC0415 - imports torch
    from cpkv.demo.run import SPLITS  # noqa: PLC0415 - the same

    settings = DemoSettings(
        ranks=ranks, page_size=page_size, splits=SPLITS if split == "both" else (split,), device=device
    )
    file = JsonFile(json_file, source=None) if json_file is not None else None
    place = Path(folder) if folder is not None else Path(tempfile.mkdtemp(prefix="cpkv-demo-"))
    with _watched(settings.ranks) as watch:
        verdict = run_demo(settings, place, watch=watch)
    if file is not None:
        file.write(verdict.as_json())
    write_out(_text(verdict, place, is_on_gpu=device != "cpu"))
    if verdict.problems:
        raise typer.Exit(DIFFERS)


_HEADINGS: Final = (
    "split",
    "scenario",
    "tokens, logits",
    "acceptance",
    "from device",
    "from host",
    "pages",
    "wrong",
    "seconds",
)


def _text(verdict: "Verdict", folder: Path, *, is_on_gpu: bool) -> str:
    from cpkv.demo.picture import is_drawable  # noqa: PLC0415 - imports torch
    from cpkv.demo.scenarios import LINK_BYTES_PER_S  # noqa: PLC0415 - the same

    rows = [
        (
            row.split,
            row.scenario,
            "equal" if row.is_equal else "DIFFER",
            f"{row.acceptance_length:.2f}",
            f"{row.device_hit_tokens}",
            f"{row.host_hit_tokens}",
            f"{row.pages}",
            f"{row.wrong_pages}",
            f"{row.seconds:.1f}",
        )
        for row in verdict.rows
    ]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in (_HEADINGS, *rows)]
    hidden = "not known"
    if verdict.hidden is not None:
        hidden = f"{verdict.hidden:.0%} of their time"
        if not is_on_gpu:
            hidden += f", over a link slowed down to {LINK_BYTES_PER_S / 1e6:.0f} MB/s"
    facts = {
        "pages seen partial": f"{sum(row.wrong_pages for row in verdict.rows)} of "
        f"{sum(row.pages for row in verdict.rows)}, each compared byte by byte",
        "all-layer fallbacks": f"{verdict.all_layer_forwards}",
        "backups behind compute": hidden,
        "collectives of the cache": f"{verdict.other_collectives}",
        "timeline": f"{folder / 'timeline.json'}",
        "picture": f"{folder / 'timeline.png'}" if is_drawable() else "none: try pip install 'cpkv[plots]'",
    }
    lines += ["", *(f"{name:<25}{value}" for name, value in facts.items()), ""]
    lines += verdict.problems or [f"all {len(verdict.rows)} scenarios are equal"]
    return "\n".join(lines) + "\n"


def _aligned(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    """Names to the left, figures to the right."""
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if place < _NAMES else cell.rjust(width)


@contextmanager
def _watched(ranks: int) -> Iterator["Watch | None"]:
    """Show what each rank has computed, copied and committed, on standard error and only if it is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from cpkv.demo.scenarios import SCENARIOS  # noqa: PLC0415 - imports torch

    with Live(console=Console(stderr=True), transient=True, auto_refresh=False) as live:

        def watch(split: str, progress: "Sequence[Progress]") -> None:
            table = Table(box=None, pad_edge=False)
            layers = len(progress[0].seen().computed)
            names = [*(f"layer {layer}" for layer in range(layers - 1)), "draft"]
            for name in (split, "scenario", "steps", *names, "commits"):
                table.add_column(name, justify="left" if name in {split, "scenario"} else "right")
            for rank in range(ranks):
                seen = progress[rank].seen()
                cells = [f"{done} ▸ {copied}" for done, copied in zip(seen.computed, seen.copied, strict=True)]
                table.add_row(f"rank {rank}", SCENARIOS[seen.scenario], str(seen.steps), *cells, str(seen.commits))
            table.caption = "each layer: forwards computed ▸ copied to the host"
            live.update(table, refresh=True)

        yield watch
