"""`cpkv bench`: what the calls of a request's life cost on this machine, beside their targets."""

from dataclasses import replace
from itertools import islice
from typing import Annotated

import typer

from cpkv.bench import MEASUREMENTS, BenchSettings, Figure, machine
from cpkv.cli.figures import counted, figure_table
from cpkv.cli.json_file import JsonFile
from cpkv.cli.output import write_out
from cpkv.cli.progress import steps, watched
from cpkv.errors import ConfigError
from cpkv.replay import Request, WorkloadSettings, make_workload, read_trace

_DEFAULTS = BenchSettings()
_WORKLOAD = WorkloadSettings(requests=10_000)

bench = typer.Typer(help="Measure cpkv on this machine.", no_args_is_help=True, rich_markup_mode=None)


@bench.callback()
def _group() -> None:
    """Measure cpkv on this machine."""


@bench.command()
def control(  # noqa: PLR0913 - one parameter for each option
    *,
    trace: Annotated[
        str | None,
        typer.Option(
            "--trace",  # some releases of typer make `--TRACE` of it otherwise
            metavar="TRACE",
            help="JSON lines as for `cpkv replay`; .gz works too, '-' is standard input. Without it, a made-up "
            "workload is served.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Measure this only, or these if given again: {', '.join(MEASUREMENTS)}.  [default: all]",
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(help="How often everything is measured.")] = _DEFAULTS.repeats,
    limit: Annotated[int | None, typer.Option(help="Requests to serve at most.  [default: all]")] = None,
    ranks: Annotated[int, typer.Option(help="Rank processes on one commit log.")] = _DEFAULTS.ranks,
    operations: Annotated[int, typer.Option(help="Operations that are open while they tick.")] = _DEFAULTS.operations,
    ticks: Annotated[int, typer.Option(help="Ticks of each rank for each skew and repeat.")] = _DEFAULTS.ticks,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all figures and samples there as JSON.")
    ] = None,
) -> None:
    """Measure the control path: the calls that an engine makes, without the model and the copies.

    Prints a line for each figure: least and median of the repeats, the most that is wanted of the
    median, and the ratio of the two, at most 1 where the target is met. Times are CPU time of the
    process, those of ranks wall time.
    """
    picked = _picked(only)
    if limit is not None and limit < 1:
        message = f"limit is {limit}, want at least 1"
        raise ConfigError(message)
    # Sizes are refused before anything is read.
    settings = BenchSettings(repeats=repeats, ranks=ranks, operations=operations, ticks=ticks)
    json_out = None if json_file is None else JsonFile(json_file, source=trace)
    is_served = any(MEASUREMENTS[name].serves_requests for name in picked)
    source, requests = _requests(trace, limit) if is_served or trace is not None else ("no requests", ())
    settings = replace(settings, requests=requests)
    figures: dict[str, list[Figure]] = {}
    with steps(len(picked), "measuring") as step:
        for name in picked:
            figures[name] = list(MEASUREMENTS[name].measure(settings))
            if step is not None:
                step()
    measured = [figure for several in figures.values() for figure in several]
    heading = f"{source}: {counted(repeats, 'repeat')}, {counted(int(machine()['cores']), 'core')}"
    write_out(figure_table(heading, measured))
    if json_out is not None:
        rows = [{"measurement": name} | figure.as_json() for name, several in figures.items() for figure in several]
        sizes = {"repeats": repeats, "limit": limit, "ranks": ranks, "operations": operations, "ticks": ticks}
        about = {"source": source, "requests": len(requests), "settings": sizes, "machine": machine()}
        json_out.write(about | {"figures": rows})


def _picked(only: list[str] | None) -> list[str]:
    """Return the names of what is to be measured, in the order of the table."""
    unknown = [name for name in only or [] if name not in MEASUREMENTS]
    if unknown:
        message = f"--only: got {', '.join(map(repr, unknown))}, want one of {', '.join(MEASUREMENTS)}"
        raise ConfigError(message)
    return [name for name in MEASUREMENTS if not only or name in only]


def _requests(trace: str | None, limit: int | None) -> tuple[str, tuple[Request, ...]]:
    if trace is None:
        source = f"made-up workload, seed {_WORKLOAD.seed}, sharing {_WORKLOAD.sharing}"
        requests = tuple(watched(islice(make_workload(_WORKLOAD), limit), "making"))
    else:
        source = "standard input" if trace == "-" else trace
        requests = tuple(watched(read_trace(trace, limit=limit), "reading"))
    return f"{source}, {counted(len(requests), 'request')}", requests
