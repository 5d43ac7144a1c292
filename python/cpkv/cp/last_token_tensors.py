"""The last tokens of a batch with torch tensors: what a rank sends of them, and what it takes of what all have sent.

Where they are is known from the lengths, so it is decided once for a batch, and indices are on the device by then.
A request's row of a batch of one is a slice of the hidden states, and what comes back a slice of what was gathered:
nothing is queued but the collective. Nothing here waits for the device.
"""

import numpy as np
import torch
from torch import Tensor

from cpkv.cp.view import LocalView


class LastTokenTensors:
    """Where the last tokens of a batch are, for one rank.

    Args:
        view: The rank's.
        device: Where its hidden states are.
    """

    __slots__ = ("_are_all_here", "_is_elsewhere", "_nothing", "_places", "_rank", "_row", "_rows", "batch")

    def __init__(self, view: LocalView, device: torch.device | str) -> None:
        split = view.split
        self.batch = batch = len(split.batch)
        """Requests."""
        is_here = split.last_ranks == view.rank
        self._are_all_here = bool(is_here.all())
        # A lone rank gets back what it sends: a slice would change when the model writes its next hidden states.
        is_slice = batch == 1 and self._are_all_here and split.cp_size > 1
        self._row = int(split.last_rows[0]) if is_slice else None
        """The row of the only request, if it is here."""
        ranks = np.unique(split.last_ranks)
        self._rank = int(ranks[0]) if len(ranks) == 1 else None
        """The rank that has all of them, if there is one."""
        # Some row where another rank has the last token: it is masked.
        rows, places = split.last_rows * is_here, split.last_ranks * batch + np.arange(batch)
        indices = torch.from_numpy(np.stack([rows, places, ~is_here])).to(device, non_blocking=True)
        rows_here, self._places, is_elsewhere = indices
        self._rows = rows_here if is_here.any() else None
        self._is_elsewhere = is_elsewhere.bool()[:, None]
        self._nothing: Tensor | None = None
        """The zeros of a rank that has none, once they were sent."""

    def own(self, hidden: Tensor) -> Tensor:
        """Return what this rank sends: the last token of each request, zeros where another rank has it.

        Args:
            hidden: Of its rows, shape `(tokens, hidden)`, perhaps with padding behind them.

        Returns:
            Shape `(batch, hidden)`, to be read only: it may be a view of `hidden`, or the same at each call.
        """
        if self._row is not None:
            return hidden.narrow(0, self._row, 1)
        if self._rows is None:
            return self._zeros_like(hidden)
        own = hidden.index_select(0, self._rows)
        return own if self._are_all_here else own.masked_fill_(self._is_elsewhere, 0)

    def pick(self, gathered: Tensor) -> Tensor:
        """Take each request's row from the rank that has computed it.

        Args:
            gathered: What all ranks have sent, shape `(cp_size, batch, hidden)`.

        Returns:
            Shape `(batch, hidden)`; a view where all of them come from one rank.
        """
        if self._rank is not None:
            return gathered.select(0, self._rank)
        return gathered.flatten(0, 1).index_select(0, self._places)

    def _zeros_like(self, hidden: Tensor) -> Tensor:
        nothing = self._nothing
        if nothing is None or (nothing.dtype, nothing.shape[1]) != (hidden.dtype, hidden.shape[1]):
            self._nothing = nothing = hidden.new_zeros((self.batch, hidden.shape[1]))
        return nothing
