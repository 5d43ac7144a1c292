"""What the tests need where several ranks share a tree: a look at all of them, and faults that only one of them has.

The scheduler processes are alike but for their rank, and so are these patches: a fault asks which rank it is in.
"""

import itertools
import os
import random
import signal
from functools import partial, wraps

import torch.distributed as dist
from sglang.srt.mem_cache.base_prefix_cache import EvictParams

from cpkv.device import BACKUP, RESTORE
from cpkv.device.cpu import CpuEngine
from cpkv.drivers import HostTier
from cpkv.engine.exchange import count_collectives
from cpkv.host import HostMemory
from cpkv.sglang import ranks
from cpkv.sglang.cache import PrefixCache
from cpu_patches.places import AdaptedCache

FAULTY = 1
"""The rank that has faults."""
CALLS = (
    "cache_finished_req",
    "cache_unfinished_req",
    "check_hicache_events",
    "checkpoint",
    "evict",
    "init_load_back",
    "insert_req",
    "match_prefix",
    "ready_to_load_host_cache",
)
"""Of the cache, in which nothing may be sent. No version has all of them."""


def of_all_ranks(figures):
    """Gather what each rank has to tell, by rank: SGLang answers for the first one only."""
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, figures)
    return told


def count_what_is_sent(counts):
    """Count what is sent through process groups while the cache is called."""
    sent = count_collectives()

    def counted(call):
        @wraps(call)
        def count(*arguments, **named):
            before = sent.total()
            try:
                return call(*arguments, **named)
            finally:
                counts["sent_by_the_cache"] += sent.total() - before

        return count

    for owner in AdaptedCache.__mro__[: AdaptedCache.__mro__.index(PrefixCache) + 1]:
        for name in set(CALLS) & set(vars(owner)):
            setattr(owner, name, counted(getattr(owner, name)))


def count_aborts(counts):
    """Count the requests that are aborted since they have read what could not be brought back."""
    abort_lost = PrefixCache._abort_lost

    def counted(cache):
        requests = [prefix.request for prefix in cache._locked]
        before = [request for request in requests if request is not None and request.to_finish is None]
        abort_lost(cache)
        counts["aborted_requests"] += sum(request.to_finish is not None for request in before)

    PrefixCache._abort_lost = counted


def change_copies(**changes):
    """Let copies be made otherwise in the rank that has faults."""
    make = CpuEngine.__init__

    def changed(engine, **options):
        make(engine, **options | (changes if dist.get_rank() == FAULTY else {}))

    CpuEngine.__init__ = changed


def late_copies():
    """Copies begin up to 30 ms late: always a few forwards after those of the other rank."""
    draws = random.Random(1)
    change_copies(delay_s=lambda _: 0.03 * draws.random())


def failing_copies(one_in):
    """One copy in so many fails, by the stream that it is on."""
    numbers = {stream: itertools.count(1) for stream in one_in}
    change_copies(fails=lambda stream, _: stream in one_in and next(numbers[stream]) % one_in[stream] == 0)


def disagree():
    """Each rank takes for the state of all what it knows of its own copies, which are late on one."""
    ranks.Ranks.attach = lambda *_: None
    late_copies()


def evict_more():
    """One rank gives up a page more than the other one, whenever something is to be given up."""
    evict = PrefixCache.evict

    def more(cache, params):
        is_more = params.num_tokens > 0 and dist.get_rank() == FAULTY
        return evict(cache, EvictParams(num_tokens=params.num_tokens + is_more * cache.page_size))

    PrefixCache.evict = more


def be_on_several_hosts():
    """As if no rank reached the shared memory of another one. Copies are late on one."""
    ranks.place = lambda: f"host {dist.get_rank()}"
    late_copies()


def have_no_memory():
    """The memory of the host is not there for one rank."""
    make = HostMemory.__init__

    def refused(memory, *arguments, **named):
        if dist.get_rank() == FAULTY:
            message = "there is no memory left on this rank"
            raise MemoryError(message)
        make(memory, *arguments, **named)

    HostMemory.__init__ = refused


def die():
    """One rank is killed with the first copies of a forward under way."""
    end_forward = HostTier.end_forward

    def killed(tier, **how):
        end_forward(tier, **how)
        if dist.get_rank() == FAULTY:
            os.kill(os.getpid(), signal.SIGKILL)

    HostTier.end_forward = killed


FAULTS = {
    "late copies on one rank": late_copies,
    "failing backups on one rank": partial(failing_copies, {BACKUP: 5}),
    "failing restores on one rank": partial(failing_copies, {RESTORE: 5}),
    "failing backups and restores on one rank": partial(failing_copies, {BACKUP: 11, RESTORE: 5}),
    "restores that all fail on one rank": partial(failing_copies, {RESTORE: 1}),
    "no agreement": disagree,
    "several hosts": be_on_several_hosts,
    "another eviction on one rank": evict_more,
    "no memory on one rank": have_no_memory,
    "death of one rank": die,
}
