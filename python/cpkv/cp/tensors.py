"""The same with torch tensors: the indices of a rank, on its device once for each forward.

Needs torch. After `CpTensors.of` nothing here waits for the device, and no length is read from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cpkv.cp.last_token import LastHidden, check_gathered, check_rows
from cpkv.cp.last_token_tensors import LastTokenTensors
from cpkv.cp.view import LocalView
from cpkv.errors import InputError

AllGather = Callable[[Tensor], Tensor]

_GATHER = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
"""The same under two names: newer releases of torch warn about the older one."""


def all_gather_over(
    group: Any = None,  # noqa: ANN401 - `dist.ProcessGroup`
    *,
    out: Tensor | None = None,
    is_awaited: bool = False,
) -> AllGather:
    """Return what gathers a tensor over a process group, shape `(ranks, ...)`; one collective each call.

    Args:
        group: The context-parallel one; all processes if not given. It is there already.
        out: Where every call puts what it gathers, over what an earlier one has gathered; shape
            `(ranks * tensor.shape[0], ...)`. Without it each call has memory of its own.
        is_awaited: Whether each call waits for its end, if `TORCH_NCCL_BLOCKING_WAIT` is set: a dead rank is then an
            error after the timeout of the group. Otherwise NCCL queues a kernel, which does not end with a dead rank.
    """
    ranks = dist.get_world_size(group)
    stacked = None if out is None else out.unflatten(0, (ranks, -1))

    def gather(tensor: Tensor) -> Tensor:
        # One behind the other along the first dimension: the form that every backend takes.
        gathered = tensor.new_empty((ranks * tensor.shape[0], *tensor.shape[1:])) if out is None else out
        work = getattr(dist, _GATHER)(gathered, tensor.contiguous(), group=group, async_op=is_awaited)
        if is_awaited:
            work.wait()
        return gathered.view(ranks, *tensor.shape) if stacked is None else stacked

    return gather


@dataclass(frozen=True, slots=True)
class CpTensors:
    """What `LocalView` and `CpSplit` do with arrays, with tensors; made by `CpTensors.of`.

    Args:
        view: The rank's.
        rows: The batch row of each row, `int64`, shape `(tokens,)`.
        positions: Its position, the same shape.
        causal_lengths: Keys that it sees, the same shape.
        restore_index: Where each batch row is among the padded rows of all ranks, shape `(split.tokens,)`.
    """

    view: LocalView
    rows: Tensor
    positions: Tensor
    causal_lengths: Tensor
    restore_index: Tensor
    _last: LastTokenTensors = field(repr=False)

    @classmethod
    def of(cls, view: LocalView, device: torch.device | str = "cpu") -> "CpTensors":
        """Make the indices of a rank on its device, of a few numbers for each run."""
        split = view.split
        runs = torch.from_numpy(split.runs).to(device, non_blocking=True)
        own = slice(*split.run_bounds[view.rank : view.rank + 2].tolist())
        rows, places = _expanded(runs, split.tokens, split.step)
        restore_index = torch.empty_like(rows)
        restore_index[rows] = places
        first = int(split.rank_tokens[: view.rank].sum())
        mine = slice(first, first + view.tokens)
        shifts = runs[own, 3].repeat_interleave(runs[own, 2], output_size=view.tokens)
        positions = rows[mine] + shifts
        return cls(
            view=view,
            rows=rows[mine],
            positions=positions,
            causal_lengths=positions + 1,
            restore_index=restore_index,
            _last=LastTokenTensors(view, device),
        )

    def take(self, batch_rows: Tensor) -> Tensor:
        """Return this rank's rows of a tensor of the batch, shape `(split.tokens, ...)`.

        Raises:
            InputError: The shape is another one.
        """
        self._check("batch_rows", batch_rows, self.view.split.tokens)
        return batch_rows.index_select(0, self.rows)

    def padded(self, rows: Tensor) -> Tensor:
        """Return rows of this rank followed by zeros, shape `(split.padded_tokens, ...)`: what a gather sends.

        Raises:
            InputError: They are not `(tokens, ...)`.
        """
        self._check("rows", rows, self.view.tokens)
        padded = rows.new_zeros((self.view.split.padded_tokens, *rows.shape[1:]))
        padded[: self.view.tokens] = rows
        return padded

    def restore(self, gathered: Tensor) -> Tensor:
        """Return what all ranks have computed in the order of the batch, shape `(split.tokens, ...)`.

        Args:
            gathered: Shape `(cp_size, padded_tokens, ...)`, or the first two dimensions as one.

        Raises:
            InputError: The shape is another one.
        """
        flat: Tensor = self.view.split.flat(gathered)
        return flat.index_select(0, self.restore_index)

    def gather(self, rows: Tensor, all_gather: AllGather) -> Tensor:
        """Return the rows of all ranks in the order of the batch: one collective of all rows.

        Args:
            rows: This rank's, shape `(tokens, ...)`.
            all_gather: See `all_gather_over`.
        """
        return self.restore(all_gather(self.padded(rows)))

    def collect_last_token_hidden(self, hidden: Tensor, all_gather: AllGather) -> LastHidden:
        """Return the hidden state of the last token of each request on every rank.

        One collective of `(batch, hidden)` from each rank. What comes back may be a view of what was gathered.

        Args:
            hidden: Of this rank's rows, shape `(tokens, hidden)`, perhaps with padding behind them.
            all_gather: See `all_gather_over`. Must not write to what it is given.

        Raises:
            InputError: There are less rows than the rank has tokens, or `all_gather` does not give
                `(cp_size, batch, hidden)`.
        """
        check_rows(self.view, hidden)
        gathered = all_gather(self._last.own(hidden))
        check_gathered(self.view.split, gathered)
        return LastHidden(self._last.pick(gathered))

    @staticmethod
    def _check(name: str, rows: Tensor, want: int) -> None:
        if tuple(rows.shape[:1]) != (want,):
            message = f"{name} has shape {tuple(rows.shape)}, want ({want}, ...)"
            raise InputError(message)


def _expanded(runs: Tensor, tokens: int, step: int) -> tuple[Tensor, Tensor]:
    """Return batch row and place among the gathered rows of every row of all ranks, rank by rank."""
    first_rows, first_places, counts, _ = runs.unbind(1)
    run = torch.arange(len(runs), device=runs.device).repeat_interleave(counts, output_size=tokens)
    index = torch.arange(tokens, device=runs.device) - (counts.cumsum(0) - counts)[run]
    return first_rows[run] + index * step, first_places[run] + index
