"""A request, from its prompt to its last token."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from cpkv._core import Lease, Transaction


class Stage(Enum):
    """Where a request is."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    ABORTED = "aborted"


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

    def __post_init__(self) -> None:
        """Begin with the prompt."""
        self.tokens = list(self.prompt)

    @property
    def generated(self) -> Sequence[int]:
        """Tokens behind the prompt."""
        return self.tokens[len(self.prompt) :]

    @property
    def acceptance_length(self) -> float:
        """Tokens that a verification has brought on average; 1 if every proposal was wrong."""
        return self.accepted / self.verified if self.verified else 0.0
