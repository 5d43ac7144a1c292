"""`cpkv bench gather`: what collecting the last tokens' hidden states costs, beside the gather of all of them."""

from dataclasses import asdict
from typing import Annotated

import typer

from cpkv.bench.copy import machine_of
from cpkv.bench.gather import GatherSettings, choose_device, measure_gather
from cpkv.cli.copy_figures import copy_table
from cpkv.cli.figures import counted
from cpkv.cli.json_file import JsonFile
from cpkv.cli.output import write_out

_DEFAULTS = GatherSettings()


def gather(  # noqa: PLR0913 - one parameter for each option
    *,
    device: Annotated[
        str, typer.Option(help="Where the ranks are: cuda (a GPU and NCCL for each), cpu (gloo), or auto.")
    ] = _DEFAULTS.device,
    ranks: Annotated[int, typer.Option(help="Context-parallel rank processes.")] = _DEFAULTS.ranks,
    tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of a batch for each rank.  [default: 8192; on the CPU 256]", show_default=False),
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(help="Elements of a hidden state, bf16.  [default: 7168; on the CPU 256]", show_default=False),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(
            help="Requests of a batch, with rows for each number given.  [default: 1 and 8]", show_default=False
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(help="How the ranks share a batch: zigzag, interleave, or both one after the other.")
    ] = "both",
    repeats: Annotated[
        int | None,
        typer.Option(help="How often each is timed, in turns.  [default: 200; on the CPU 20]", show_default=False),
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all figures and samples there as JSON.")
    ] = None,
) -> None:
    """Measure the narrow gather, of the last tokens' hidden states, in turns with the full one of all tokens.

    Prints the median of the repeats, in each of which the slowest rank counts, what is wanted of it on GPUs, and
    the full gather beside it; then the bytes that all ranks have sent, and whether both gathers gave the same
    rows, bit by bit. Without a GPU for each rank the times say nothing.
    """
    settings = GatherSettings(
        device=device,
        ranks=ranks,
        tokens=tokens,
        hidden=hidden,
        batches=_DEFAULTS.batches if not batch else tuple(batch),
        splits=_DEFAULTS.splits if split == "both" else (split,),
        repeats=repeats,
    )
    json_out = None if json_file is None else JsonFile(json_file, source=None)
    settings = settings.fitted(choose_device(settings))
    measured = measure_gather(settings)
    about = machine_of(measured.about)
    each = f"{settings.tokens:,} tokens of {settings.hidden:,} bf16 on each of {settings.ranks} ranks"
    heading = f"{about['device']}, {about['backend']}: {each}, {counted(settings.repeats or 0, 'repeat')}"
    write_out(copy_table(heading, measured.figures, ours="last tokens"))
    if json_out is not None:
        figures = [figure.as_json() for figure in measured.figures]
        json_out.write({"settings": asdict(settings), "machine": about, "figures": figures})
