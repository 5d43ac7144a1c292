"""What a replay is run with."""

from dataclasses import dataclass
from typing import Final, Literal

from cpkv._core import MOST_LANES, POLICIES
from cpkv.errors import ConfigError

UNLIMITED: Final = 2**32 - 2
"""More pages than any trace needs: the most that page ids can name. Costs memory only as used."""

BLOCK_TOKENS: Final = 512
"""Tokens that one block id of a trace stands for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplaySettings:
    """The cache to replay against, and how to read the trace.

    Args:
        unit: `"blocks"`: a page is one block id. `"tokens"`: every block id becomes 512 tokens.
        page_size: Tokens in a page, a divisor of 512. With blocks a page is a block, and only 512, or
            1 (block id), can be given.
        key: `"token"` or `"pair"`.
        device_pages: Device pages of all lanes together.
        host_pages: Host pages of all lanes together; `None` for no host tier.
        lanes: Shares of the pages.
        policy: Which pages go first; one of `cpkv.POLICIES`.
        limit: Requests to serve at most; `None` for all.
        segment_pages: Host slots whose rows lie side by side; the host pages of a lane are rounded
            down to whole segments.

    Raises:
        ConfigError: With everything that is wrong.
    """

    unit: Literal["blocks", "tokens"] = "blocks"
    page_size: int | None = None
    key: Literal["token", "pair"] = "token"
    device_pages: int = UNLIMITED
    host_pages: int | None = None
    lanes: int = 1
    policy: str = "lru"
    limit: int | None = None
    segment_pages: int = 1

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        conflicts = [*self._choice_conflicts(), *self._page_size_conflicts(), *self._capacity_conflicts()]
        if conflicts:
            raise ConfigError("; ".join(conflicts))

    @property
    def page_elements(self) -> int:
        """Page size in what the cache takes for tokens: block ids, or tokens."""
        if self.unit == "blocks":
            return 1
        return 64 if self.page_size is None else self.page_size

    @property
    def element_tokens(self) -> int:
        """Prompt tokens that one of these stands for."""
        return BLOCK_TOKENS if self.unit == "blocks" else 1

    def _choice_conflicts(self) -> list[str]:
        choices = {"unit": ("blocks", "tokens"), "key": ("token", "pair"), "policy": POLICIES}
        seen = {"unit": self.unit, "key": self.key, "policy": self.policy}
        return [
            f"{name} is {seen[name]!r}, want one of {', '.join(known)}"
            for name, known in choices.items()
            if seen[name] not in known
        ]

    def _page_size_conflicts(self) -> list[str]:
        size = self.page_size
        if size is None:
            return []
        if size < 1:
            return [f"page_size is {size}, want at least 1"]
        if self.unit == "blocks" and size not in {1, BLOCK_TOKENS}:
            return [f"page_size is {size}, want {BLOCK_TOKENS} with blocks: a page is one block there"]
        if BLOCK_TOKENS % size:
            return [f"page_size is {size}, want a divisor of the block of {BLOCK_TOKENS} tokens"]
        return []

    def _capacity_conflicts(self) -> list[str]:
        ranges = [
            ("lanes", self.lanes, MOST_LANES),
            ("device_pages", self.device_pages, UNLIMITED),
            ("host_pages", self.host_pages, UNLIMITED),
            ("segment_pages", self.segment_pages, UNLIMITED),
            ("limit", self.limit, None),
        ]
        conflicts = []
        for name, value, most in ranges:
            if value is not None and not 1 <= value <= (value if most is None else most):
                wanted = "at least 1" if most is None else f"1 to {most}"
                conflicts.append(f"{name} is {value}, want {wanted}")
        if conflicts:
            return conflicts
        for name, pages in (("device_pages", self.device_pages), ("host_pages", self.host_pages)):
            if pages not in {None, UNLIMITED} and pages % self.lanes:
                conflicts.append(f"{name} is {pages}, want a multiple of lanes, which is {self.lanes}")
        slots = None if self.host_pages is None else self.host_pages // self.lanes
        if slots is not None and slots < self.segment_pages:
            conflicts.append(f"segment_pages is {self.segment_pages}, want at most the {slots} host pages of a lane")
        return conflicts
