"""The collectives of the model, and their count. The cache makes none."""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor

from cpkv.cp.tensors import all_gather_over
from cpkv.errors import CpkvError

_COLLECTIVES: Final = ("all", "barrier", "broadcast", "gather", "monitored", "recv", "reduce", "scatter", "send")


def count_collectives() -> Counter[str]:
    """Count everything that this process sends through process groups from now on, whoever calls it.

    `torch.distributed` calls methods of the group, and so may anybody.
    """
    calls: Counter[str] = Counter()

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever it takes
            calls[name] += 1
            return call(*arguments, **named)

        return count

    for name in dir(dist.ProcessGroup):
        if name.lstrip("_").startswith(_COLLECTIVES) and not name.startswith("__"):
            setattr(dist.ProcessGroup, name, counted(name, getattr(dist.ProcessGroup, name)))
    return calls


class ExchangeError(CpkvError, RuntimeError):
    """A collective of the model has failed; a rank may be dead."""


class Exchange:
    """What the ranks of a model send each other.

    Args:
        rank: This one.
        cp_size: Ranks.
        group: Their process group; all processes if not given.
    """

    def __init__(self, rank: int, cp_size: int, group: Any = None) -> None:  # noqa: ANN401 - `dist.ProcessGroup`
        self.rank = rank
        self.cp_size = cp_size
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        """What this rank has sent, by what it was for."""
        self._gather = all_gather_over(group, is_awaited=True) if dist.is_initialized() else None
        self._is_gloo = dist.is_initialized() and dist.get_backend(group) == "gloo"

    def all_gather(self, what: str, tensor: Tensor) -> Tensor:
        """Return what all ranks give, shape `(cp_size, ...)`: one collective, or none with one rank."""
        if self.cp_size == 1:
            return tensor[None]
        if self._gather is None:
            message = f"there are {self.cp_size} ranks and no process group: call torch.distributed.init_process_group"
            raise RuntimeError(message)
        self.calls[what] += 1
        self.bytes[what] += tensor.numel() * tensor.element_size()
        try:
            if self._is_gloo and tensor.is_cuda:
                return self._gather(tensor.cpu()).to(tensor.device)
            return self._gather(tensor)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            message = f"the collective for the {what} has failed: {error}"
            raise ExchangeError(message) from error

    def pages(self, ids: Tensor, kv: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return pages of all lanes, given those of this rank's.

        Args:
            ids: All that are wanted, known to every rank, shape `(n,)`.
            kv: Those of them that are in this rank's lane, in their order, shape `(own, kv_row)`.
            index: The same, shape `(own, index_row)`.

        Returns:
            Shapes `(n, kv_row)` and `(n, index_row)`.
        """
        if self.cp_size == 1:
            return kv, index
        lanes = ids % self.cp_size
        counts = torch.bincount(lanes, minlength=self.cp_size)
        own = torch.cat([kv, index], 1)
        padded = own.new_zeros((int(counts.max()), own.shape[1]))
        padded[: len(own)] = own
        gathered = self.all_gather("context", padded)
        places = torch.empty_like(ids)
        for lane in range(self.cp_size):
            places[lanes == lane] = torch.arange(int(counts[lane]), device=ids.device)
        whole = gathered[lanes, places]
        return whole[:, : kv.shape[1]].contiguous(), whole[:, kv.shape[1] :].contiguous()
