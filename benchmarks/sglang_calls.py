"""CPU time of the cache's calls in SGLang's scheduler, beside those of SGLang's own cache.

Conversations that share no prompts are served as SGLang's scheduler does it, with its own functions, allocator and
rows; only the model is missing. Every request is served with each cache in turn, each on pools of its own, so that a
slow minute of the machine slows all. A call that a cache makes to itself counts for the call that it is part of; what
the allocator does in a call counts, too, and what cpkv does around a forward: on a GPU it asks for pages there, on a
CPU it does nothing, like SGLang's own cache. The device pool holds about half of the conversations: the rest is
evicted.

python benchmarks/sglang_calls.py [--repeats 5] [--case NAME ...] [--json FILE]
"""

import argparse
import gc
import json
import os
import random
import statistics
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from time import thread_time_ns
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import torch
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.common import checkpoint_kv_cache, evict_from_tree_cache, match_kv_cache, release_kv_cache
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.registry import default_radix_cache_factory
from sglang.srt.runtime_context import get_context
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.version import __version__ as sglang_version

from cpkv.bench import machine
from cpkv.sglang.cache import PrefixCache
from cpkv.sglang.plugin import make_cache

CHUNK: Final = 8_192
"""Tokens of a prompt that SGLang computes at once."""
NEW_TOKENS: Final = 256
"""Of each turn."""
ANSWER_TOKENS: Final = 64
TURNS: Final = 5
"""Of a conversation. Another one takes its place."""
LOOKS_FOR_ROOM: Final = 4
"""While a request is admitted."""
CALLS: Final = {
    "match_prefix": "match",
    "prefix_device_indices": "match",
    "lock": "lock",
    "unlock": "lock",
    "checkpoint": "insert",
    "evict_for_alloc": "evict",
    "evictable_size": "room",
}
FORWARD: Final = "forward"
"""What is around one that computes a prompt."""
KINDS: Final = [*dict.fromkeys(CALLS.values()), FORWARD]
NOTHING: Final = "nothing"
"""A call that does nothing: what measuring costs."""
OURS: Final = "cpkv"
THEIRS: Final = "SGLang"


class Case(NamedTuple):
    """One kind of work: requests of conversations whose prompts begin so long."""

    page_size: int
    prompt: int
    conversations: int
    requests: int

    def __str__(self) -> str:
        return f"{self.prompt // 1024}k-pages-of-{self.page_size}"


CASES: Final = [
    Case(page_size, prompt, conversations, requests)
    for page_size in (1, 64)
    for prompt, conversations, requests in ((1_024, 128, 640), (32_768, 8, 40), (131_072, 8, 24))
]


def make_theirs(core: str) -> Callable[[Any], Any]:
    """Return what makes SGLang's own cache with a core in that language."""

    def make(made_of: Any) -> Any:  # noqa: ANN401 - SGLang's
        made_of.params.tree_core_backend = core
        return default_radix_cache_factory(made_of)

    return make


CACHES: Final[dict[str, Callable[[Any], Any]]] = {
    OURS: make_cache,
    THEIRS: make_theirs("rust"),
    "SGLang, core in Python": make_theirs("python"),
}


