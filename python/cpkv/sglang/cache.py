"""What all versions of SGLang share: match, lock, keep, evict, and the figures of its memory check.

SGLang's scheduler makes every call from its one thread. Tokens cross into the core once a call, as arrays; nothing
here loops over tokens or pages. Rows of `req_to_token` and what the allocator has are tensors of SGLang; pages that
it gave to a request belong to the request until `_keep` inserts them, and to the cache until `evict` gives them back.
"""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.mem_cache.base_prefix_cache import (
    BasePrefixCache,
    DecLockRefParams,
    DecLockRefResult,
    EvictParams,
    EvictResult,
    IncLockRefResult,
    MatchPrefixParams,
    MatchResult,
)

from cpkv._core import CacheManager, Hit, PageIds, Stats, TickReport
from cpkv.errors import UsageError
from cpkv.sglang.events import Events
from cpkv.sglang.host import Completed, Host, HostRoom
from cpkv.sglang.keys import namespace_of, namespace_of_key, priority_of, tokens_of, tokens_of_key
from cpkv.sglang.pages import Pages, ToldPages, device_of
from cpkv.sglang.prefix import Prefix

if TYPE_CHECKING:
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from cpkv.sglang.exporter import Exporter

CHECK_INTEGRITY: Final = "CPKV_DEBUG_SGLANG_INTEGRITY"
"""Set to 1, the core recounts everything after each change: for tests, and to find who is to blame."""

LEAST_EVICTED_TOKENS: Final = 512
"""Evicted at once if anything is: requests that decode ask for a page at a time, and go on asking."""
LEAST_EVICTED_SHARE: Final = 64
"""But no more for that than the pool divided by this."""

_logger: Final = logging.getLogger("cpkv.sglang")
_LANE: Final = 0
_UNLOCKED: Final = DecLockRefResult()


class _Locked(IncLockRefResult):  # type: ignore[misc]
    """A lock of which nothing has to be known for its end: the prefix knows its locks."""

    receipt = DecLockRefParams()

    def to_dec_params(self) -> DecLockRefParams:
        """Return the same each time, which nobody reads."""
        return self.receipt


_LOCKED: Final = _Locked()


class Completing(NamedTuple):
    """A request whose prompt a forward computes: its row, the tokens computed by then, and the pages that it adds."""

    request: Any
    row: int
    computed: int
    first_page: int
    end_page: int


