"""The commands. Each is a file of its own; this one only gathers them."""

from typing import Annotated

import typer

from cpkv._core import __version__
from cpkv.cli.bench import bench
from cpkv.cli.bench_copy import copy
from cpkv.cli.bench_gather import gather
from cpkv.cli.bench_overlap import overlap
from cpkv.cli.demo import demo
from cpkv.cli.doctor import doctor
from cpkv.cli.replay import replay

app = typer.Typer(
    help="KV-cache manager for long-context LLM prefill.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(replay)
app.command()(demo)
app.command()(doctor)
bench.command()(copy)
bench.command()(overlap)
bench.command()(gather)
app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - the form that typer calls
    if wanted:
        typer.echo(f"cpkv {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """KV-cache manager for long-context LLM prefill."""
