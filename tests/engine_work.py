"""What rank processes of engine tests do. `cpkv.engine.ranks` imports it in each of them."""

import logging
import os
import random
import signal
import time
from collections import Counter
from dataclasses import replace

import torch.distributed as dist

import cpkv
import cpkv.engine.engine
from cpkv.cp.last_token_tensors import LastTokenTensors
from cpkv.engine import EngineConfig, Stage
from cpkv.engine.exchange import count_collectives
from cpkv.engine.oracle import Oracle

NEW_TOKENS = 20


def prompts(seed, lengths, vocab=128):
    draw = random.Random(seed)
    return [[draw.randrange(vocab) for _ in range(length)] for length in lengths]


def seen_of(request):
    """What a request has come to, comparable across processes."""
    return {
        "tokens": list(request.generated),
        "logits": [one.tolist() for one in request.logits],
        "acceptance": request.acceptance_length,
        "device_hit": request.device_hit_tokens,
        "host_hit": request.host_hit_tokens,
    }


def evict_all(engine):
    evict(engine, engine.config.device_pages)


def evict(engine, count):
    """Evict so many pages of each lane."""
    for lane in range(engine.cp_size):
        engine.paging.scribble(engine.cache.evict(lane, count))


def compared(engine, requests, oracle=None):
    """Bytes of all that is visible, on the device and then on the host only."""
    oracle = oracle or Oracle(engine.config)
    sequences = [request.tokens for request in requests]
    on_device = oracle.compare(engine, sequences)
    evict_all(engine)
    on_host = oracle.compare(engine, sequences)
    return {
        "device_pages": on_device.device_pages,
        "host_pages": on_host.host_pages,
        "wrong": [*on_device.wrong, *on_host.wrong],
    }


def compared_on_device(engine, requests, oracle):
    """Bytes of what is visible on the device, and nothing is evicted."""
    said = oracle.compare(engine, [request.tokens for request in requests])
    return {"device_pages": said.device_pages, "wrong": list(said.wrong)}


def counted_writes(engine):
    """Count from now on how layers of a prefill write their rows: directly, or gathered first."""
    calls, write = Counter(), engine.model._write

    def counted(layer, rows, kv, index):
        if rows.tensors is not None:
            calls["direct" if rows.is_direct else "gathered"] += 1
        write(layer, rows, kv, index)

    engine.model._write = counted
    return calls


