"""What the ranks of the demo do, one scenario after the other, each with the same prompts where that can be."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from cpkv.demo.recorder import Recorder
from cpkv.demo.timed_engine import TimedCudaEngine
from cpkv.demo.warm_up import warm_up
from cpkv.demo.watching import Progress
from cpkv.device import CpuEngine
from cpkv.engine import Engine, Request, Stage
from cpkv.engine.backups import Backup
from cpkv.engine.exchange import count_collectives
from cpkv.engine.oracle import Oracle

SCENARIOS: Final = ("cold", "device-hot", "host-restored", "partly restored", "abort in mid-backup", "short request")
PROMPTS: Final = (230, 97, 160)
BEYOND_PAGE: Final = 9
"""Tokens of the short prompt behind its first page."""
NEW_TOKENS: Final = 16
LINK_BYTES_PER_S: Final = 30e6
"""The copies of a GPU's forward take a part of its time; those of a small model would take none."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a request has come to, comparable between processes.

    Args:
        tokens: Generated.
        logits: Of which each was sampled.
        acceptance_length: Tokens that a verification has brought.
        device_hit_tokens: Found on the device.
        host_hit_tokens: Brought back from the host.
    """

    tokens: tuple[int, ...]
    logits: tuple[tuple[float, ...], ...]
    acceptance_length: float
    device_hit_tokens: int
    host_hit_tokens: int

    @classmethod
    def of(cls, request: Request) -> "Seen":
        """Take it from a request."""
        return cls(
            tokens=tuple(request.generated),
            logits=tuple(tuple(logits.tolist()) for logits in request.logits),
            acceptance_length=request.acceptance_length,
            device_hit_tokens=request.device_hit_tokens,
            host_hit_tokens=request.host_hit_tokens,
        )


@dataclass(slots=True)
class Outcome:
    """What a scenario has come to on a rank.

    Args:
        requests: Those that were served to their end.
        pages: Pages of this rank's lane whose bytes were compared, in every component and layer: on the host in
            the moment of their commit, and at the end wherever a match finds them.
        found_pages: Those of them that a match has found at the end.
        whole_pages: That all ranks together have to find at the end.
        wrong: Those that were not what they have to be.
        problems: What else is not as it should be.
        seconds: What it has taken, the comparison of bytes left out.
    """

    requests: list[Seen]
    pages: int = 0
    found_pages: int = 0
    whole_pages: int = 0
    wrong: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank has to tell at the end.

    Args:
        outcomes: By scenario.
        events: For the timeline, see `Recorder`.
        backup_ns: How long backups were copied, and how much of it lies within forwards, in nanoseconds; 0 where
            nobody tells.
        counts: Totals of the host tier.
        collectives: The model's, by what they were for.
        other_collectives: All others that the process has taken part in: the cache would have made them.
    """

    outcomes: dict[str, Outcome]
    events: list[dict[str, Any]]
    backup_ns: tuple[int, int]
    counts: dict[str, int]
    collectives: dict[str, int]
    other_collectives: int


def prompts(vocab: int, lengths: Sequence[int] = PROMPTS, seed: int = 7) -> list[list[int]]:
    """Make up prompts, the same for everyone who asks."""
    draw = random.Random(seed)
    return [[draw.randrange(vocab) for _ in range(length)] for length in lengths]


def short_length(ranks: int, page_size: int) -> int:
    """Return the length of a prompt that has a whole page and is too short to be split by pages.

    That is one with less than two pages for each rank. With one rank every prompt is split by pages.
    """
    length = page_size + BEYOND_PAGE
    return length if ranks == 1 else min(length, (2 * ranks - 1) * page_size)


