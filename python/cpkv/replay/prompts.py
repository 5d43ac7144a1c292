"""From the block ids of a trace to the integers that the cache sees."""

import numpy as np
import numpy.typing as npt

from cpkv.replay.settings import BLOCK_TOKENS, ReplaySettings
from cpkv.replay.trace import Request


class PromptMaker:
    """Makes the token ids of requests.

    With unit tokens, equal block ids give equal tokens, and different ones different tokens: block
    ids are numbered as they come, and block number `b` is the tokens `512 * b` to `512 * b + 511`.
    """

    def __init__(self, settings: ReplaySettings) -> None:
        """Prepare for one replay."""
        self._is_blocks = settings.unit == "blocks"
        self._numbers: dict[int, int] = {}
        self._offsets = np.arange(BLOCK_TOKENS, dtype=np.int64)

    def token_ids(self, request: Request) -> npt.NDArray[np.int64]:
        """Return the prompt, dtype `int64`: block ids, or 512 tokens for each of them."""
        if self._is_blocks:
            return request.hash_ids
        numbers = self._numbers
        numbered = [numbers.setdefault(block, len(numbers)) for block in request.hash_ids.tolist()]
        starts = np.array(numbered, dtype=np.int64) * BLOCK_TOKENS
        return (starts[:, np.newaxis] + self._offsets).ravel()
