"""What one rank computes: one local view, so that no array is global by mistake.

A request that has no token on a rank is in none of its arrays: not among the requests of a part, not in
offsets, lengths, sums or maxima.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpkv.errors import InputError

if TYPE_CHECKING:
    from cpkv.cp.split import CpSplit


@dataclass(frozen=True)
class Part:
    """One run of each request that has tokens in it: what one call of an attention kernel computes.

    Args:
        first_row: Where its rows begin among those of the rank.
        tokens: Its rows.
        requests: Those that have some, by their place in the batch, `int64`, shape `(n,)`.
        first_positions: The first position of each, shape `(n,)`.
        token_counts: Tokens of each, real ones, shape `(n,)`.
        step: From a position to the next.
    """

    first_row: int
    tokens: int
    requests: NDArray[np.int64]
    first_positions: NDArray[np.int64]
    token_counts: NDArray[np.int64]
    step: int

    @classmethod
    def of(cls, first_row: int, firsts: NDArray[np.int64], counts: NDArray[np.int64], step: int) -> "Part":
        """Take the requests that have tokens out of those of the batch."""
        requests = np.flatnonzero(counts)
        return cls(first_row, int(counts.sum()), requests, firsts[requests], counts[requests], step)

    @property
    def rows(self) -> slice:
        """Its rows among those of the rank."""
        return slice(self.first_row, self.first_row + self.tokens)

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """Where the rows of each request begin in the part, and their number, shape `(n + 1,)`."""
        return np.concatenate(([0], np.cumsum(self.token_counts)))

    @cached_property
    def key_lengths(self) -> NDArray[np.int64]:
        """Keys that the last token of each request sees, itself included, shape `(n,)`."""
        return self.first_positions + (self.token_counts - 1) * self.step + 1

    @property
    def most_tokens(self) -> int:
        """Tokens of the request with most; 0 without a request."""
        return int(self.token_counts.max(initial=0))

    @property
    def most_keys(self) -> int:
        """Keys of the request with most; 0 without a request."""
        return int(self.key_lengths.max(initial=0))


@dataclass(frozen=True)
class LocalView:
    """The rows of one rank; made by `CpSplit.view`.

    Args:
        split: What it is a view of.
        rank: Whose.
        parts: Two with the zigzag split, also where one of them is empty; one with the interleaved one.
        tokens: Rows, without padding.
    """

    split: "CpSplit"
    rank: int
    parts: tuple[Part, ...]
    tokens: int

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """The position of each row in its request, shape `(tokens,)`."""
        return self._filled(lambda part: part.first_positions)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """The batch row of each row, shape `(tokens,)`: what to gather from the batch, where to scatter to."""
        shifts = self.split.batch_firsts[:-1] - self.split.batch.prefix_tokens
        return self._filled(lambda part: part.first_positions + shifts[part.requests])

    @cached_property
    def causal_lengths(self) -> NDArray[np.int64]:
        """Keys that each row sees, itself included, shape `(tokens,)`: in the order of the rows."""
        return self.positions + 1

    @cached_property
    def requests(self) -> NDArray[np.int64]:
        """The request of each row, by its place in the batch, shape `(tokens,)`."""
        counts = np.concatenate([part.token_counts for part in self.parts])
        return np.repeat(np.concatenate([part.requests for part in self.parts]), counts)

    def take(self, batch_rows: NDArray[Any]) -> NDArray[Any]:
        """Return this rank's rows of an array of the batch, shape `(split.tokens, ...)`.

        Raises:
            InputError: The shape is another one.
        """
        self._check("batch_rows", batch_rows, self.split.tokens)
        return batch_rows[self.rows]

    def split_parts(self, rows: Any) -> tuple[Any, ...]:  # noqa: ANN401 - a numpy array or a torch tensor
        """Split rows of this rank into those of its parts, at their real lengths. Nothing is copied.

        For queries, their weights and the inputs of the top-k selection alike: parts differ in length as
        soon as the pages do not divide evenly, so that halves would be wrong.

        Args:
            rows: Shape `(tokens, ...)`, a numpy array or a torch tensor.

        Raises:
            InputError: The shape is another one.
        """
        self._check("rows", rows, self.tokens)
        return tuple(rows[part.rows] for part in self.parts)

    def padded(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return rows of this rank followed by zeros, shape `(split.padded_tokens, ...)`: what a gather sends.

        Raises:
            InputError: They are not `(tokens, ...)`.
        """
        self._check("rows", rows, self.tokens)
        padded = np.zeros((self.split.padded_tokens, *rows.shape[1:]), rows.dtype)
        padded[: self.tokens] = rows
        return padded

    def _filled(self, firsts_of: Any) -> NDArray[np.int64]:  # noqa: ANN401 - a function of a part
        filled = np.empty(self.tokens, np.int64)
        row = 0
        for part in self.parts:
            for first, count in zip(firsts_of(part).tolist(), part.token_counts.tolist(), strict=True):
                filled[row : row + count] = np.arange(first, first + count * part.step, part.step)
                row += count
        return filled

    def _check(self, name: str, rows: Any, want: int) -> None:  # noqa: ANN401 - see above
        if tuple(rows.shape[:1]) != (want,):
            message = f"{name} has shape {tuple(rows.shape)}, want ({want}, ...)"
            raise InputError(message)
