"""What the tests need of an engine and SGLang does not have: a look at the cache, and faults that have to be noticed.

A request of one of the keys in `ZEROED` that hits something reads zeroes. The environment variable `FAULT` names a
fault of `FAULTS` that is there from the start.
"""

import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

from cpkv.device import RESTORE
from cpkv.device.cpu import CpuEngine
from cpkv.drivers import HostTier
from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.host import Host
from cpkv.sglang.pages import AskedPages, Pages
from cpu_patches import host_copies, memory, several_ranks
from cpu_patches.digests import Digests
from cpu_patches.places import AdaptedCache, StateTeller, hit_tokens
from cpu_patches.timeline import Timeline

FAULT = "CPKV_TEST_FAULT"
GATE = "CPKV_TEST_GATE"

_check = PrefixCache._check
_free = AdaptedCache._free
_match_prefix = PrefixCache.match_prefix
_make = PrefixCache.__init__
_make_pages = Pages.__init__
_load = HostTier.load
_make_host = Host.__init__
_make_engine = CpuEngine.__init__
_copy = CpuEngine._copy
_get_internal_state = StateTeller.get_internal_state


def watch(scheduler):
    """Install everything."""
    counts, digests, timeline = Counter(), Digests(), Timeline()
    digests.watch()
    timeline.watch()

    def count_check(cache):
        counts["integrity_checks"] += cache._checks_integrity
        _check(cache)

    def match_and_zero(cache, params):
        result = _match_prefix(cache, params)
        pools_of = ZEROED.get(params.key.extra_key)
        if pools_of is not None and hit_tokens(result):
            rows = cache.path_device_indices(result.last_device_node)
            for pool in pools_of(scheduler):
                counts["zeroed_rows"] += zero(pool, rows)
        return result

    def tell(controller, asked):
        told = _get_internal_state(controller, asked)
        figures = {"available_tokens": scheduler.token_to_kv_pool_allocator.available_size()}
        if isinstance(scheduler.tree_cache, PrefixCache):
            manager = scheduler.tree_cache.manager
            figures |= manager.stats().as_dict() | counts | {"digest": manager.digest()}
            if scheduler.tree_cache.host is not None:
                figures |= scheduler.tree_cache.host.tier.counts.as_dict() | timeline.figures() | digests.counts
        figures["imports_prometheus"] = "prometheus_client" in sys.modules
        told.internal_state["cache"] = several_ranks.of_all_ranks(figures)
        return told

    def count_copies():
        counts["releases"] += 1
        counts["copies_at_release"] += copies_under_way(scheduler.tree_cache.host.tier.engine)

    memory.lose_pages(scheduler, count_copies)

    Pages.__init__ = make_pages
    PrefixCache._check = count_check
    PrefixCache.match_prefix = match_and_zero
    StateTeller.get_internal_state = tell
    several_ranks.count_what_is_sent(counts)
    several_ranks.count_aborts(counts)
    fault = os.environ.get(FAULT)
    if fault is not None:
        FAULTS[fault]()


def make_pages(pages, page_size, device):
    """Pages of several tokens as on a GPU, where one would wait for them."""
    _make_pages(pages, page_size, device)
    pages.are_at_hand = page_size == 1


def copies_under_way(engine):
    """How many submissions have not ended."""
    streams = range(engine.acks.streams)
    return sum(engine.next_sequence(stream) - 1 - engine.acks.load(stream) for stream in streams)


def zero(pool, rows):
    """Zero rows of all layers and say how many."""
    layers = [layer for name in ("k_buffer", "v_buffer", "kv_buffer") for layer in getattr(pool, name, ())]
    for layer in layers:
        layer[rows] = 0
    return len(layers) * len(rows)


ZEROED = {
    "zeroed": lambda scheduler: [scheduler.token_to_kv_pool_allocator.get_kvcache()],
    "zeroed drafts": lambda scheduler: [
        runner.token_to_kv_pool for runner in scheduler.draft_worker._draft_model_runners()
    ],
}


def leak():
    """Whatever cpkv gives back, it keeps a page of it."""
    AdaptedCache._free = lambda cache, pages: _free(cache, pages[1:])


def free_twice():
    """Whatever cpkv gives back, it gives the first page of it back twice."""

    def twice(cache, pages):
        _free(cache, pages)
        _free(cache, pages[:1])

    AdaptedCache._free = twice


class UnwrittenRows:
    """Rows of requests in which cpkv cannot put the pages that it had already in place of those that it gives back."""

    def __init__(self, rows):
        self._rows = rows

    def __getattr__(self, name):
        return getattr(self._rows, name)

    def write(self, *_):
        pass


def keep_rows():
    """Requests go on naming pages that were given back."""

    def make(cache, *arguments):
        _make(cache, *arguments)
        cache.req_to_token_pool = UnwrittenRows(cache.req_to_token_pool)

    PrefixCache.__init__ = make


def forget_copies():
    """SGLang's own host cache copies nothing."""
    for name in host_copies.NAMES:
        host_copies.copy_by(name, host_copies.do_nothing)


def zero_restores(*components):
    """What comes back from the host is overwritten when all of it is there, before anybody reads it."""

    def load(tier, operations):
        _load(tier, operations)
        tier.engine.synchronize()
        for operation in operations:
            for name, buffers in tier._restore.device.buffers.items():
                for tensor in buffers.owners if name in components or not components else ():
                    pages = tensor.view(buffers.pages, -1)
                    pages[operation.plan()[0].tolist()] = 0

    HostTier.load = load


def hook_no_module():
    """As where a forward is replayed from the pieces of a graph, between which attention is computed."""

    def make(host, *arguments, **named):
        _make_host(host, *arguments, **named)
        host._hooks.remove()
        host._draft_hooks.remove()

    Host.__init__ = make


def hook_nothing():
    """As where a whole forward is replayed from one graph."""

    def make(host, *arguments, **named):
        _make_host(host, *arguments, **named)
        host._hooks.remove()
        host._draft_hooks.remove()
        for one in host._breaks:
            one.remove()

    Host.__init__ = make


def ask_for_pages():
    """As a GPU that has not told yet when a forward has ended in which pages it is."""
    AskedPages.are_there = lambda _: False


def hold_copies():
    """Copies begin when the file that `GATE` names is there. Whoever waits for them makes it, and waits no longer."""
    gate = Path(os.environ[GATE])

    def copy(engine, *arguments):
        while not gate.exists():
            time.sleep(0.001)
        _copy(engine, *arguments)

    def opening(wait):
        def opened(engine, *arguments):
            gate.touch()
            wait(engine, *arguments)

        return opened

    CpuEngine._copy = copy
    CpuEngine.synchronize = opening(CpuEngine.synchronize)
    CpuEngine._wait = opening(CpuEngine._wait)


def fail_restores():
    """Nothing of what the host has can be read back."""

    def make(engine, **options):
        _make_engine(engine, **options, fails=lambda stream, _: stream == RESTORE)

    CpuEngine.__init__ = make


FAULTS = {
    "ask for pages": ask_for_pages,
    "hook no module": hook_no_module,
    "hook nothing": hook_nothing,
    "fail restores": fail_restores,
    "hold copies": hold_copies,
    "zero restores": zero_restores,
    "zero indexes": partial(zero_restores, "target_index"),
    "zero drafts": partial(zero_restores, "draft_k", "draft_v", "draft_kv", "draft_index"),
    "leak": leak,
    "free twice": free_twice,
    "keep rows": keep_rows,
    "forget copies": forget_copies,
} | several_ranks.FAULTS