class PrefixCache(BasePrefixCache):  # type: ignore[misc]
    """The prefix cache of one scheduler process. `adapters` has what its versions differ in.

    Args:
        params: What SGLang makes every cache of.
        manager: Tells which pages hold which prefix; the pool is SGLang's.
        host: The host tier, if there is one.
    """

    disable = False
    enable_storage = False

    def __init__(self, params: "CacheInitParams", manager: CacheManager, host: Host | None = None) -> None:
        self.manager = manager
        self.host = host
        self.req_to_token_pool = params.req_to_token_pool
        self.token_to_kv_pool_allocator = params.token_to_kv_pool_allocator
        self.page_size: int = params.page_size
        self.is_eagle: bool = params.is_eagle
        self.device = device_of(params.token_to_kv_pool_allocator)
        self._pages = Pages(self.page_size, self.device)
        least = min(LEAST_EVICTED_TOKENS, params.token_to_kv_pool_allocator.size // LEAST_EVICTED_SHARE)
        self._least_evicted_pages = least // self.page_size
        self._locked: set[Prefix] = set()
        self._owed_pages = 0
        """Given up with what relied on a failed restore; the next tick gives them to the allocator."""
        self._checks_integrity = os.environ.get(CHECK_INTEGRITY) == "1"
        self._events = Events(params) if params.enable_kv_cache_events else None
        self.exporter: Exporter | None = None
        """Publishes figures, if SGLang publishes its own."""
        if params.enable_metrics:
            self.init_metrics_collector()

    # --- Match and lock ---

    @property
    def root_node(self) -> Prefix:
        """A prefix of nothing, in the default namespace."""
        return self.root_node_handle()

    def root_node_handle(self, extra_key: str | None = None) -> Prefix:
        """Return a prefix of nothing."""
        namespace = namespace_of(extra_key)
        return Prefix(self.manager, self.manager.match((), namespace=namespace), namespace)

    def match_prefix(self, params: MatchPrefixParams) -> MatchResult:
        """Find the longest cached prefix. Changes nothing and holds nothing."""
        self._catch_up()
        key = params.key
        namespace = namespace_of_key(key)
        hit = self.manager.match(tokens_of_key(key), namespace=namespace)
        priority = priority_of(None if params.req is None else params.req.priority)
        return self._match_result(hit, Prefix(self.manager, hit, namespace, priority, params.req))

    def _match_result(self, hit: Hit, prefix: Prefix) -> MatchResult:
        raise NotImplementedError

    def _owned(self, req: Any) -> Any:  # noqa: ANN401 - SGLang's
        """What has `req_pool_idx` and `cache_protected_len` of a request: itself, or a record of it."""
        raise NotImplementedError

    def _extent(self, req: Any) -> int:  # noqa: ANN401 - SGLang's
        """How many tokens of a request are computed after the forward that is about to run."""
        raise NotImplementedError

    def touch_prefix(self, key: "RadixKey") -> None:
        """Make the cached prefix of a waiting request the most recent one."""
        self._catch_up()
        hit = self.manager.match(tokens_of_key(key), namespace=namespace_of_key(key))
        if hit.pages:
            self.manager.pin(hit).release()

    def inc_lock_ref(self, node: Prefix) -> IncLockRefResult:
        """Hold a prefix once more."""
        self._catch_up()
        node.lock()
        self._locked.add(node)
        return _LOCKED

    def dec_lock_ref(self, node: Prefix, params: DecLockRefParams | None = None) -> DecLockRefResult:  # noqa: ARG002
        """Hold a prefix once less."""
        self._catch_up()
        held = _held_pages(self.manager.stats()) if self.host is not None and node.lease.lost else 0
        node.unlock()
        if held:
            self._owed_pages += held - _held_pages(self.manager.stats())
        if not node.is_locked:
            self._locked.discard(node)
        return _UNLOCKED

    def path_device_indices(self, node: Prefix) -> torch.Tensor:
        """Return the token indices of a prefix, dtype `int64`."""
        return self._pages.token_indices(self._path(node))

    def _path(self, node: Prefix) -> PageIds:
        return node.lease.page_ids() if node.is_locked else self.manager.pages_of(node.hit)

    # --- Keep what was computed ---

    def _keep(self, req: Any, owned: Any, token_ids: Sequence[int], up_to: int) -> None:  # noqa: ANN401 - SGLang's
        """Insert what a request has computed, and let its row name the cache's pages.

        Pages that the cache had already are given back; whatever is behind the last whole page stays the request's.

        Args:
            req: The request, whose `last_node` is locked.
            owned: What has `req_pool_idx` and `cache_protected_len`: the request or a record of it.
            token_ids: Its tokens.
            up_to: Tokens that are computed.
        """
        prefix: Prefix = req.last_node
        # SGLang may count a token that is still to be sampled.
        up_to = min(up_to, len(token_ids))
        first = owned.cache_protected_len // self.page_size
        end = max(up_to - self.is_eagle, 0) // self.page_size
        if end <= first or prefix.lease.lost or not _is_of_its_tokens(req):
            return
        self._catch_up()
        self._settle(prefix, req, token_ids)
        lease = prefix.lease
        reserved = self.host.take(owned.req_pool_idx) if self.host is not None else None
        known = reserved.pages if reserved is not None else prefix.take_told(first)
        pages = self._pages_of(owned.req_pool_idx, first, end, known)
        transaction = reserved.transaction if reserved is not None else None
        inserted = self.manager.insert(tokens_of(token_ids, up_to), pages, lease, transaction)
        owned.cache_protected_len = end * self.page_size
        if inserted.new_pages < len(pages):
            # Also in place of those that come free later, since a copy still reads them.
            self.req_to_token_pool.write(
                (owned.req_pool_idx, slice(first * self.page_size, end * self.page_size)),
                self._pages.token_indices(lease.page_ids(first)),
            )
            duplicates = inserted.duplicates
            if len(duplicates):
                self._free(duplicates)
        self._check()

    def _pages_of(self, row: int, first: int, end: int, known: NDArray[np.int64] | None) -> PageIds | NDArray[np.int64]:
        """The pages of a row from a place to before another one, as far as possible as they were read before."""
        table = self.req_to_token_pool.req_to_token
        if known is None:
            return self._pages.of_row(table, row, first, end)
        known = known[: end - first]
        first += len(known)
        if first == end:
            return known
        return np.concatenate([known, self._pages.of_row(table, row, first, end)])

    def _settle(self, prefix: Prefix, req: Any, token_ids: Sequence[int]) -> None:  # noqa: ANN401 - SGLang's
        """Let a request hold what it builds on, before anything is reserved or inserted with it.

        That is no more than what it reads on the device: pages on the host that were not brought back are computed
        again. And it is in the request's own namespace: SGLang's root of an adapter does not know of salts.
        """
        lease = prefix.lease
        namespace = namespace_of(req.extra_key, getattr(req, "cache_salt", None))
        if not lease.host_pages and namespace == prefix.namespace:
            return
        if lease.device_pages and namespace != prefix.namespace:
            message = f"a request of namespace {namespace!r} holds {lease.pages} pages of {prefix.namespace!r}"
            raise UsageError(message)
        tokens = lease.device_pages * self.page_size
        found = tokens_of(token_ids, tokens + self.is_eagle if tokens else 0)
        prefix.move_to(self.manager.match(found, namespace=namespace), namespace)

    def _free(self, pages: PageIds) -> None:
        """Give pages back to the allocator. Since 0.5.20 it takes them as such."""
        self.token_to_kv_pool_allocator.free_segment(self._pages.token_indices(pages), start_pos=0)

    # --- Room ---

    def evict(self, params: EvictParams) -> EvictResult:
        """Give at least so many tokens back to the allocator, as far as nobody holds them."""
        if params.num_tokens <= 0:
            return EvictResult()
        begun = time.perf_counter()
        self._catch_up()
        wanted = -(-params.num_tokens // self.page_size)
        pages = self.manager.evict(_LANE, max(wanted, self._least_evicted_pages))
        if len(pages):
            self._free(pages)
        evicted = len(pages)
        if evicted < wanted and self.host is not None:
            evicted += self._evict_behind_copies(self.host, wanted - evicted)
        tokens = evicted * self.page_size
        self.update_eviction_metrics(tokens, begun)
        self._check()
        return EvictResult(num_tokens_evicted=tokens)

    def _evict_behind_copies(self, host: Host, missing: int) -> int:
        """Wait for copies until so many pages more have come free; return those that were evicted for it.

        A late copy holds what could have been evicted when SGLang admitted the prompt that it computes now, and
        SGLang ends where a prompt that it has admitted finds no room.
        """
        evicted = 0
        for report in host.drain():
            self._take_in(report)
            missing -= len(report.freed_pages)
            pages = self.manager.evict(_LANE, max(missing, 0))
            if len(pages):
                self._free(pages)
            evicted += len(pages)
            missing -= len(pages)
            if missing <= 0:
                break
        return evicted

    def evictable_size(self) -> int:
        """Return the tokens that could be evicted now."""
        self._catch_up()
        return self.manager.evictable_pages(_LANE) * self.page_size

    def protected_size(self) -> int:
        """Return the tokens that the cache holds and may not evict now."""
        self._catch_up()
        stats = self.manager.stats()
        pages = _held_pages(stats) + self._owed_pages - stats.device_evictable_pages
        return pages * self.page_size

    def full_evictable_size(self) -> int:
        """Return the same: there is one kind of state."""
        return self.evictable_size()

    def full_protected_size(self) -> int:
        """Return the same: there is one kind of state."""
        return self.protected_size()

    def total_size(self) -> int:
        """Return the tokens on the device that the cache holds."""
        return self.manager.stats().device_cached_pages * self.page_size

    def reset(self) -> None:
        """Forget everything. SGLang gives all pages back to its allocator itself.

        Raises:
            UsageError: A request still holds some; nothing was forgotten.
        """
        self._catch_up()
        protected = self.protected_size()
        if protected:
            message = f"the cache is flushed while requests hold {protected} tokens of it"
            raise UsageError(message)
        self.manager.flush()
        self._check()

    def _check(self) -> None:
        if self._checks_integrity:
            self.manager.check_integrity()

    # --- The host tier ---

    def _fences(self, owned: Any, ranges: Sequence[tuple[int, int]]) -> bool:  # noqa: ANN401 - SGLang's
        """Give places of a request's row back behind the copies that still read them; false if none may do so."""
        if self.host is None or not self.host.give_up(owned.req_pool_idx):
            return False
        table, row = self.req_to_token_pool.req_to_token, owned.req_pool_idx
        for start, end in ranges:
            if start < end:
                pages = self._pages.of_row(table, row, start // self.page_size, -(-end // self.page_size))
                self._free(self.manager.free(pages))
        self._check()
        return True

    def free_kv_row(self, kv: Any, ranges: list[tuple[int, int]]) -> None:  # noqa: ANN401 - SGLang's
        """Give places of a request's row back, behind the copies that still read them. SGLang calls it since 0.5.19."""
        if not self._fences(kv, ranges):
            super().free_kv_row(kv, ranges)

    def _load_back(self, prefix: Prefix) -> int:
        """Bring what a request has found on the host back with its batch: all of it, or nothing if there is no room.

        Returns:
            The tokens that are brought back. The prefix reaches to their end.
        """
        if self.host is None:
            message = f"a prefix of {prefix.hit.host_pages} pages is to be restored, and there is no host tier"
            raise UsageError(message)
        self._catch_up()
        prefix.use()
        lease = prefix.lease
        found = lease.device_pages
        if lease.host_pages:
            pages = self._take(lease.host_pages)
            if pages is None:
                return 0
            duplicates = self.host.restore(lease, pages)
            if len(duplicates):
                self._free(duplicates)
        self._check()
        return (lease.device_pages - found) * self.page_size

    def _take(self, count: int) -> Any:  # noqa: ANN401 - pages, or nothing
        """Take pages from SGLang's allocator, evicting for them; `None` if there is no room."""
        allocator, tokens = self.token_to_kv_pool_allocator, count * self.page_size
        missing = tokens - allocator.available_size()
        if missing > self.manager.evictable_pages(_LANE) * self.page_size:
            return None  # nothing is evicted, or waited for, in vain
        if missing > 0:
            self.evict(EvictParams(num_tokens=missing))
        taken = allocator.alloc(tokens)
        return None if taken is None else self._pages.of(taken)

    def ready_to_load_host_cache(self) -> int:
        """Submit what the batch restores. Its forward waits layer by layer, whatever SGLang does with the result."""
        if self.host is not None:
            self.host.load()
        return -1

    def check_hicache_events(self) -> None:
        """Make visible what has landed on the host, and give back the pages that copies have let go of."""
        report = self.host.tick() if self.host is not None else None
        if report is not None:
            self._take_in(report)

    def drain(self) -> None:
        """Wait for the copies that are under way. What they have come to is visible then.

        What a running request has reserved and not inserted yet is still open afterwards.
        """
        if self.host is not None:
            for report in self.host.drain():
                self._take_in(report)

    def hear_of_restores(self, batch: Any) -> None:  # noqa: ANN401 - SGLang's
        """Let a batch whose forward has ended know whether what it has read was there."""
        if self.host is not None and self.manager.stats().restoring_pages:
            nodes = [request.last_node for request in batch.reqs]
            leases = [node.lease for node in nodes if isinstance(node, Prefix) and node.is_locked]
            restores = [restore for lease in leases if not lease.lost for restore in lease.restores()]
            for report in self.host.hear(restores):
                self._take_in(report)

    def _take_in(self, report: TickReport) -> None:
        self._owed_pages = 0
        if len(report.freed_pages):
            self._free(report.freed_pages)
        if report.rolled_back:
            self._abort_lost()
        self._check()

    def _abort_lost(self) -> None:
        """Requests that rely on a restore that has failed have read what is not there."""
        for prefix in self._locked:
            if prefix.lease.lost and prefix.request is not None:
                message = "what the request found on the host could not be read back: send it again"
                prefix.request.to_finish = FINISH_ABORT(message, HTTPStatus.INTERNAL_SERVER_ERROR)
                _logger.warning("request %s is aborted: a restore has failed", prefix.request.rid)

    @property
    def full_kv_pool_host(self) -> HostRoom | None:
        """What SGLang's metrics ask about the host tier; it needs an answer where there is one."""
        return None if self.host is None else self.host.room

    @property
    def ongoing_write_through(self) -> range:
        """As many as copies are under way, which is what SGLang asks before it calls itself idle."""
        is_behind = self.host is not None and self.host.is_behind
        return range(self.manager.stats().open_operations + is_behind)

    @property
    def ongoing_load_back(self) -> range:
        """Nothing: restores are among the copies under way."""
        return range(0)

    @property
    def follows_forwards(self) -> bool:
        """Whether it has to know of forwards: to copy them, or to ask in time for pages that it would wait for."""
        return self.host is not None or not self._pages.are_at_hand

    @contextmanager
    def forward(self, batch: Any) -> Iterator[None]:  # noqa: ANN401 - SGLang's
        """Ask before a forward for the pages that it completes, and let it be copied as it goes.

        It is around `Scheduler.run_batch`. To ask for the pages when they are kept would be to wait for the next
        forward, which is on the GPU by then.
        """
        self._catch_up()
        completing = list(self._completing(batch))
        spans = [(one.row, one.first_page, one.end_page) for one in completing]
        pages = self._pages.of_rows(self.req_to_token_pool.req_to_token, spans)
        if self.host is None:
            for place, one in enumerate(completing):
                one.request.last_node.told = ToldPages(pages, place, one.first_page)
            yield
            return
        completed = [self._completed(one) for one in completing]
        nodes = [request.last_node for request in batch.reqs]
        leases = [node.lease for node in nodes if isinstance(node, Prefix) and node.is_locked]
        self.host.begin(completed, pages, leases)
        has_run = False
        try:
            yield
            has_run = True
        finally:
            self.host.end(has_run=has_run)

    def _completing(self, batch: Any) -> Iterator[Completing]:  # noqa: ANN401 - SGLang's
        """Yield the requests whose prompts a batch computes, as far as that completes pages that are kept."""
        decoding = {id(request) for request in batch.decoding_reqs or ()}
        for request in batch.reqs:
            owned = self._owned(request)
            computed = min(self._extent(request), len(request.full_untruncated_fill_ids))
            first = owned.cache_protected_len // self.page_size
            end = max(computed - self.is_eagle, 0) // self.page_size
            is_kept = not request.skip_radix_cache_insert and _is_of_its_tokens(request)
            if id(request) not in decoding and first < end and is_kept and _builds_on(request.last_node):
                yield Completing(request, owned.req_pool_idx, computed, first, end)

    def _completed(self, one: Completing) -> Completed:
        """What is to be reserved for a request."""
        request, prefix = one.request, one.request.last_node
        self._settle(prefix, request, request.full_untruncated_fill_ids)
        return Completed(one.row, tokens_of(request.full_untruncated_fill_ids, one.computed), prefix.lease)

    def _catch_up(self) -> None:
        """What the last forward was to reserve comes before any other change, and before what ranks decide by."""
        if self.host is not None:
            self.host.catch_up()

    def release_host_resources(self) -> None:
        """Wait for copies and give the host memory back, at the end of the server."""
        if self.host is not None:
            self.host.close()
        if self.exporter is not None:
            self.exporter.close()

    # --- For routers and people ---

    def take_events(self) -> list[Any]:
        """Return what has become usable and what has gone, as SGLang's events."""
        return [] if self._events is None else self._events.of(self.manager.take_events())

    def pretty_print(self) -> None:
        """Log what the cache holds."""
        _logger.info("%s", self.manager.stats().as_dict())


def _held_pages(stats: Stats) -> int:
    """Pages of the allocator that the cache has, or that its copies read."""
    return stats.device_cached_pages + stats.device_fenced_pages


def _builds_on(node: Any) -> bool:  # noqa: ANN401 - SGLang's
    """Whether what is computed behind a node can be inserted."""
    return isinstance(node, Prefix) and node.is_locked and not node.lease.lost


def _is_of_its_tokens(request: Any) -> bool:  # noqa: ANN401 - SGLang's
    """Whether a request's state is that of its tokens; some bring embeddings of their own for some of them."""
    return getattr(request, "positional_embed_overrides", None) is None
