"""One class for each generation of what SGLang's scheduler expects of a cache."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchResult

from cpkv._core import CacheManager, Hit, PageIds
from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.host import Host
from cpkv.sglang.prefix import Prefix
from cpkv.sglang.versions import Interface

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams


class CheckpointCache(PrefixCache):
    """0.5.22 and 0.5.23: one call keeps, and SGLang frees, unlocks and forgets."""

    def _match_result(self, hit: Hit, prefix: Prefix) -> MatchResult:
        return MatchResult(
            device_prefix_len=hit.device_pages * self.page_size,
            last_device_node=prefix,
            last_host_node=prefix,
            best_match_node=prefix,
            host_hit_length=hit.host_pages * self.page_size,
        )

    def _owned(self, req: Any) -> Any:  # noqa: ANN401 - SGLang's
        return req.kv

    def _extent(self, req: Any) -> int:  # noqa: ANN401 - SGLang's
        return int(req.extend_end)

    def init_load_back(self, params: InitLoadBackParams) -> tuple[int, Prefix]:
        """Bring back what a request has found on the host; return the tokens, and the prefix to their end."""
        prefix: Prefix = params.best_match_node
        return self._load_back(prefix), prefix

    def prefix_device_indices(self, req: Any) -> torch.Tensor:  # noqa: ANN401 - SGLang's request
        """Return the token indices that a request begins with, dtype `int64`, shape `(req.prefix_len,)`."""
        pages = self._path(req.last_node)[: req.prefix_len // self.page_size]
        return self._pages.token_indices(pages)

    def _free(self, pages: PageIds) -> None:
        self.token_to_kv_pool_allocator.free_page_ids(self._pages.tensor(pages))

    def checkpoint(self, req: Any, *, up_to: int) -> None:  # noqa: ANN401 - SGLang's request
        """Keep what a request has computed of its first `up_to` tokens."""
        self._keep(req, req.kv, req.full_untruncated_fill_ids, up_to)


class _IndicesCache(PrefixCache):
    """Before 0.5.22 a match returns the token indices themselves."""

    def _match_result(self, hit: Hit, prefix: Prefix) -> MatchResult:
        return MatchResult(
            device_indices=self._pages.token_indices(self.manager.pages_of(hit)),
            last_device_node=prefix,
            last_host_node=prefix,
            best_match_node=prefix,
            host_hit_length=hit.host_pages * self.page_size,
        )

    def _owned(self, req: Any) -> Any:  # noqa: ANN401 - SGLang's
        """What has the request's row and what of it is the cache's: a record of it since 0.5.19."""
        return req if hasattr(req, "cache_protected_len") else req.kv

    def _extent(self, req: Any) -> int:  # noqa: ANN401 - SGLang's
        return int(req.extend_range.end)

    def init_load_back(self, params: InitLoadBackParams) -> tuple[torch.Tensor, Prefix]:
        """Bring back what a request has found on the host; return where, and the prefix that reaches to the end."""
        prefix: Prefix = params.best_match_node
        first = prefix.lease.device_pages
        self._load_back(prefix)
        return self._pages.token_indices(prefix.lease.page_ids(first)), prefix

    def cache_unfinished_req(self, req: Any, chunked: bool = False) -> None:  # noqa: ANN401, ARG002, FBT001, FBT002 - SGLang's call
        """Keep what a request has computed, which goes on."""
        owned = self._owned(req)
        token_ids = req.get_fill_ids()
        self._keep(req, owned, token_ids, len(token_ids))
        row = self.req_to_token_pool.req_to_token[owned.req_pool_idx, : len(token_ids)]
        req.prefix_indices = row.to(torch.int64, copy=True)


class InsertReqCache(_IndicesCache):
    """0.5.21: as before for a request that goes on; of a finished one SGLang frees what is left."""

    def insert_req(self, req: Any, *, up_to: int) -> None:  # noqa: ANN401 - SGLang's request
        """Keep what a finished request has computed of its first `up_to` tokens."""
        self._keep(req, req.kv, req.origin_input_ids + req.output_ids, up_to)


class CacheReqCache(_IndicesCache):
    """0.5.17 to 0.5.20: the cache itself frees and unlocks what a finished request had."""

    def __init__(self, params: "CacheInitParams", manager: CacheManager, host: Host | None = None) -> None:
        super().__init__(params, manager, host)
        self._keeps_finished = not params.disable_finished_insert

    def cache_finished_req(self, req: Any, is_insert: bool = True, *, kv_len_to_handle: int) -> None:  # noqa: ANN401, FBT001, FBT002 - SGLang's call
        """Keep what a finished request has computed, give the rest back, and let go."""
        owned = self._owned(req)
        if is_insert and self._keeps_finished:
            self._keep(req, owned, req.origin_input_ids + req.output_ids, kv_len_to_handle)
        start = owned.cache_protected_len
        if not self._fences(owned, [(start, kv_len_to_handle)]):
            row = self.req_to_token_pool.req_to_token[owned.req_pool_idx]
            self.token_to_kv_pool_allocator.free_segment(row[start:kv_len_to_handle], start_pos=start)
        if req.last_node is not None:
            self.dec_lock_ref(req.last_node)


ADAPTERS: Final[Mapping[Interface, Callable[["CacheInitParams", CacheManager, Host | None], PrefixCache]]] = {
    Interface.CACHE_REQ: CacheReqCache,
    Interface.INSERT_REQ: InsertReqCache,
    Interface.CHECKPOINT: CheckpointCache,
}
