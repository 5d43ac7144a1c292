"""What a setting may be: how a text is read, what is refused, what is kept."""

from dataclasses import dataclass
from operator import index
from typing import Any, Final, Protocol

MOST_SECONDS: Final = 1e9
"""Thirty years: a deadline that never comes, and still a number of nanoseconds."""

_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


class Kind(Protocol):
    """The values of a setting."""

    def parse(self, text: str) -> object:
        """Return what a text stands for; the text itself if for nothing, to be refused as such."""

    def wanted(self, value: Any) -> str | None:  # noqa: ANN401 - it is here to be looked at
        """Return what is wanted instead of a value, `None` if it is right."""

    def kept(self, value: Any) -> object:  # noqa: ANN401 - a right one
        """Return a right value in the type that it has in the settings."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number. What range it has to be in the core knows."""

    or_none: bool = False

    def parse(self, text: str) -> object:
        """Read decimal digits, or `none`."""
        if self.or_none and text.lower() == "none":
            return None
        try:
            return int(text)
        except ValueError:
            return text

    def wanted(self, value: Any) -> str | None:  # noqa: ANN401 - see Kind
        """Refuse bools, and what does not fit the core's arithmetic."""
        if value is None and self.or_none:
            return None
        whole = "a whole number or none" if self.or_none else "a whole number"
        if isinstance(value, bool):
            return whole
        try:
            number = index(value)
        except TypeError:
            return whole
        return None if -(2**63) <= number < 2**63 else f"{whole} of 64 bits"

    def kept(self, value: Any) -> int | None:  # noqa: ANN401 - see Kind
        """Keep an `int`, whatever it was counted in."""
        return None if value is None else index(value)


@dataclass(frozen=True, slots=True)
class Seconds:
    """A time that something takes at most."""

    def parse(self, text: str) -> object:
        """Read a decimal number."""
        try:
            return float(text)
        except ValueError:
            return text

    def wanted(self, value: Any) -> str | None:  # noqa: ANN401 - see Kind
        """Refuse bools, NaN, and what is no time to wait."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return "a number of seconds"
        return None if 0 < value <= MOST_SECONDS else f"more than 0 and at most {MOST_SECONDS:.0f} seconds"

    def kept(self, value: float) -> float:
        """Keep a `float`."""
        return float(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    def parse(self, text: str) -> object:
        """Read `true`, `false`, and the other words for them."""
        word = text.lower()
        return True if word in _TRUE else False if word in _FALSE else text

    def wanted(self, value: Any) -> str | None:  # noqa: ANN401 - see Kind
        """Refuse numbers, too."""
        return None if isinstance(value, bool) else "true or false"

    def kept(self, value: bool) -> bool:  # noqa: FBT001 - the value itself
        """Keep it."""
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of some words."""

    words: tuple[str, ...]

    def parse(self, text: str) -> object:
        """Take it as it is."""
        return text

    def wanted(self, value: Any) -> str | None:  # noqa: ANN401 - see Kind
        """Refuse other words."""
        is_known = isinstance(value, str) and value in self.words
        return None if is_known else f"one of {', '.join(self.words)}"

    def kept(self, value: str) -> str:
        """Keep it."""
        return value
