"""Requests served by a prefix cache of SGLang as its scheduler does it, without an engine.

The pools, the allocator and what moves a request on are SGLang's own; only the model is missing. What it would write
is one number for each token: of the namespace and all tokens up to it. So what a hit finds can be checked whole, and
pages that come free are overwritten at once.
"""

from array import array
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ReqKvInfo
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, evict_from_tree_cache, match_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.sampling.sampling_params import SamplingParams

from cpkv.layout import Buffers, Component, PageLayout
from cpkv.sglang.adapters import CheckpointCache
from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.drafts import Draft
from cpkv.sglang.opening import open_host
from cpkv.sglang.state import State
from cpkv.sglang.waits import let_wait

SCRIBBLE = -1
GUESS = -(10**6)
MODULUS = (1 << 61) - 1


def context(*, pages, page_size, is_eagle=False, policy="lru", events=False, rows=16, length=2048, **options):
    """What SGLang makes a cache of, with pools on the CPU."""
    size = pages * page_size
    common = {"dtype": torch.float32, "device": "cpu", "kvcache": SimpleNamespace(device="cpu"), "need_sort": False}
    allocator = (
        PagedTokenToKVPoolAllocator(size, page_size, **common)
        if page_size > 1
        else TokenToKVPoolAllocator(size, **common)
    )
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(rows, length, "cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=allocator,
        page_size=page_size,
        is_eagle=is_eagle,
        eviction_policy=policy,
        enable_kv_cache_events=events,
    )
    return SimpleNamespace(
        params=params,
        server_args=SimpleNamespace(**options),
        is_hybrid_swa=False,
        is_hybrid_ssm=False,
        enable_hierarchical_cache=False,
        disable_radix_cache=False,
        full_tokens_per_layer=None,
    )


class Request(Req):
    """A request of SGLang's, and what a model would write for its tokens."""

    def __init__(self, number, tokens, **options):
        super().__init__(str(number), "", tokens, SamplingParams(), **options)
        self.numbers = []
        self.state = 0
        self.found = 0
        self.guessed = None

    @property
    def tokens(self):
        return self.origin_input_ids + self.output_ids


def chain(request):
    """What the model writes for each token."""
    known = request.numbers
    if not known:
        request.state = hash((request.extra_key, request.cache_salt)) % MODULUS
    for token in request.tokens[len(known) :]:
        request.state = (request.state * 1_000_003 + token + 1) % MODULUS
        known.append(request.state)
    return torch.from_numpy(np.array(known, np.int64))


