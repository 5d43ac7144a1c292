"""What the tests ask an engine to serve, and what comes of it. Both cross between processes."""

from typing import NamedTuple


class Request(NamedTuple):
    """One request of those that are served together.

    A point of time is `(request, tokens)`: when that request, by its place, has produced so many tokens.
    """

    prompt: tuple[int, ...]
    new_tokens: int = 16
    extra_key: str | None = None
    cache_salt: str | None = None
    adapter: str | None = None
    """One of those that the engine was started with."""
    priority: int | None = None
    starts_at: tuple[int, int] | None = None
    aborted_at: tuple[int, int] | None = None
    aborted_at_pages: int | None = None
    """Aborted as soon as the cache has got so many pages since it was sent: in the middle of a long prompt."""


class Answer(NamedTuple):
    """What the engine says of a request."""

    tokens: tuple[int, ...]
    finish: str
    """`length` or `abort`."""
    hit: int
    """Tokens found in the cache."""
    device_hit: int
    """Those of them that were on the device."""
    host_hit: int
    retractions: int
    accept_length: float | None
    """Tokens a step, with drafts."""
