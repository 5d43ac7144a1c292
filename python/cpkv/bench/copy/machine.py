"""What a run of copies was measured on, and how: no path of any file is in it."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cpkv.bench.machine import machine

FILE_OPTIONS: Final = ("--json", "--timeline", "--picture", "--trace")


def command_without_files(arguments: Sequence[str]) -> str:
    """Return a command with `FILE` for each file."""
    said, is_file = [Path(arguments[0]).name], False
    for argument in arguments[1:]:
        name, equals, _ = argument.partition("=")
        if is_file:
            said.append("FILE")
        elif equals and name in FILE_OPTIONS:
            said.append(f"{name}=FILE")
        else:
            said.append(argument)
        is_file = argument in FILE_OPTIONS
    return " ".join(said)


def machine_of(described: Mapping[str, str]) -> dict[str, str | int]:
    """Return date, processor, versions, command, and what the platform says of itself."""
    return machine() | {"command": command_without_files(sys.argv)} | dict(described)
