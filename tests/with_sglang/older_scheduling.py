"""Requests served as a scheduler before 0.5.22 does it, by the adapters that are for it, in the SGLang that is here.

What such a scheduler calls of its cache, and what it keeps of a request, is written down here; the pools, the allocator
and the requests are those of the SGLang that is installed.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from scheduling import Request, context
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams

from cpkv.sglang.adapters import CacheReqCache, InsertReqCache


class OlderMatch(NamedTuple):
    """What a match returned before 0.5.22, as far as cpkv says something of it."""

    device_indices: torch.Tensor
    last_device_node: Any
    last_host_node: Any
    best_match_node: Any
    host_hit_length: int = 0


def older_context(**options):
    """What SGLang made a cache of."""
    made_of = context(**options)
    made_of.params.disable_finished_insert = False  # until 0.5.20
    return made_of


class OlderRequest(Request):
    """What 0.5.19 to 0.5.21 have of a request."""

    prefix_indices = torch.empty(0, dtype=torch.int64)

    @property
    def extend_range(self):
        return SimpleNamespace(end=self.extend_end)


class OldestRequest(OlderRequest):
    """Before 0.5.19 there was no record of what a request has of the pools."""

    @property
    def req_pool_idx(self):
        return self.kv.req_pool_idx

    @property
    def cache_protected_len(self):
        return self.kv.cache_protected_len

    @cache_protected_len.setter
    def cache_protected_len(self, tokens):
        self.kv.cache_protected_len = tokens


class OlderCalls:
    """The calls of such a scheduler. Goes in front of one of `scheduling`."""

    new_request = OlderRequest

    def tokens_of(self, found):
        return len(found.device_indices)

    def start(self, request):
        """Match, lock, bring back what is on the host, and take a row."""
        request.guessed = None
        request.refresh_fill_ids()
        expected = self.expected(request)
        found = self.match(request, len(request.tokens) - 1)
        assert expected in {None, self.tokens_of(found)}, "all that was kept and has not been given up, and no more"
        request.last_node, request.prefix_indices = found.last_device_node, found.device_indices
        deciding = request.last_node
        self.cache.inc_lock_ref(deciding)
        if found.host_hit_length:
            best = InitLoadBackParams(found.best_match_node, found.host_hit_length, req=request)
            loaded, request.last_node = self.cache.init_load_back(best)
            assert len(loaded) in {0, found.host_hit_length}, "all or nothing"
            request.prefix_indices = torch.cat([request.prefix_indices, loaded])
            self.restored += len(loaded)
        self.cache.inc_lock_ref(request.last_node)
        self.cache.dec_lock_ref(deciding)
        self.cache.ready_to_load_host_cache()
        kv = request.kv
        request.found = request.prefix_len = kv.cache_protected_len = len(request.prefix_indices)
        kv.req_pool_idx = self.rows.free_slots.pop()
        self.rows.req_to_token[kv.req_pool_idx][: request.prefix_len] = request.prefix_indices.to(torch.int32)
        kv.kv_allocated_len = kv.kv_committed_len = request.prefix_len
        self.running.append(request)
        self.scribble()
        self.check(request)

    def keep(self, request):
        """A chunk is done and the request goes on behind what it is told to have."""
        self.cache.cache_unfinished_req(request, chunked=True)
        row = self.rows.req_to_token[request.kv.req_pool_idx, : request.extend_end]
        assert torch.equal(request.prefix_indices, row.long())
        self.scribble()
        self.remember(request, request.extend_end)
        self.check(request)

    def _release(self, request, *, checkpoint):
        end = request.kv.kv_committed_len
        self.give_back(request, end, is_insert=checkpoint)
        self.rows.free(request)
        request.kv.mark_kv_released()
        self.running.remove(request)
        self.scribble()
        if checkpoint:
            self.remember(request, end)
        self.check_sizes()


class NeverCheckpoints:
    """What the base class of the SGLang that is here asks for."""

    def checkpoint(self, req, *, up_to):
        message = "a scheduler before 0.5.22 does not know it"
        raise NotImplementedError(message)


class InsertReqCalls(OlderCalls):
    """0.5.21."""

    adapter = type("InsertReqCache", (NeverCheckpoints, InsertReqCache), {})

    def give_back(self, request, end, *, is_insert):
        if is_insert:
            self.cache.insert_req(request, up_to=end)
        self.cache.free_kv_row(request.kv, [(request.kv.cache_protected_len, end)])
        self.cache.dec_lock_ref(request.last_node)


class CacheReqCalls(OlderCalls):
    """0.5.19 and 0.5.20."""

    adapter = type("CacheReqCache", (NeverCheckpoints, CacheReqCache), {})

    def give_back(self, request, end, *, is_insert):
        self.cache.cache_finished_req(request, is_insert=is_insert, kv_len_to_handle=end)


class OldestCalls(CacheReqCalls):
    """0.5.17 and 0.5.18."""

    new_request = OldestRequest
