"""Which rank computes what: the same on all ranks, since it is made of the same lengths.

A rank's tokens of a request are one run of positions, or two with the zigzag split: its **parts**. All
front parts come first, then all back parts, each in the order of the batch. That is the order of a rank's
own rows, for every array that goes with them.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cpkv.cp.batch import ExtendBatch
from cpkv.cp.view import LocalView, Part
from cpkv.errors import InputError

Mode = Literal["zigzag", "interleave"]


@dataclass(frozen=True)
class CpSplit:
    """A batch over the ranks of a context-parallel group; made by `zigzag_split` and `interleave_split`.

    Args:
        mode: How it was split.
        cp_size: Ranks.
        page_size: Tokens of a page.
        batch: What is split.
        firsts: The first position of each run, `int64`, shape `(cp_size, parts, batch)`.
        counts: Tokens of each, the same shape; 0 where a rank has none.
        step: From a position of a run to the next.
        are_page_aligned: For each request, whether each page that the forward writes has exactly one rank
            that computes it, `bool`, shape `(batch,)`.
    """

    mode: Mode
    cp_size: int
    page_size: int
    batch: ExtendBatch
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    step: int
    are_page_aligned: NDArray[np.bool_]

    @property
    def page_aligned(self) -> bool:
        """Whether every page of the batch has exactly one compute owner, so that it can write it directly."""
        return bool(self.are_page_aligned.all())

    @cached_property
    def tokens(self) -> int:
        """Batch rows."""
        return int(self.batch.extend_tokens.sum())

    @cached_property
    def rank_tokens(self) -> NDArray[np.int64]:
        """Rows of each rank, shape `(cp_size,)`."""
        sums: NDArray[np.int64] = self.counts.sum((1, 2))
        return sums

    @cached_property
    def padded_tokens(self) -> int:
        """Rows of the rank with most: what every rank sends to a gather. Nothing else counts padding."""
        return int(self.rank_tokens.max())

    @cached_property
    def batch_firsts(self) -> NDArray[np.int64]:
        """The first batch row of each request, and their number, shape `(batch + 1,)`."""
        return np.concatenate(([0], np.cumsum(self.batch.extend_tokens)))

    def view(self, rank: int) -> LocalView:
        """Return what a rank computes.

        Raises:
            InputError: There is no such rank.
        """
        if not 0 <= rank < self.cp_size:
            message = f"rank is {rank}, want 0 to {self.cp_size - 1}"
            raise InputError(message)
        parts, first_row = [], 0
        for firsts, counts in zip(self.firsts[rank], self.counts[rank], strict=True):
            part = Part.of(first_row, firsts, counts, self.step)
            parts.append(part)
            first_row += part.tokens
        return LocalView(self, rank, tuple(parts), first_row)

    @cached_property
    def restore_index(self) -> NDArray[np.int64]:
        """For each batch row its place among the padded rows of all ranks, `int64`, shape `(tokens,)`."""
        index = np.empty(self.tokens, np.int64)
        for rank in range(self.cp_size):
            view = self.view(rank)
            first = rank * self.padded_tokens
            index[view.rows] = np.arange(first, first + view.tokens)
        return index

    @cached_property
    def runs(self) -> NDArray[np.int64]:
        """All runs that have tokens, rank by rank in the order of their rows, shape `(runs, 4)`.

        Each with its first batch row, the place of its first row among the padded rows of all ranks, its
        tokens, and what a batch row lacks to be a position.
        """
        counts = self.counts.reshape(self.cp_size, -1)
        places = counts.cumsum(1) - counts + np.arange(self.cp_size)[:, None] * self.padded_tokens
        shifts = self.batch.prefix_tokens - self.batch_firsts[:-1]
        table = np.stack(
            [
                (self.firsts - shifts).ravel(),
                places.ravel(),
                counts.ravel(),
                np.broadcast_to(shifts, self.firsts.shape).ravel(),
            ],
            1,
        )
        return table[table[:, 2] > 0]

    @cached_property
    def run_bounds(self) -> NDArray[np.int64]:
        """Where each rank's begin in `runs`, and their number, shape `(cp_size + 1,)`."""
        return np.concatenate(([0], np.count_nonzero(self.counts, axis=(1, 2)).cumsum()))

    def restore(self, gathered: NDArray[Any]) -> NDArray[Any]:
        """Return what all ranks have computed in the order of the batch.

        Args:
            gathered: Shape `(cp_size, padded_tokens, ...)`, or the first two dimensions as one.

        Returns:
            Shape `(tokens, ...)`.

        Raises:
            InputError: The shape is another one.
        """
        flat: NDArray[Any] = self.flat(gathered)
        return flat[self.restore_index]

    def flat(self, gathered: Any) -> Any:  # noqa: ANN401 - a numpy array or a torch tensor
        """Return rows that were gathered with their first two dimensions as one.

        Raises:
            InputError: See `restore`.
        """
        rows = self.cp_size * self.padded_tokens
        shape = tuple(gathered.shape)
        if shape[:2] == (self.cp_size, self.padded_tokens):
            return gathered.reshape(rows, *shape[2:])
        if shape[:1] == (rows,):
            return gathered
        message = f"gathered has shape {shape}, want ({self.cp_size}, {self.padded_tokens}, ...) or ({rows}, ...)"
        raise InputError(message)

    @cached_property
    def last_ranks(self) -> NDArray[np.int64]:
        """The rank that computes the last token of each request, shape `(batch,)`."""
        return self._last[0]

    @cached_property
    def last_rows(self) -> NDArray[np.int64]:
        """The row of the last token of each request among those of its rank, shape `(batch,)`."""
        return self._last[1]

    @cached_property
    def _last(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = np.where(self.counts > 0, self.firsts + (self.counts - 1) * self.step, -1)
        parts = self.counts.shape[1]
        runs = ends.reshape(self.cp_size * parts, len(self.batch)).argmax(0)
        # How many rows of the same rank end with each run.
        ended = self.counts.reshape(self.cp_size, parts * len(self.batch)).cumsum(1)
        ended = ended.reshape(self.cp_size * parts, len(self.batch))
        return runs // parts, ended[runs, np.arange(len(self.batch))] - 1