class Scheduler:
    """Moves requests on with one cache, and checks what they read."""

    new_request = Request

    def __init__(self, cache, params):
        self.cache = cache
        self.page_size = params.page_size
        self.rows = params.req_to_token_pool
        self.allocator = params.token_to_kv_pool_allocator
        self.total = self.allocator.size
        self.memory = torch.full((self.total + self.page_size,), SCRIBBLE, dtype=torch.int64)
        self.running = []
        self.kept = {}
        """The page of each name that was kept and has not been given up: what a match has to find."""
        self.names = {}
        self.is_eagle = params.is_eagle

    def names_of(self, request, end):
        """A name for each whole page of the first `end` tokens; a page of pairs has that of the token behind it."""
        numbers, size = chain(request), self.page_size
        pages = max(end - self.is_eagle, 0) // size
        return [int(numbers[(page + 1) * size - 1 + self.is_eagle]) for page in range(pages)]

    def expected(self, request):
        """How many tokens a match has to find."""
        names = self.names_of(request, len(request.tokens) - 1)
        return next((place for place, name in enumerate(names) if name not in self.kept), len(names)) * self.page_size

    def match(self, request, end):
        """What the cache has of the first `end` tokens."""
        key = RadixKey(request.tokens, request.extra_key, limit=end, cache_salt=request.cache_salt)
        return self.cache.match_prefix(MatchPrefixParams(key=key, req=request))

    def tokens_of(self, found):
        """How many tokens a match has found on the device."""
        return found.device_prefix_len

    def remember(self, request, end):
        """All whole pages of the first `end` tokens are found, and where they are."""
        names, found = self.names_of(request, end), self.match(request, end)
        tokens = self.tokens_of(found)
        assert tokens == len(names) * self.page_size, "what was kept is found at once"
        firsts = self.cache.path_device_indices(found.last_device_node)[: tokens : self.page_size]
        for name, page in zip(names, (firsts // self.page_size).tolist(), strict=True):
            assert self.kept.get(name, page) == page, "there once"
            self.kept[name], self.names[page] = page, name

    def start(self, request):
        """Match, lock and take a row, as when a request is admitted."""
        request.refresh_fill_ids()
        expected = self.expected(request)
        found = match_kv_cache(request, self.cache, request.tokens, max_prefix_len=len(request.tokens) - 1)
        assert found.host_hit_length == 0
        assert request.prefix_len == expected, "all that was kept and has not been given up, and no more"
        request.kv.cache_protected_len = request.kv.cache_inserted_len = request.found = request.prefix_len
        about_to_decide = self.cache.lock(request.last_node)
        request.lock = self.cache.lock(request.last_node)
        self.cache.unlock(about_to_decide)
        request.kv.req_pool_idx = self.rows.free_slots.pop()
        row = self.rows.req_to_token[request.kv.req_pool_idx]
        row[: request.prefix_len] = self.cache.prefix_device_indices(request).to(torch.int32)
        request.kv.kv_allocated_len = request.kv.kv_committed_len = request.prefix_len
        self.running.append(request)
        self.check(request)

    def extend(self, request, end):
        """Compute tokens up to `end`."""
        page, start = self.page_size, request.kv.kv_allocated_len
        missing = -(-end // page) - -(-start // page)
        if missing:
            evict_from_tree_cache(self.cache, missing * page)
            self.scribble()
            indices = self.allocator.alloc(missing * page)
            assert indices is not None, "no room, though requests hold less than there is"
            first = -(-start // page) * page
            self.rows.req_to_token[request.kv.req_pool_idx, first : first + len(indices)] = indices.to(torch.int32)
        request.kv.kv_allocated_len = request.kv.kv_committed_len = request.extend_end = end
        self.compute(request, start, end)
        self.check(request)

    def compute(self, request, start, end):
        """A forward."""
        row = self.rows.req_to_token[request.kv.req_pool_idx, start:end].long()
        with self.forward(request, end):
            self.memory[row] = chain(request)[start:end]

    def forward(self, request, end):
        """What is around a forward: nothing where only tokens are generated, or the cache has no use for it."""
        is_prompt = not request.output_ids or end == len(request.tokens)
        if not is_prompt or not isinstance(self.cache, PrefixCache) or not self.cache.follows_forwards:
            return nullcontext()
        return self.cache.forward(SimpleNamespace(reqs=[request], decoding_reqs=None))

    def keep(self, request):
        """A chunk is done and the request goes on."""
        checkpoint_kv_cache(request, self.cache)
        self.scribble()
        self.remember(request, request.extend_end)
        self.check(request)

    def decode(self, request, token):
        """Compute the last token, and sample another one."""
        request.output_ids.append(token)
        request.refresh_fill_ids()
        self.extend(request, len(request.tokens) - 1)

    def finish(self, request):
        request.finished_reason = FINISH_ABORT()
        self._release(request, checkpoint=True)

    def abort(self, request):
        self._release(request, checkpoint=False)

    def _release(self, request, *, checkpoint):
        end = request.kv.kv_committed_len
        release_kv_cache(request, self.cache, checkpoint=checkpoint)
        request.lock = None
        self.running.remove(request)
        self.scribble()
        if checkpoint:
            self.remember(request, end)
        self.check_sizes()

    def retract(self, request):
        """Give its memory back; it starts anew later."""
        self.abort(request)
        request.kv = ReqKvInfo()
        request.full_untruncated_fill_ids = array("q")

    def tick(self):
        """What SGLang does at the beginning of a step: nothing without a host tier."""

    def flush(self):
        """As SGLang does when nothing runs."""
        assert not self.running
        assert not self.cache.protected_size()
        self.cache.reset()
        self.allocator.clear()
        self.scribble()
        assert not self.kept
        self.check_sizes()

    def scribble(self):
        """Overwrite what has come free, which is not in the cache any more."""
        free = self.allocator.get_all_free_pages().long()
        fresh = free[self.memory[free * self.page_size] != SCRIBBLE]
        rows = (fresh[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)
        self.memory[rows] = SCRIBBLE
        for page in fresh.tolist():
            name = self.names.pop(page, None)
            if name is not None:
                del self.kept[name]

    def check(self, request):
        """What the request reads is what it, or one like it, has computed; nothing is lost or there twice."""
        end = request.kv.kv_allocated_len
        row = self.rows.req_to_token[request.kv.req_pool_idx, :end].long()
        assert torch.equal(self.memory[row], chain(request)[:end])
        self.check_sizes()

    def check_sizes(self):
        private = sum(-(-one.kv.kv_allocated_len // self.page_size) * self.page_size for one in self.running)
        private -= sum(one.kv.cache_protected_len for one in self.running)
        parts = (
            self.allocator.available_size(),
            self.cache.evictable_size(),
            self.cache.protected_size(),
            private,
        )
        assert sum(parts) == self.total, parts
        free = self.allocator.get_all_free_pages().tolist()
        assert len(set(free)) == len(free)


LAYERS = 3
DEPTHS = 2
"""A draft's pools, each of one layer."""


class FakeLayer:
    """A decoder layer as far as hooks go."""

    def register_forward_hook(self, hook):
        self.hook = hook
        return SimpleNamespace(remove=lambda: None)


class FakeAttention:
    """What is not called here."""

    def forward(self):
        pass


class FakePool:
    """A pool of one layer as far as waiting goes."""

    start_layer = 0
    layer_num = 1

    def register_layer_transfer_counter(self, counter):
        self.counter = counter


class TieredScheduler(Scheduler):
    """The same with a host tier: each layer keeps the numbers plus its own place, and is read when it was waited for.

    With keys of pairs there is a draft. Of each token it keeps the number of the one behind it. As long as there is
    none, and where tokens were not accepted, it keeps a guess.

    Args:
        made_of: From `context`.
        engine: What copies.
        slots: Pages that the host holds.
        options: Of `open_host`.
    """

    adapter = CheckpointCache

    def __init__(self, made_of, engine, *, slots, **options):
        params = made_of.params
        rows = params.token_to_kv_pool_allocator.size + params.page_size
        counts = {"target": LAYERS, "draft": DEPTHS if params.is_eagle else 0}
        self.layers = [torch.full((rows, 1), SCRIBBLE, dtype=torch.int64) for _ in range(sum(counts.values()))]
        self.modules = [FakeLayer() for _ in self.layers]
        tensors = {"target_kv": self.layers[:LAYERS], "draft_kv": self.layers[LAYERS:]}
        buffers = {name: Buffers.of(its, tokens_per_page=params.page_size) for name, its in tensors.items() if its}
        components = [
            Component(
                name=f"{model}_kv", model=model, layers=tuple(range(count)), row_bytes=buffers[f"{model}_kv"].row_bytes
            )
            for model, count in counts.items()
            if count
        ]
        layout = PageLayout(
            page_size=params.page_size,
            target_layers=counts["target"],
            draft_layers=counts["draft"],
            components=tuple(components),
        )
        self.draft_pools = [FakePool() for _ in range(counts["draft"])]
        drafts = [
            Draft(pool, SimpleNamespace(model=SimpleNamespace(decoder=module)), FakeAttention())
            for pool, module in zip(self.draft_pools, self.modules[LAYERS:], strict=True)
        ]
        self.host = open_host(
            params,
            State(layout, buffers),
            self.modules[:LAYERS],
            slots=slots,
            drafts=drafts,
            engine=engine,
            **options,
        )
        let_wait(self.draft_pools, self.host.tier)
        super().__init__(self.adapter(params, self.host.tier.cache, self.host), params)
        self.memory = self.layers[0][:, 0]
        self.restored = 0

    def expected(self, request):  # noqa: ARG002 - as it was
        return None

    def start(self, request):
        """Match, lock, bring back what is on the host, and take a row."""
        request.guessed = None
        request.refresh_fill_ids()
        match_kv_cache(request, self.cache, request.tokens, max_prefix_len=len(request.tokens) - 1)
        deciding = self.cache.lock(request.last_node)
        if request.host_hit_length:
            best = InitLoadBackParams(request.best_match_node, request.host_hit_length, req=request)
            loaded, node = self.cache.init_load_back(best)
            assert loaded in {0, request.host_hit_length}, "all or nothing"
            request.last_node = node
            request.prefix_len += loaded
            self.restored += loaded
        request.lock = self.cache.lock(request.last_node)
        self.cache.unlock(deciding)
        self.cache.ready_to_load_host_cache()
        request.found = request.kv.cache_protected_len = request.kv.cache_inserted_len = request.prefix_len
        request.kv.req_pool_idx = self.rows.free_slots.pop()
        row = self.rows.req_to_token[request.kv.req_pool_idx]
        row[: request.prefix_len] = self.cache.prefix_device_indices(request).to(torch.int32)
        request.kv.kv_allocated_len = request.kv.kv_committed_len = request.prefix_len
        self.running.append(request)
        self.scribble()
        self.check_sizes()

    def compute(self, request, start, end):
        """A forward: layer by layer, each read where it was restored as soon as that was waited for."""
        numbers = chain(request)
        behind = numbers[1 : end + 1]
        drafted = torch.cat([behind, torch.full((end - len(behind),), GUESS)])
        row = self.rows.req_to_token[request.kv.req_pool_idx].long()
        with self.forward(request, end):
            for layer in range(LAYERS):
                self.layers[layer][row[start:end], 0] = numbers[start:end] + layer
                self.host.waits.wait_until(layer)
                self.read(request, layer, numbers[:end] + layer)
            # What was sampled is known now, and the draft has it of the last token that was computed before.
            first = start - (start == request.guessed)
            allocated = -(-end // self.page_size) * self.page_size
            for depth, pool in enumerate(self.draft_pools):
                layer = LAYERS + depth
                self.layers[layer][row[first:end], 0] = drafted[first:] + layer
                self.layers[layer][row[end:allocated], 0] = GUESS
                pool.counter.wait_until(0)
                self.read(request, layer, drafted + layer)
        request.guessed = end if len(behind) < end else None

    def read(self, request, layer, expected):
        """What a layer reads is there, and is its own; it is copied at its end."""
        row = self.rows.req_to_token[request.kv.req_pool_idx, : len(expected)].long()
        assert torch.equal(self.layers[layer][row, 0], expected)
        self.modules[layer].hook(None, None, None)

    def check(self, request):  # noqa: ARG002 - as it was
        """Bytes are compared by each forward; what was not waited for may be on its way."""
        self.check_sizes()

    def remember(self, request, end):
        """What was kept and is on the device is found at once."""
        found = self.match(request, end)
        pages = max(end - self.is_eagle, 0) // self.page_size
        assert self.tokens_of(found) + found.host_hit_length == pages * self.page_size

    def scribble(self):
        free = self.allocator.get_all_free_pages().long()
        rows = (free[:, None] * self.page_size + torch.arange(self.page_size)).reshape(-1)
        for memory in self.layers:
            memory[rows] = SCRIBBLE

    def tick(self):
        self.cache.check_hicache_events()
        self.scribble()
        self.check_sizes()

    def flush(self):
        while len(self.cache.ongoing_write_through):
            self.tick()
        assert not self.running
        self.cache.reset()
        self.allocator.clear()
        self.scribble()
        self.check_sizes()
