"""One line of the doctor."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, what was seen, and what is wanted.

    Attributes:
        name: What was looked at.
        state: `"ok"`; `"warn"`: cpkv works, but slower, or not with everything; `"fail"`: it does not.
        seen: What was seen.
        wanted: What is wanted, empty if anything is right.
        hint: What to do about it, empty if it is ok.
    """

    name: str
    state: State
    seen: str
    wanted: str = ""
    hint: str = ""

    def as_json(self) -> dict[str, object]:
        """Return everything by name."""
        return {
            "name": self.name, "state": self.state, "seen": self.seen, "wanted": self.wanted, "hint": self.hint,
        }  # fmt: skip


def has_failed(checks: Iterable[Check]) -> bool:
    """Whether cpkv does not work here."""
    return any(check.state == "fail" for check in checks)