class Scenarios:
    """Run on every rank.

    Args:
        progress: Numbers that the watching process reads.
        name: Of the split, for the timeline.
        is_on_gpu: Whether a GPU copies.
    """

    def __init__(self, progress: Any, name: str, *, is_on_gpu: bool = False) -> None:  # noqa: ANN401 - of ctypes
        self._cells = progress
        self._name = name
        self._is_on_gpu = is_on_gpu
        self._recorder: Recorder | None = None
        self._engine: Engine | None = None
        self._oracle: Oracle | None = None
        self._pages = 0
        """Compared in the moment of their commits, in this scenario."""
        self._backups = 0
        """Those that they are of, in all scenarios."""
        self._wrong: list[str] = []

    def options(self, rank: int) -> dict[str, Any]:
        """Return what an engine is told of: copies over a slow link, unless a GPU has its own, and commits."""
        if self._is_on_gpu:
            gpu = TimedCudaEngine(torch.cuda.current_device())
            self._recorder = Recorder(rank, self._name, gpu)
            return {"on_commit": self._committed, "copy_engine": gpu}
        self._recorder = Recorder(rank, self._name)
        engine = CpuEngine(bytes_per_s=LINK_BYTES_PER_S, on_copied=self._recorder.copied)
        return {"on_commit": self._committed, "copy_engine": engine}

    def _committed(self, backups: list[Backup]) -> None:
        """Compare what has become visible at once: a moment later it would be whole in any case."""
        if self._recorder is not None:
            self._recorder.committed(backups)
        if self._engine is not None and self._oracle is not None:
            for backup in backups:
                compared = self._oracle.compare_backup(self._engine, backup)
                self._backups += 1
                self._pages += compared.host_pages
                self._wrong += compared.wrong

    def __call__(self, engine: Engine) -> RankReport:
        """Run all scenarios."""
        vocab = engine.config.model.vocab
        asked = prompts(vocab)
        warm_up(engine, asked)
        calls = count_collectives()
        recorder = self._recorder or Recorder(engine.rank, self._name)
        progress = Progress(self._cells, engine.rank, engine.config.model.layers + 1)
        recorder.attach(engine, progress)
        self._engine, self._oracle = engine, Oracle(engine.config)
        short = prompts(vocab, [short_length(engine.cp_size, engine.config.page_size)], seed=8)
        outcomes = {}
        acts: dict[str, Callable[[], list[Request]]] = {
            "cold": lambda: engine.generate(asked, NEW_TOKENS),
            "device-hot": lambda: engine.generate(asked, NEW_TOKENS),
            "host-restored": lambda: _evict_and_generate(engine, 1.0, asked),
            "partly restored": lambda: _evict_and_generate(engine, 0.5, asked),
            "abort in mid-backup": lambda: _abort(engine, recorder, asked),
            "short request": lambda: engine.generate(short, NEW_TOKENS),
        }
        for place, (name, act) in enumerate(acts.items()):
            progress.scenario(place)
            started = time.monotonic()
            sent = engine.exchange.calls["rows"]
            requests = act()
            outcome = Outcome([Seen.of(request) for request in requests if request.stage is Stage.FINISHED])
            outcome.seconds = time.monotonic() - started
            compared = self._oracle.compare(engine, [request.tokens for request in requests])
            outcome.found_pages = compared.device_pages + compared.host_pages
            outcome.pages = outcome.found_pages + self._pages
            outcome.whole_pages = sum(
                (len(request.tokens) - 1) // engine.config.page_size
                for request in requests
                if request.stage is Stage.FINISHED
            )
            outcome.wrong = [*self._wrong, *compared.wrong]
            self._pages, self._wrong = 0, []
            outcome.problems = _problems(name, engine, requests, engine.exchange.calls["rows"] - sent)
            committed = engine.cache.stats().committed_operations
            if committed != self._backups:
                outcome.problems.append(
                    f"{self._backups} of {committed} backups were compared when they became visible"
                )
            outcomes[name] = outcome
        counts = engine.tier.counts.as_dict() if engine.tier is not None else {}
        engine.cache.check_integrity()
        recorder.finish()
        return RankReport(
            outcomes=outcomes,
            events=recorder.events(),
            backup_ns=recorder.backup_ns(),
            counts=counts,
            collectives=dict(engine.exchange.calls),
            other_collectives=calls.total() - engine.exchange.calls.total(),
        )


def _evict_and_generate(engine: Engine, share: float, asked: Sequence[Sequence[int]]) -> list[Request]:
    for lane in range(engine.cp_size):
        engine.cache.evict(lane, round(engine.cache.evictable_pages(lane) * share))
    return engine.generate(asked, NEW_TOKENS)


def _abort(engine: Engine, recorder: Recorder, asked: Sequence[Sequence[int]]) -> list[Request]:
    """Give a request up while its layers are being copied; another one goes on beside it."""
    victim = engine.submit(prompts(engine.config.model.vocab, [150], seed=9)[0], NEW_TOKENS)

    def abort() -> None:
        # Otherwise it is served to its end, and that is told.
        if victim.transaction is not None and victim.transaction.status == "reserved":
            engine.abort(victim)

    recorder.at_layer(1, abort)
    other = engine.submit(asked[1], NEW_TOKENS)
    engine.run()
    return [other, victim]


def _problems(name: str, engine: Engine, requests: Sequence[Request], rows_sent: int) -> list[str]:
    """Return why a scenario is not what it is called.

    Args:
        name: Of the scenario.
        engine: After it.
        requests: Of it.
        rows_sent: How often the ranks have sent each other rows that could not be written directly.
    """
    on_device = [request.device_hit_tokens for request in requests]
    on_host = [request.host_hit_tokens for request in requests]
    hits = f"from the device {on_device} tokens were found, from the host {on_host}"
    if name == "abort in mid-backup":
        victim = requests[-1]
        found = engine.cache.match(list(victim.prompt)).pages
        if victim.stage is not Stage.ABORTED or found:
            return [f"the aborted request is {victim.stage.value}, and {found} pages of it are found"]
    is_right, wanted = {
        "cold": (not any(on_device) and not any(on_host), "none"),
        "device-hot": (all(on_device) and not any(on_host), "some from the device only for each request"),
        "host-restored": (all(on_host) and not any(on_device), "some from the host only for each request"),
        "partly restored": (any(on_device) and any(on_host), "some from both"),
        "short request": (not any(on_device) and not any(on_host), "none"),
    }.get(name, (True, ""))
    problems = [] if is_right else [f"{hits}, want {wanted}"]
    can_fall_back = engine.cp_size > 1 and (engine.config.split == "zigzag" or engine.config.page_size > 1)
    if name == "short request" and can_fall_back and not rows_sent:
        problems.append("the short request was split by pages, want one that is too short for that")
    return problems
