"""The hidden state of each request's last token, which is all that sampling needs.

Gathering it alone moves `cp_size * batch * hidden` elements instead of `tokens * hidden`. One predicate says
when that is not enough, and `as_last_hidden` takes both forms.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cpkv.cp.split import CpSplit
from cpkv.cp.view import LocalView
from cpkv.errors import InputError


@dataclass(frozen=True, slots=True)
class HiddenGather:
    """What is gathered of the hidden states.

    Args:
        reasons: Why all of them are needed; empty if the last tokens' are enough.
    """

    reasons: tuple[str, ...]

    @property
    def is_narrow(self) -> bool:
        """Whether the last tokens' are enough."""
        return not self.reasons


@dataclass(frozen=True, slots=True)
class LastHidden:
    """The compact form: hidden states of last tokens, and nothing else that looks like them.

    Args:
        rows: Shape `(batch, hidden)`, a numpy array or a torch tensor.
    """

    rows: Any


def choose_hidden_gather(
    *, needs_input_logprobs: bool = False, captures_hidden: bool = False, captures_for_draft: bool = False
) -> HiddenGather:
    """Decide what to gather for a batch.

    Args:
        needs_input_logprobs: Some request wants log-probabilities of prompt tokens.
        captures_hidden: Some request wants hidden states back.
        captures_for_draft: A draft model that is not context parallel itself reads the target's hidden
            states of all tokens. A draft on the rank's own rows does not need that.
    """
    reasons = {
        "log-probabilities of prompt tokens": needs_input_logprobs,
        "hidden states are returned": captures_hidden,
        "a draft reads all hidden states": captures_for_draft,
    }
    return HiddenGather(tuple(reason for reason, is_needed in reasons.items() if is_needed))


def narrow_bytes(split: CpSplit, hidden_size: int, element_bytes: int) -> int:
    """Return what all ranks together send in a narrow gather, and each of them receives, in bytes."""
    return split.cp_size * len(split.batch) * hidden_size * element_bytes


def own_last_hidden(view: LocalView, hidden: NDArray[Any]) -> NDArray[Any]:
    """Return a rank's contribution: the last token of each request, zeros where another rank has it.

    Args:
        view: The rank's.
        hidden: Of its rows, shape `(tokens, hidden)`; rows behind those are padding and not read.

    Returns:
        Shape `(batch, hidden)`.

    Raises:
        InputError: There are less rows than the rank has tokens.
    """
    check_rows(view, hidden)
    split = view.split
    own = np.zeros((len(split.batch), *hidden.shape[1:]), hidden.dtype)
    mine = np.flatnonzero(split.last_ranks == view.rank)
    own[mine] = hidden[split.last_rows[mine]]
    return own


def pick_last_hidden(split: CpSplit, gathered: NDArray[Any]) -> LastHidden:
    """Take each request's row from the rank that has computed it.

    Args:
        split: Of the batch.
        gathered: What all ranks have contributed, shape `(cp_size, batch, hidden)`.

    Raises:
        InputError: The shape is another one.
    """
    check_gathered(split, gathered)
    return LastHidden(gathered[split.last_ranks, np.arange(len(split.batch))])


def collect_last_token_hidden(
    view: LocalView, hidden: NDArray[Any], all_gather: Callable[[NDArray[Any]], NDArray[Any]]
) -> LastHidden:
    """Return the hidden state of the last token of each request on every rank.

    Args:
        view: The rank's.
        hidden: Of its rows, shape `(tokens, hidden)`, perhaps with padding behind them.
        all_gather: Called once on every rank, with `(batch, hidden)`; returns what all have given in the
            order of the ranks, `(cp_size, batch, hidden)`.

    Raises:
        InputError: See `own_last_hidden` and `pick_last_hidden`.
    """
    return pick_last_hidden(view.split, all_gather(own_last_hidden(view, hidden)))


def as_last_hidden(split: CpSplit, hidden: Any) -> Any:  # noqa: ANN401 - a numpy array or a torch tensor
    """Return the last token of each request of hidden states in either form: what logits are computed of.

    Args:
        split: Of the batch.
        hidden: The compact form, or all rows in the order of the batch, shape `(tokens, hidden)`.

    Returns:
        Shape `(batch, hidden)`.

    Raises:
        InputError: It has another number of rows: a rank's own ones, perhaps.
    """
    compact = isinstance(hidden, LastHidden)
    rows, want = (hidden.rows, len(split.batch)) if compact else (hidden, split.tokens)
    if tuple(rows.shape[:1]) != (want,):
        what = "of last tokens" if compact else "of all tokens"
        message = f"hidden has shape {tuple(rows.shape)}, want ({want}, hidden) {what}"
        raise InputError(message)
    return rows if compact else rows[split.batch_firsts[1:] - 1]


def check_rows(view: LocalView, hidden: Any) -> None:  # noqa: ANN401 - see above
    """Refuse hidden states that are too few for a rank's rows."""
    if len(hidden.shape) != 2 or hidden.shape[0] < view.tokens:  # noqa: PLR2004 - rows and their width
        message = f"hidden has shape {tuple(hidden.shape)}, want ({view.tokens} or more, hidden)"
        raise InputError(message)


def check_gathered(split: CpSplit, gathered: Any) -> None:  # noqa: ANN401 - see above
    """Refuse what does not come from all ranks."""
    ranks, batch, *_ = gathered.shape
    if ranks != split.cp_size or batch != len(split.batch):
        message = f"gathered has shape {tuple(gathered.shape)}, want ({split.cp_size}, {len(split.batch)}, hidden)"
        raise InputError(message)
