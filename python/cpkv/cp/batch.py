"""What a forward computes of each of its requests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from cpkv.errors import ConfigError, InputError, InputTypeError

MOST_TOKENS: Final = 1 << 40
"""Of one request or of a batch: far more than any model reads, and far from overflow."""


@dataclass(frozen=True, slots=True)
class ExtendBatch:
    """The tokens of a forward: `extend_tokens[b]` of request `b`, the first at position `prefix_tokens[b]`.

    Real lengths, never padded ones. In the order of the batch, the tokens of all requests in a row are its
    **batch rows**.

    Args:
        prefix_tokens: What each request has in its cache, `int64`, shape `(batch,)`.
        extend_tokens: What is computed of it, at least 1, the same shape.
    """

    prefix_tokens: NDArray[np.int64]
    extend_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, prefix_tokens: Sequence[int] | ArrayLike, extend_tokens: Sequence[int] | ArrayLike) -> "ExtendBatch":
        """Check lengths and take a copy of them.

        Raises:
            InputTypeError: They are no integers.
            InputError: They are not as many of one as of the other, negative, or too large; the message
                names the request and the value.
        """
        prefix, extend = _integers("prefix_tokens", prefix_tokens), _integers("extend_tokens", extend_tokens)
        if len(prefix) != len(extend):
            message = f"there are {len(prefix)} prefix_tokens and {len(extend)} extend_tokens, want one each a request"
            raise InputError(message)
        for name, values, least in (("prefix_tokens", prefix, 0), ("extend_tokens", extend, 1)):
            wrong = np.flatnonzero((values < least) | (values > MOST_TOKENS))
            if len(wrong):
                first = int(wrong[0])
                message = f"{name}[{first}] is {values[first]}, want {least} to {MOST_TOKENS}"
                raise InputError(message)
        if len(extend) > MOST_TOKENS // max(int(extend.max(initial=0)), 1):
            message = (
                f"extend_tokens are {len(extend)} requests of up to {extend.max()} tokens, want {MOST_TOKENS} in all"
            )
            raise InputError(message)
        return cls(prefix, extend)

    def __len__(self) -> int:
        """Return how many requests there are."""
        return len(self.extend_tokens)


def check_sizes(*, least: int = 1, **sizes: int) -> None:
    """Refuse a size that is no integer, too small, or one that no batch can have.

    Raises:
        ConfigError: Naming it.
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < least:
            message = f"{name} is {size!r}, want an integer of at least {least}"
            raise ConfigError(message)
        if size > MOST_TOKENS:
            message = f"{name} is {size}, want {MOST_TOKENS} at most"
            raise ConfigError(message)


def _integers(name: str, values: Sequence[int] | ArrayLike) -> NDArray[np.int64]:
    array = np.array(values)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        message = f"{name} has elements of {array.dtype}, want integers"
        raise InputTypeError(message)
    if array.ndim != 1:
        message = f"{name} has shape {array.shape}, want (batch,)"
        raise InputError(message)
    if array.dtype == np.uint64 and array.max() > MOST_TOKENS:
        message = f"{name} has {array.max()}, want {MOST_TOKENS} at most"
        raise InputError(message)
    return array.astype(np.int64)
