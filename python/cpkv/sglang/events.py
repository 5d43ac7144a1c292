"""Events of the cache as SGLang publishes them for routers."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from sglang.srt.disaggregation.kv_events import AllBlocksCleared, BlockRemoved, BlockStored

from cpkv._core import CacheEvent

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sglang.srt.mem_cache.cache_init_params import CacheInitParams

_MEDIA = {"device": "GPU", "host": "CPU_PINNED", None: None}
"""SGLang's names of the tiers (its `StorageMedium`)."""


class Events:
    """Converts events. Block hashes are cpkv's own: 64 bits, of namespace, key kind, page size and all tokens.

    Args:
        params: What SGLang makes every cache of.
    """

    def __init__(self, params: "CacheInitParams") -> None:
        self._page_size: int = params.page_size
        self._is_eagle: bool = params.is_eagle

    def of(self, events: "Iterable[CacheEvent]") -> list[Any]:
        """Return SGLang's events for events of the cache, in their order."""
        return [self._one(event) for event in events]

    def _one(self, event: CacheEvent) -> Any:  # noqa: ANN401 - SGLang's
        if event.kind == "cleared":
            return AllBlocksCleared()
        medium = _MEDIA[event.medium]
        if event.kind == "removed":
            return BlockRemoved(block_hashes=_signed(event.page_hashes), medium=medium)
        tokens: list[Any] = event.token_ids
        if self._is_eagle:
            # A page of pairs ends with the token behind it.
            tokens = list(pairwise(tokens))
        return BlockStored(
            block_hashes=_signed(event.page_hashes),
            parent_block_hash=None if event.parent_hash is None else _signed([event.parent_hash])[0],
            token_ids=tokens,
            block_size=self._page_size,
            lora_id=None,
            medium=medium,
        )


def _signed(hashes: list[int]) -> list[int]:
    """SGLang's hashes have a sign, and readers of its events rely on 64 bits with it."""
    signed: list[int] = np.array(hashes, np.uint64).view(np.int64).tolist()
    return signed