class Clock:
    """Adds up what the calls of a cache take, in nanoseconds of the thread."""

    def __init__(self) -> None:
        self.taken: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._is_inside = False
        self.nothing = self.measured(lambda: None, NOTHING)

    def watch(self, cache: Any) -> None:  # noqa: ANN401 - a cache of SGLang's
        """Measure the calls of a cache from now on."""
        for name, kind in CALLS.items():
            setattr(cache, name, self.measured(getattr(cache, name), kind))

    def measured(self, call: Callable[..., Any], kind: str) -> Callable[..., Any]:
        """Return a call that is measured."""

        @wraps(call)
        def measured(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - as it was
            if self._is_inside:
                return call(*arguments, **named)
            self._is_inside = True
            begun = thread_time_ns()
            try:
                return call(*arguments, **named)
            finally:
                self.taken[kind] += thread_time_ns() - begun
                self.calls[kind] += 1
                self._is_inside = False

        return measured

    def microseconds(self, requests: int) -> dict[str, float]:
        """Return what each kind of call takes for a request, without what measuring it costs."""
        cost = self.taken[NOTHING] / self.calls[NOTHING]
        return {kind: (self.taken[kind] - cost * self.calls[kind]) / requests / 1_000 for kind in KINDS}


class Side:
    """One cache with its pools, and what moves requests on."""

    def __init__(self, make: Callable[[Any], Any], case: Case) -> None:
        self.page_size = case.page_size
        longest = case.prompt + TURNS * (NEW_TOKENS + ANSWER_TOKENS)
        size = case.conversations * (case.prompt + longest) // 4
        size -= size % case.page_size
        common = {"dtype": torch.float32, "device": "cpu", "kvcache": SimpleNamespace(device="cpu"), "need_sort": False}
        self.allocator = (
            PagedTokenToKVPoolAllocator(size, case.page_size, **common)
            if case.page_size > 1
            else TokenToKVPoolAllocator(size, **common)
        )
        self.rows = ReqToTokenPool(2, longest, "cpu", enable_memory_saver=False)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=self.rows,
            token_to_kv_pool_allocator=self.allocator,
            page_size=case.page_size,
        )
        self.cache = make(
            SimpleNamespace(
                params=params,
                server_args=SimpleNamespace(),
                is_hybrid_swa=False,
                is_hybrid_ssm=False,
                enable_hierarchical_cache=False,
                disable_radix_cache=False,
                full_tokens_per_layer=None,
            )
        )
        self.clock = Clock()
        self.clock.watch(self.cache)
        self._follow = self.clock.measured(self._around_forward, FORWARD)
        self.found = 0

    def serve(self, number: int, prompt: array, answer: array) -> None:
        """Serve one request, from its admission to its end."""
        request = Req(str(number), "", array("q", prompt), SamplingParams())
        self._admit(request)
        for end in (*range(request.prefix_len + CHUNK, len(prompt), CHUNK), len(prompt)):
            self._extend(request, end)
            if isinstance(self.cache, PrefixCache) and self.cache.follows_forwards:
                self._follow(request)
            checkpoint_kv_cache(request, self.cache)
        for token in answer:
            request.output_ids.append(token)
            request.refresh_fill_ids()
            self._extend(request, len(prompt) + len(request.output_ids) - 1)
        request.finished_reason = FINISH_ABORT()
        release_kv_cache(request, self.cache, checkpoint=True)

    def _around_forward(self, request: Req) -> None:
        with self.cache.forward(SimpleNamespace(reqs=[request], decoding_reqs=None)):
            pass

    def _admit(self, request: Req) -> None:
        request.refresh_fill_ids()
        tokens = request.origin_input_ids
        match_kv_cache(request, self.cache, tokens, max_prefix_len=len(tokens) - 1)
        self.found += request.prefix_len
        deciding = self.cache.lock(request.last_node)
        for _ in range(LOOKS_FOR_ROOM):
            self.cache.evictable_size()
            self.clock.nothing()
        request.lock = self.cache.lock(request.last_node)
        self.cache.unlock(deciding)
        record = request.kv
        record.cache_protected_len = record.cache_inserted_len = request.prefix_len
        record.req_pool_idx = self.rows.free_slots.pop()
        if request.prefix_len:
            row = self.rows.req_to_token[record.req_pool_idx]
            row[: request.prefix_len] = self.cache.prefix_device_indices(request).to(torch.int32)
        record.kv_allocated_len = record.kv_committed_len = request.prefix_len

    def _extend(self, request: Req, end: int) -> None:
        page, record = self.page_size, request.kv
        first = -(-record.kv_allocated_len // page) * page
        missing = -(-end // page) * page - first
        if missing > 0:
            evict_from_tree_cache(self.cache, missing)
            taken = self.allocator.alloc(missing)
            self.rows.req_to_token[record.req_pool_idx, first : first + missing] = taken.to(torch.int32)
        record.kv_allocated_len = record.kv_committed_len = request.extend_end = end


def requests_of(case: Case, seed: int) -> Iterator[tuple[array, array]]:
    """Yield prompts and answers. Of the conversations some go on more often than others."""
    draw = random.Random(seed)
    histories = [array("q")] * case.conversations
    turns = [TURNS] * case.conversations
    for _ in range(case.requests):
        place = min(int(draw.expovariate(3 / case.conversations)), case.conversations - 1)
        if turns[place] == TURNS:
            turns[place], histories[place] = 0, tokens(draw, case.prompt - NEW_TOKENS)
        prompt = histories[place] + tokens(draw, NEW_TOKENS)
        answer = tokens(draw, ANSWER_TOKENS)
        turns[place], histories[place] = turns[place] + 1, prompt + answer
        yield prompt, answer


def tokens(draw: random.Random, count: int) -> array:
    """Return random tokens."""
    return array("q", draw.choices(range(128_000), k=count))


def measure(case: Case, seed: int) -> dict[str, dict[str, float]]:
    """Return for each cache the microseconds of each kind of call for a request, and the tokens found."""
    sides = {name: Side(make, case) for name, make in CACHES.items()}
    order = list(sides)
    gc.collect()
    gc.disable()
    for number, (prompt, answer) in enumerate(requests_of(case, seed)):
        for name in order:
            sides[name].serve(number, prompt, answer)
        order.append(order.pop(0))
    gc.enable()
    figures = {}
    for name, side in sides.items():
        taken = side.clock.microseconds(case.requests)
        figures[name] = taken | {"all": sum(taken.values()), "found_tokens": side.found}
    return figures


def table(case: Case, rounds: list[dict[str, dict[str, float]]]) -> Iterator[str]:
    """Yield a row of Markdown for each cache: medians of the rounds, and the ratio to SGLang's cache."""
    kinds = [*KINDS, "all"]
    for name in CACHES:
        medians = [statistics.median(one[name][kind] for one in rounds) for kind in kinds]
        ratio = statistics.median(one[name]["all"] / one[THEIRS]["all"] for one in rounds)
        found = statistics.median(one[name]["found_tokens"] for one in rounds)
        cells = [str(case), name, *(f"{median:,.1f}" for median in medians), f"{ratio:.2f}", f"{found:,.0f}"]
        yield f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure, print a table, and write what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--case", nargs="*", choices=[str(case) for case in CASES])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| case | cache | {' | '.join(KINDS)} | all | to SGLang's | found tokens |")
    print("|---" * (len(KINDS) + 5) + "|")
    written = []
    with get_context().override_server_args():
        for case in CASES:
            if arguments.case and str(case) not in arguments.case:
                continue
            rounds = [measure(case, seed) for seed in range(arguments.repeats)]
            print("\n".join(table(case, rounds)), flush=True)
            written.append({"case": case._asdict(), "us_per_request": rounds})
    if arguments.json:
        about = machine() | {"torch": torch.__version__, "sglang": sglang_version, "load": os.getloadavg()}
        text = json.dumps({"machine": about, "cases": written}, indent=2) + "\n"
        arguments.json.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
