"""What is wrong with settings: each by itself, and all of them together."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cpkv._core import POLICIES, CacheManager
from cpkv.config.kinds import Choice, Flag, Kind, Seconds, Whole
from cpkv.errors import ConfigError

KINDS: Final[Mapping[str, Kind]] = {
    "device_pages": Whole(or_none=True),
    "page_size": Whole(),
    "key": Choice(("token", "pair")),
    "lanes": Whole(),
    "device_pool": Choice(("owned", "external")),
    "host_slots": Whole(or_none=True),
    "segment_pages": Whole(),
    "policy": Choice(POLICIES),
    "copies": Choice(("assumed", "tracked")),
    "draft": Flag(),
    "copy_deadline_s": Seconds(),
    "events": Flag(),
    "write": Choice(("through", "selective", "back")),
    "write_uses": Whole(),
    "clean_pages": Whole(),
    "engine": Choice(("auto", "cuda", "cpu", "manual")),
    "log_warning_s": Seconds(),
    "log_deadline_s": Seconds(),
}
"""Every setting, in the order in which they are shown."""

_NOT_THE_MANAGERS: Final = frozenset({"engine", "log_warning_s", "log_deadline_s"})


@dataclass(frozen=True, slots=True)
class Conflict:
    """What is wrong with some settings: the value seen and the value wanted."""

    text: str
    settings: frozenset[str]

    def told(self, sources: Mapping[str, str]) -> str:
        """Return the text, with where the values come from as far as that is known."""
        known = [f"{name} from {sources[name]}" for name in KINDS if name in self.settings and name in sources]
        return f"{self.text} ({', '.join(known)})" if known else self.text


def manager_keywords(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a `CacheManager` takes, by the names that it has for them."""
    return {
        "copy_deadline" if name == "copy_deadline_s" else name: value
        for name, value in values.items()
        if name not in _NOT_THE_MANAGERS
    }


def single_conflicts(values: Mapping[str, Any]) -> list[Conflict]:
    """Look at each value by itself."""
    wanted = {name: KINDS[name].wanted(value) for name, value in values.items()}
    return [
        Conflict(f"{name} is {values[name]!r}, want {want}", frozenset({name}))
        for name, want in wanted.items()
        if want is not None
    ]


def joint_conflicts(values: Mapping[str, Any]) -> Iterator[Conflict]:
    """Look at ranges, and at what goes together; what is wrong by itself is left out."""
    wrong = frozenset().union(*(conflict.settings for conflict in single_conflicts(values)))
    right = {name: KINDS[name].kept(value) for name, value in values.items() if name not in wrong}
    for text in (*_core_conflicts(right), *_log_conflicts(right)):
        settings = frozenset(re.findall(r"\w+", text)) & KINDS.keys()
        # The core had to take a default for what is wrong, and may have found a conflict with it.
        if settings <= right.keys():
            yield Conflict(text, settings)


def _core_conflicts(right: Mapping[str, Any]) -> list[str]:
    """Ask the core, which knows the rules. Making a cache takes microseconds, whatever its size."""
    keywords = manager_keywords(right)
    is_size_known = keywords.get("device_pages") is not None
    if not is_size_known:
        keywords["device_pages"] = keywords.get("lanes", 1)
    try:
        CacheManager(**keywords)
    except ConfigError as error:
        # All of its words are known by now: none has a semicolon.
        conflicts = str(error).split("; ")
        return [conflict for conflict in conflicts if is_size_known or not conflict.startswith("device_pages ")]
    return []


def _log_conflicts(right: Mapping[str, Any]) -> list[str]:
    warning, deadline = right.get("log_warning_s"), right.get("log_deadline_s")
    if warning is None or deadline is None or warning <= deadline:
        return []
    return [f"log_warning_s is {warning}, want at most log_deadline_s, which is {deadline}"]
