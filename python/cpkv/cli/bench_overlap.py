"""`cpkv bench overlap`: how much of a backup's time the forward hides, and what that costs the forward."""

from typing import Annotated

import typer

from cpkv.bench.copy import CopyFigure, CopySettings, choose_engine, machine_of, measure_counts
from cpkv.bench.overlap import OverlapSettings, measure_share, started
from cpkv.cli.copy_figures import copy_table
from cpkv.cli.copy_files import CopyFiles, run_content
from cpkv.cli.figures import counted
from cpkv.cli.numbers import numbers
from cpkv.cli.output import write_out
from cpkv.cli.progress import steps

_DEFAULTS = OverlapSettings()
_SHARES = ",".join(map(str, _DEFAULTS.shares))


def overlap(  # noqa: PLR0913 - one parameter for each option
    *,
    engine: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    shares: Annotated[
        str,
        typer.Option(
            metavar="N,N,...", help="Percent of a layer's time that its copy takes, with rows for each number."
        ),
    ] = _SHARES,
    pages: Annotated[
        int | None,
        typer.Option(help="Pages of a layer.  [default: 512; without a GPU 16]", show_default=False),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(
            help="Layers of the target; the draft has one.  [default: 61; without a GPU 4]", show_default=False
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often every way is measured, in turns.")] = _DEFAULTS.copies.repeats,
    copy_path: Annotated[
        str | None,
        typer.Option(help="How the engine cuda copies: auto, batch, blocks, kernel or each.", show_default=False),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="What would begin later than that is not measured.")
    ] = _DEFAULTS.copies.seconds,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all figures and samples there, after each share."),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write layers, copies, acks and commits of the last forward of each share there, for Chrome's trace "
            "viewer or Perfetto.",
        ),
    ] = None,
    picture: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the last forward there as PNG; needs matplotlib.")
    ] = None,
) -> None:
    """Measure how much of a backup's time lies within the forward, and how much slower that makes it.

    Layers are matrix products, as long as the shares say. Forwards without a backup, with one layer by layer, and
    with one of all layers behind the forward take turns. Prints a line for each figure: the median of the repeats,
    what is wanted of it on an H200, and the other ways. Without a GPU threads copy, and the figures say nothing.
    What fails is shown as failed, and the rest goes on.
    """
    chosen = choose_engine(engine)
    settings = OverlapSettings(
        shares=numbers(shares, "--shares", _SHARES),
        copies=CopySettings(
            pages=None if pages is None else (pages,),
            layers=layers,
            repeats=repeats,
            copy_path=copy_path,
            peers="none",
            seconds=seconds,
        ),
    )
    files = CopyFiles(json_file=json_file, timeline=timeline, picture=picture)
    figures: list[tuple[str, CopyFigure]] = []
    with started(settings.copies.fitted(chosen), chosen) as run:
        about = machine_of(run.platform.describe())
        with steps(len(settings.shares), "measuring") as step:
            for share in settings.shares:
                figures += [(f"{share} %", figure) for figure in measure_share(run, share)]
                files.write_figures(run_content(run, about, figures, has_ended=False, shares=settings.shares))
                if step is not None:
                    step()
        figures += [("counts", figure) for figure in measure_counts(run)]
        files.write_figures(run_content(run, about, figures, has_ended=True, shares=settings.shares))
        heading = (
            f"{about['device']}: {counted(run.layers, 'layer')} and one of a draft, "
            f"{counted(run.pages[-1], 'page')} a layer, {counted(repeats, 'repeat')}"
        )
        write_out(copy_table(heading, [figure for _, figure in figures]))
        files.write_timeline(run.timeline.last_of_each(), {"machine": about, "layers": run.layers})
