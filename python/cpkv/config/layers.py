"""Where settings come from, one layer on top of another."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from cpkv.config.checks import KINDS, joint_conflicts, single_conflicts
from cpkv.errors import ConfigError

PREFIX: Final = "CPKV_"
OTHER_VARIABLES: Final = frozenset({"CPKV_COPY_PATH", "CPKV_PROVE_STEPS", "CPKV_TRACES"})
OTHER_PREFIXES: Final = ("CPKV_DEBUG_", "CPKV_TEST_")
"""Variables that are somebody else's."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Some settings, where each comes from, and what is wrong with their names."""

    values: dict[str, Any] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict)
    conflicts: list[str] = field(default_factory=list)


def explicit(values: Mapping[str, Any]) -> Layer:
    """Take settings from code."""
    conflicts = [
        f"{name} is {value!r} and names no setting, want {_nearest(name)}"
        for name, value in values.items()
        if name not in KINDS
    ]
    return Layer({name: value for name, value in values.items() if name in KINDS}, {}, conflicts)


def from_environment(environ: Mapping[str, str]) -> Layer:
    """Take settings from `CPKV_<SETTING>` variables."""
    layer = Layer()
    for variable, text in environ.items():
        name = variable.removeprefix(PREFIX).lower()
        if variable == _variable(name) and name in KINDS:
            layer.values[name] = KINDS[name].parse(text)
            layer.sources[name] = variable
        elif _is_ours(variable):
            layer.conflicts.append(f"{variable} is {text!r} and names no setting, want {_nearest(name, _variable)}")
    return layer


def from_json(source: str | os.PathLike[str]) -> Layer:
    """Take settings from JSON: a string is the text itself, a path is that of a file.

    Raises:
        ConfigError: It is no JSON object, or cannot be read.
    """
    text, place = (source, "the JSON text") if isinstance(source, str) else _read(Path(source))
    try:
        pairs = json.loads(text, object_pairs_hook=_Pairs)
    except (ValueError, RecursionError) as error:
        hint = "" if text.lstrip().startswith("{") else "; a file is given as a pathlib.Path"
        message = f"{place} is no JSON ({error}), want an object of settings{hint}"
        raise ConfigError(message) from error
    if not isinstance(pairs, _Pairs):
        message = f"{place} is {pairs!r}, want an object of settings"
        raise ConfigError(message)
    layer = Layer()
    for name, value in pairs:
        if name not in KINDS:
            layer.conflicts.append(f"key {name!r} of {place} is {value!r} and names no setting, want {_nearest(name)}")
        elif name in layer.values:
            layer.conflicts.append(f"key {name!r} of {place} is there twice, want it once")
        else:
            layer.values[name] = value
            layer.sources[name] = f"key {name!r} of {place}"
    return layer


def combined(base: Mapping[str, Any], *layers: Layer) -> dict[str, Any]:
    """Put layers on top of settings that are right, the last one on top.

    Raises:
        ConfigError: With everything that is wrong in any layer, and with all of them together.
    """
    values, sources, conflicts = dict(base), dict[str, str](), list[str]()
    for layer in layers:
        conflicts += layer.conflicts
        # What another layer covers is checked as well: it was written to be right.
        conflicts += [conflict.told(layer.sources) for conflict in single_conflicts(layer.values)]
        values |= layer.values
        sources = {name: source for name, source in sources.items() if name not in layer.values} | layer.sources
    conflicts += [conflict.told(sources) for conflict in joint_conflicts(values)]
    if conflicts:
        raise ConfigError("; ".join(conflicts))
    return values


class _Pairs(list[tuple[str, Any]]):
    """The keys and values of a JSON object, as they are written."""


def _read(path: Path) -> tuple[str, str]:
    try:
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read ({error}), want a file of JSON"
        raise ConfigError(message) from error


def _is_ours(variable: str) -> bool:
    return variable.startswith(PREFIX) and variable not in OTHER_VARIABLES and not variable.startswith(OTHER_PREFIXES)


def _variable(name: str) -> str:
    return f"{PREFIX}{name.upper()}"


def _nearest(name: str, shown: Callable[[str], str] = str) -> str:
    nearest = [shown(known) for known in get_close_matches(name, KINDS)]
    return " or ".join(nearest) or f"one of {', '.join(map(shown, KINDS))}"
