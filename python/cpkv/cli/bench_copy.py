"""`cpkv bench copy`: how fast pages reach the host and come back, beside peers and targets."""

from pathlib import Path
from typing import Annotated

import typer

from cpkv.bench.copy import (
    COPY_MEASUREMENTS,
    VISIBILITY,
    CopyFigure,
    CopySettings,
    choose_engine,
    machine_of,
    started,
)
from cpkv.cli.copy_figures import copy_table
from cpkv.cli.copy_files import CopyFiles, run_content
from cpkv.cli.figures import counted
from cpkv.cli.numbers import numbers
from cpkv.cli.output import write_out
from cpkv.cli.progress import steps, watched
from cpkv.errors import ConfigError
from cpkv.replay import Request, WorkloadSettings, make_workload, read_trace

_DEFAULTS = CopySettings()
_WORKLOAD = WorkloadSettings(requests=4_000, message_blocks=4.0)


def copy(  # noqa: PLR0913 - one parameter for each option
    *,
    engine: Annotated[str, typer.Option(help="auto, cuda or cpu.")] = "auto",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Measure this only, or these if given again: {', '.join(COPY_MEASUREMENTS)}.  [default: all]",
            show_default=False,
        ),
    ] = None,
    pages: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Pages of a layer, with rows for each number.  [default: 16,128,512; without a GPU 4,16]",
            show_default=False,
        ),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(help="Layers of a forward.  [default: 61; without a GPU 4]", show_default=False),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="How often what something is wanted of is measured, in turns; the rest 3 times.")
    ] = _DEFAULTS.repeats,
    copy_path: Annotated[
        str | None,
        typer.Option(help="How the engine cuda copies: auto, batch, blocks, kernel or each.", show_default=False),
    ] = None,
    peers: Annotated[
        str, typer.Option(help="Whom to compare with: all, plain (no other project's code) or none.")
    ] = _DEFAULTS.peers,
    seconds: Annotated[
        float,
        typer.Option(help="What would begin later than that is not measured; what something is wanted of comes first."),
    ] = _DEFAULTS.seconds,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",  # some releases of typer make `--TRACE` of it otherwise
            metavar="TRACE",
            help="What fragments the host pool: JSON lines as for `cpkv replay`. Without it, a made-up workload.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all figures and samples there, after each measurement."),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write layers, copies, acks and commits there, for Chrome's trace viewer or Perfetto."
        ),
    ] = None,
    picture: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw the last forward there as PNG; needs matplotlib.")
    ] = None,
) -> None:
    """Measure the copies between device and host: KV and index rows of MLA, through a real cache and tier.

    Prints a line for each figure: the median of the repeats, what is wanted of it on an H200, and what
    others' ways to copy did in the same run. Without a GPU threads copy, and the figures say nothing. What
    fails is shown as failed, and the rest goes on.
    """
    chosen = choose_engine(engine)
    settings = CopySettings(
        pages=None if pages is None else numbers(pages, "--pages", "16,128,512"),
        layers=layers,
        repeats=repeats,
        copy_path=copy_path,
        peers=peers,
        seconds=seconds,
    ).fitted(chosen)
    picked = _picked(only)
    if VISIBILITY not in picked and (timeline or picture):
        message = (
            f"--{'timeline' if timeline else 'picture'}: needs the measurement {VISIBILITY!r}, which is not picked"
        )
        raise ConfigError(message)
    files = CopyFiles(json_file=json_file, timeline=timeline, picture=picture, source=trace)
    is_served = any(COPY_MEASUREMENTS[name].serves_requests for name in picked)
    source, requests = _requests(trace) if is_served or trace is not None else ("", ())
    told = f"host pool filled by {source}" if source else "no requests"
    settings = settings.with_requests(requests, source)
    figures: list[tuple[str, CopyFigure]] = []
    with started(settings, chosen) as run:
        about = machine_of(run.platform.describe())
        with steps(len(picked), "measuring") as step:
            for name in picked:
                figures += [(name, figure) for figure in COPY_MEASUREMENTS[name].measure(run)]
                content = run_content(run, about, figures, has_ended=name == picked[-1])
                files.write_figures({"source": told} | content)
                if step is not None:
                    step()
        heading = f"{about['device']}: {counted(run.layers, 'layer')}, {counted(repeats, 'repeat')}, {told}"
        write_out(copy_table(heading, [figure for _, figure in figures]))
        files.write_timeline(run.timeline, {"machine": about, "layers": run.layers})


def _picked(only: list[str] | None) -> list[str]:
    """Return the names of what is to be measured, in the order in which it is."""
    unknown = [name for name in only or [] if name not in COPY_MEASUREMENTS]
    if unknown:
        message = f"--only: got {', '.join(map(repr, unknown))}, want one of {', '.join(COPY_MEASUREMENTS)}"
        raise ConfigError(message)
    return [name for name in COPY_MEASUREMENTS if not only or name in only]


def _requests(trace: str | None) -> tuple[str, tuple[Request, ...]]:
    if trace is None:
        return f"a made-up workload, seed {_WORKLOAD.seed}", tuple(make_workload(_WORKLOAD))
    source = "standard input" if trace == "-" else Path(trace).name
    return source, tuple(watched(read_trace(trace), "reading"))
