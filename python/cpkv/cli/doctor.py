"""`cpkv doctor`: whether this machine has what cpkv needs."""

from typing import Annotated, Final

import typer

from cpkv._core import __version__
from cpkv.cli.json_file import JsonFile
from cpkv.cli.output import write_out
from cpkv.doctor import Check, examine, has_failed
from cpkv.errors import ConfigError

FAILED: Final = 1


def doctor(
    *,
    ranks: Annotated[int, typer.Option(help="Ranks that share the memory of this host.")] = 1,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write all checks there as JSON.")
    ] = None,
) -> None:
    """Look whether this machine has what cpkv needs, and say what would be better.

    Prints a line for each check: ok, warn or fail, its name and what was seen; then, unless it is ok,
    what is wanted and a hint. Warnings are what makes cpkv slower or takes a feature away. Changes
    nothing. Exits with 1 if a check has failed.
    """
    if ranks < 1:
        message = f"ranks is {ranks}, want at least 1"
        raise ConfigError(message)
    json_out = None if json_file is None else JsonFile(json_file, source=None)
    checks = examine(ranks)
    write_out(_lines(checks))
    if json_out is not None:
        rows: list[object] = [check.as_json() for check in checks]
        json_out.write({"cpkv": __version__, "ranks": ranks, "failed": has_failed(checks), "checks": rows})
    if has_failed(checks):
        raise typer.Exit(FAILED)


def _lines(checks: list[Check]) -> str:
    width = max(len(check.name) for check in checks)
    return "".join(f"{check.state:<4}  {check.name:<{width}}  {_told(check)}\n" for check in checks)


def _told(check: Check) -> str:
    wanted = f"want {check.wanted}" if check.wanted and check.hint else ""
    return " ".join("; ".join(part for part in (check.seen, wanted, check.hint) if part).split())
