"""A request, from its prompt to its last token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from cpkv._core import Lease, Transaction
from cpkv.errors import InputTypeError

Prompt: TypeAlias = Sequence[int] | NDArray[np.integer[Any]] | Tensor
"""Token ids, shape `(n,)`."""


def is_integer(value: object) -> bool:
    """Whether a value is one token or one number of tokens; `True` is neither."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def token_ids_of(prompt: Prompt) -> tuple[int, ...]:
    """Return the token ids of a prompt.

    Raises:
        InputTypeError: It has no integers, or is not one-dimensional; the message has what is wrong.
    """
    values = prompt.tolist() if isinstance(prompt, np.ndarray | Tensor) else prompt
    if isinstance(values, str | bytes | bytearray) or not isinstance(values, Sequence):
        message = f"a prompt is {prompt!r}, want a sequence of token ids"
        raise InputTypeError(message)
    for place, token in enumerate(values):
        if not is_integer(token):
            message = f"a prompt has {token!r} at {place}, want integers"
            raise InputTypeError(message)
    return tuple(map(int, values))


class Stage(Enum):
    """Where a request is, and what it holds."""

    WAITING = "waiting"
    """Nothing: not begun, given way, or begun anew after a restore that failed."""
    PREFILL = "prefill"
    """A lease on what was found and inserted, pages behind it, and during a forward a transaction."""
    DECODE = "decode"
    """The same without a transaction."""
    ENDING = "ending"
    """The same: it has all of its tokens, and a restore that it has read may still fail."""
    FINISHED = "finished"
    """Nothing."""
    ABORTED = "aborted"
    """Nothing, after the forward that it was in."""


@dataclass(eq=False)
class Request:
    """What an engine knows of a request.

    Args:
        number: Its place in the order in which requests came.
        prompt: Token ids.
        new_tokens: Tokens to be generated.
    """

    number: int
    prompt: tuple[int, ...]
    new_tokens: int
    stage: Stage = Stage.WAITING
    tokens: list[int] = field(default_factory=list)
    """The prompt and what was generated. The last one may have no state yet."""
    computed: int = 0
    """Positions that have state of the target, and of the draft."""
    pages: list[int] = field(default_factory=list)
    """Its device pages, in the order of positions; those of the lease come first."""
    lease: Lease | None = None
    transaction: Transaction | None = None
    reserved: int = 0
    """Tokens that the transaction is about."""
    proposal: int = 0
    """What the draft expects behind the last token."""
    draft_hidden: Tensor | None = None
    """What the draft's layer has computed last, shape `(hidden,)`."""
    logits: list[Tensor] = field(default_factory=list)
    """Of which each generated token was sampled, shape `(vocab,)`, if they are kept."""
    device_hit_tokens: int = 0
    host_hit_tokens: int = 0
    verified: int = 0
    """Verifications."""
    accepted: int = 0
    """Tokens that they have brought."""
    retracted: int = 0
    """How often it has given way to another."""
    losses: int = 0
    """Restores that have failed under it."""
    certain: tuple[int, int, int, int, int] | None = None
    """Its tokens, hits, verifications and what they have brought, before it read what may still be lost."""

    def __post_init__(self) -> None:
        """Begin with the prompt."""
        self.tokens = list(self.prompt)

    def settle(self) -> None:
        """Believe everything that was computed so far."""
        self.certain = (
            len(self.tokens),
            self.device_hit_tokens,
            self.host_hit_tokens,
            self.verified,
            self.accepted,
        )

    def take_back(self) -> None:
        """Forget what was computed since `settle`: it has read pages that were not filled, or may not have been."""
        if self.certain is not None:
            tokens, self.device_hit_tokens, self.host_hit_tokens, self.verified, self.accepted = self.certain
            del self.tokens[tokens:]
            del self.logits[max(tokens - len(self.prompt), 0) :]

    @property
    def generated(self) -> Sequence[int]:
        """Tokens behind the prompt."""
        return self.tokens[len(self.prompt) :]

    @property
    def acceptance_length(self) -> float:
        """Tokens that a verification has brought on average; 1 if every proposal was wrong."""
        return self.accepted / self.verified if self.verified else 0.0