class Temperatures:
    """Cold, hot on the device, restored from the host: the same prompts each time."""

    def __init__(self, lengths, seed=1, new_tokens=NEW_TOKENS):
        self.lengths, self.seed, self.new_tokens = lengths, seed, new_tokens

    def __call__(self, engine):
        asked = prompts(self.seed, self.lengths)
        writes, oracle = counted_writes(engine), Oracle(engine.config)
        said = {}
        requests = engine.generate(asked, self.new_tokens)
        said["cold"] = [seen_of(request) for request in requests]
        requests = engine.generate(asked, self.new_tokens)
        said["hot"] = [seen_of(request) for request in requests]
        said["bytes"] = compared(engine, requests, oracle)
        requests = engine.generate(asked, self.new_tokens)
        said["restored"] = [seen_of(request) for request in requests]
        said["restored bytes"] = compared_on_device(engine, requests, oracle)
        half = engine.cache.stats().device_cached_pages // 2
        evict(engine, -(-half // engine.cp_size))
        requests = engine.generate(asked, self.new_tokens)
        said["partly restored"] = [seen_of(request) for request in requests]
        said["bytes in the end"] = compared(engine, requests, oracle)
        said["writes"] = dict(writes)
        said["digest"] = engine.cache.digest()
        engine.cache.check_integrity()
        said["collectives"] = dict(engine.exchange.calls)
        said["all_layer"] = sum(engine.tier.counts.all_layer_forwards.values())
        said["hooked"] = engine.tier.counts.hooked_forwards
        return said


def config(**changes):
    return replace(EngineConfig(keeps_logits=True), **changes)


class CountedCollectives:
    """Count what goes through process groups from before the engine is made, and what the model says of that."""

    def options(self, _):
        self.calls = count_collectives()
        return {}

    def __call__(self, engine):
        engine.generate(prompts(1, [70, 40]), 6)
        evict_all(engine)
        engine.generate(prompts(1, [70, 40]), 6)
        said = {
            "all": self.calls.total(),
            "model": engine.exchange.calls.total(),
            "restored": engine.cache.stats().restored_pages,
        }
        dist.barrier()
        dist.group.WORLD.barrier().wait()
        return said | {"with two more": self.calls.total()}


class Generated:
    """Nothing but answers."""

    def __init__(self, lengths, new_tokens):
        self.lengths, self.new_tokens = lengths, new_tokens

    def __call__(self, engine):
        return [seen_of(request) for request in engine.generate(prompts(1, self.lengths), self.new_tokens)]


class DirectAnyway:
    """Write directly what is not page-aligned."""

    def __call__(self, engine):
        own_rows = cpkv.engine.engine.own_rows
        cpkv.engine.engine.own_rows = lambda *arguments: replace(own_rows(*arguments), is_direct=True)
        engine.generate(prompts(1, [20]), 1)


class WrongRank:
    """Read the last token's hidden state of a rank that does not have it."""

    def __call__(self, engine):
        pick = LastTokenTensors.pick
        LastTokenTensors.pick = lambda last, gathered: pick(last, gathered.roll(1, 0))
        return [seen_of(request) for request in engine.generate(prompts(1, [100]), 4)]


class Killed:
    """One rank dies in the middle of a forward, or stands still; the others tell what they hear of it."""

    def __init__(self, victim, how=signal.SIGKILL):
        self.victim, self.how = victim, how

    def __call__(self, engine):
        ended = engine.model.layer_ended

        def layer_ended(layer):
            ended(layer)
            if engine.rank == self.victim and layer == 1 and engine.cache.stats().committed_operations:
                os.kill(os.getpid(), self.how)

        engine.model.layer_ended = layer_ended
        started = time.monotonic()
        try:
            for number in range(1_000):
                engine.generate(prompts(number, [70]), 4)
        except cpkv.RankError as error:
            return {"said": str(error), "seconds": time.monotonic() - started}
        return None


class Crowded:
    """More requests than fit at once, one of which is given up on the way."""

    def __call__(self, engine):
        requests = [engine.submit(prompt, 64) for prompt in prompts(5, [30, 31, 32, 33])]
        victim = engine.submit(prompts(6, [50])[0], 64)
        while victim.stage is Stage.WAITING:
            engine.step()
        engine.abort(victim)
        engine.run()
        said = compared(engine, requests)
        engine.cache.check_integrity()
        return {
            "seen": [seen_of(request) for request in requests],
            "retracted": sum(request.retracted for request in requests),
            "victim": victim.stage,
            "wrong": said["wrong"],
            "digest": engine.cache.digest(),
        }


class Drafts:
    """A prompt whose pages have owners, and one that is too short for that."""

    def options(self, _):
        os.environ["CPKV_DEBUG_DRAFT_SHARED_KV"] = "1"
        self.lines = []
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(record.getMessage())
        logging.getLogger("cpkv.draft").addHandler(handler)
        logging.getLogger("cpkv.draft").setLevel(logging.INFO)
        return {}

    def __call__(self, engine):
        request = engine.submit(prompts(1, [80])[0], 2)
        engine.step()
        mine = [page for page in request.pages[:5] if page % engine.cp_size == engine.rank]
        said = {
            "ids": mine,
            "aligned_pages": sorted(page // engine.cp_size for page in mine),
            "aligned_rows": len(mine) * engine.config.page_size,
        }
        engine.run()
        engine.generate(prompts(2, [20]), 2)
        return said | {"lines": self.lines}
