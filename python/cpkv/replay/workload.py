"""A workload for those who have no trace: conversations that come back.

Requests are turns. A turn either opens a conversation, with one of a few system prompts (some much
more popular than others) and a first message, or continues one of the recent ones: its prompt is
everything said so far and a new message. Block ids are made up; equal ids mean equal blocks.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cpkv.errors import ConfigError
from cpkv.replay.settings import BLOCK_TOKENS
from cpkv.replay.trace import Request

_SYSTEM_PROMPTS = 8
_SYSTEM_PROMPT_BLOCKS = 4
_RECENT_CONVERSATIONS = 500
_LONGEST_MESSAGE_BLOCKS = 200
_LONGEST_PROMPT_BLOCKS = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadSettings:
    """The size and shape of a made-up workload.

    Args:
        requests: How many turns.
        sharing: The share of turns that continue a conversation, 0 to 1.
        message_blocks: Mean length of a message, in blocks of 512 tokens.
        seed: Equal seeds give equal workloads.

    Raises:
        ConfigError: With everything that is wrong.
    """

    requests: int = 2_000
    sharing: float = 0.5
    message_blocks: float = 12.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse settings that make no workload."""
        conflicts = []
        if self.requests < 1:
            conflicts.append(f"requests is {self.requests}, want at least 1")
        if not 0 <= self.sharing <= 1:
            conflicts.append(f"sharing is {self.sharing}, want 0 to 1")
        if not 1 <= self.message_blocks <= _LONGEST_MESSAGE_BLOCKS:
            conflicts.append(f"message_blocks is {self.message_blocks}, want 1 to {_LONGEST_MESSAGE_BLOCKS}")
        if self.seed < 0:
            conflicts.append(f"seed is {self.seed}, want at least 0")
        if conflicts:
            raise ConfigError("; ".join(conflicts))


def make_workload(settings: WorkloadSettings) -> Iterator[Request]:
    """Make the requests one by one; the same ones for the same settings."""
    random = np.random.default_rng(settings.seed)
    popularity = 1.0 / np.arange(1, _SYSTEM_PROMPTS + 1)
    popularity /= popularity.sum()
    recent: deque[list[int]] = deque(maxlen=_RECENT_CONVERSATIONS)
    next_id = _SYSTEM_PROMPTS * _SYSTEM_PROMPT_BLOCKS
    for _ in range(settings.requests):
        if recent and random.random() < settings.sharing:
            # Recent conversations are the likelier to go on.
            back = min(int(random.exponential(len(recent) / 4)), len(recent) - 1)
            blocks = recent[len(recent) - 1 - back]
        else:
            which = int(random.choice(_SYSTEM_PROMPTS, p=popularity))
            blocks = list(range(which * _SYSTEM_PROMPT_BLOCKS, (which + 1) * _SYSTEM_PROMPT_BLOCKS))
        message = min(int(random.geometric(1.0 / settings.message_blocks)), _LONGEST_MESSAGE_BLOCKS)
        blocks = [*blocks, *range(next_id, next_id + message)]
        next_id += message
        if len(blocks) <= _LONGEST_PROMPT_BLOCKS:
            recent.append(blocks)
        yield Request(hash_ids=np.array(blocks, dtype=np.int64), input_length=len(blocks) * BLOCK_TOKENS)
