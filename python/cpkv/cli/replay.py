"""`cpkv replay`: how much of a request trace a cache of a given size would have found."""

from itertools import islice
from typing import Annotated, Literal

import typer

from cpkv.cli.json_file import JsonFile
from cpkv.cli.output import table, write_out
from cpkv.cli.progress import steps, watched
from cpkv.errors import ConfigError
from cpkv.replay import UNLIMITED, Replay, ReplaySettings, WorkloadSettings, make_workload, read_trace

_DEFAULTS = WorkloadSettings()


def _pages(text: str) -> int:
    """Read a capacity: a number, or `unlimited`."""
    if text == "unlimited":
        return UNLIMITED
    try:
        return int(text)
    except ValueError:
        message = f"got {text!r}, want a number of pages or 'unlimited'"
        raise typer.BadParameter(message) from None


def replay(  # noqa: PLR0913 - one parameter for each option
    *,
    trace: Annotated[
        str | None,
        typer.Argument(
            metavar="TRACE",
            help="JSON lines with timestamp, input_length, output_length and hash_ids; .gz works too, '-' is "
            "standard input. Without it, a made-up workload is replayed.",
            show_default=False,
        ),
    ] = None,
    unit: Annotated[
        Literal["blocks", "tokens"],
        typer.Option(help="blocks: a page is one block id. tokens: every block id becomes 512 tokens."),
    ] = "blocks",
    page_size: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a page, a divisor of 512.  [default: 64; a block with blocks]", show_default=False
        ),
    ] = None,
    key: Annotated[Literal["token", "pair"], typer.Option(help="pair: keys of EAGLE/MTP drafts.")] = "token",
    device_pages: Annotated[
        int,
        typer.Option(
            parser=_pages,
            metavar="PAGES",
            help="Device pages of all lanes together, or 'unlimited'.  [default: unlimited]",
            show_default=False,
        ),
    ] = UNLIMITED,
    host_pages: Annotated[
        int | None,
        typer.Option(
            parser=_pages,
            metavar="PAGES",
            help="Host pages of all lanes together, or 'unlimited'.  [default: no host tier]",
        ),
    ] = None,
    lanes: Annotated[int, typer.Option(help="Lanes that the pages are dealt out to.")] = 1,
    policy: Annotated[
        Literal["lru", "lfu", "slru", "fifo", "mru", "filo", "priority"],
        typer.Option(help="Which pages go first. A trace has no priorities: priority is lru here."),
    ] = "lru",
    limit: Annotated[int | None, typer.Option(help="Requests to replay at most.  [default: all]")] = None,
    segment_pages: Annotated[int, typer.Option(help="Host slots whose rows lie side by side.")] = 1,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all figures and settings there as JSON.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(help=f"Without TRACE: turns to make up.  [default: {_DEFAULTS.requests}]"),
    ] = None,
    sharing: Annotated[
        float | None,
        typer.Option(
            help=f"Without TRACE: share of turns that continue a conversation, 0 to 1.  [default: {_DEFAULTS.sharing}]",
        ),
    ] = None,
    message_blocks: Annotated[
        float | None,
        typer.Option(
            help=f"Without TRACE: mean length of a message in blocks.  [default: {_DEFAULTS.message_blocks}]",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help=f"Without TRACE: equal seeds make equal workloads.  [default: {_DEFAULTS.seed}]"),
    ] = None,
) -> None:
    """Replay a request trace against cache sizes and policies.

    Prints hit ratios, evictions, the CPU time of the cache calls and the memory they needed.
    Every block of a trace counts as 512 tokens.
    """
    settings = ReplaySettings(
        unit=unit,
        page_size=page_size,
        key=key,
        device_pages=device_pages,
        host_pages=host_pages,
        lanes=lanes,
        policy=policy,
        limit=limit,
        segment_pages=segment_pages,
    )
    workload = _workload(trace, requests=requests, sharing=sharing, message_blocks=message_blocks, seed=seed)
    json_out = None if json_file is None else JsonFile(json_file, source=trace)
    if workload is None:
        source = "standard input" if trace == "-" else str(trace)
        loaded = list(watched(read_trace(str(trace), limit=limit), "reading"))
    else:
        source = f"made-up workload, seed {workload.seed}, sharing {workload.sharing}"
        loaded = list(watched(islice(make_workload(workload), limit), "making"))
    with steps(len(loaded), "replaying") as on_request:
        result = Replay(settings).run(loaded, source=source, on_request=on_request)
    write_out(table(result))
    if json_out is not None:
        json_out.write(result.as_json())


def _workload(trace: str | None, **given: float | None) -> WorkloadSettings | None:
    """Return the workload to make up, or `None` if there is a trace."""
    chosen = {name: value for name, value in given.items() if value is not None}
    if trace is None:
        return WorkloadSettings(**chosen)  # type: ignore[arg-type]
    if chosen:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in chosen)
        message = f"{options}: got a trace as well, want one or the other"
        raise ConfigError(message)
    return None
