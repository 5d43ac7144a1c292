"""The scheduler processes that share a tree: how they find each other, and how they agree.

SGLang gives all of them the same requests, and each makes the same calls on a tree of its own, with its own part of
every page. What only one of them knows, whether its copies have landed or failed, goes through a commit log in shared
memory (`CommitLog`), or through a reduction if they are on several hosts. They find each other in SGLang's process
groups, once, when their caches are made; with a log nothing is sent through these groups afterwards.
"""

import platform
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from cpkv._core import CacheManager, CommitLog, PageIds
from cpkv.errors import LogError

LOG_NAME: Final = "sglang"
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where logs are made, which no other user can touch
JOIN_S: Final = 60.0
"""The ranks have met at once before: who is not there then is dead."""


class Terms(NamedTuple):
    """What a rank brings to the meeting."""

    rank: int
    """Among all of SGLang's."""
    place: str
    nonce: int
    slots: int
    takes_events: bool


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks that share a tree, as one of them sees them. One alone agrees with nobody.

    Args:
        rank: This one.
        size: How many there are.
        on_host: Scheduler processes on this host, which share its memory.
        slots: Pages that the host holds of each, alike on all.
        has_events: Whether any of them publishes what the caches of all have to note.
        nonce: Of the commit log.
        is_one_host: Whether all of them reach the same shared memory.
        groups: SGLang's process groups that lead from one to all of them, one after the other.
        world: SGLang's process group of all.
    """

    rank: int = 0
    size: int = 1
    on_host: int = 1
    slots: int = 0
    has_events: bool = False
    nonce: int = 0
    is_one_host: bool = True
    groups: tuple[Any, ...] = ()
    world: Any = None

    def attach(self, manager: CacheManager) -> CommitLog | None:
        """Let the cache agree with those of the other ranks; return the log if there is one, which is to be closed.

        Raises:
            LogError: The log cannot be made or joined, or the caches of the ranks have other settings.
        """
        if self.size == 1:
            return None
        ranks, fingerprint = self.size, manager.fingerprint
        others = set(_gathered([fingerprint], self.groups)) - {fingerprint}
        if others:
            message = f"the fingerprint of the cache is {fingerprint:#x}, that of another rank {min(others):#x}"
            raise LogError(message)
        if not self.is_one_host:
            manager.attach_reduction(Minimum(self.groups))
            return None
        if self.rank == 0:
            log = CommitLog.create(LOG_NAME, self.nonce, ranks=ranks, fingerprint=fingerprint)
        else:
            log = CommitLog.join(LOG_NAME, self.nonce, self.rank, ranks=ranks, fingerprint=fingerprint, timeout=JOIN_S)
        try:
            log.wait_for_all(JOIN_S)
            # The log has lost its name before any rank goes on and may fail; the locks of all are known to all.
            _gathered([None], self.groups)
            log.remove_name()
            manager.attach_log(log)
        except BaseException:
            log.close()
            raise
        return log

    def wait(self) -> None:
        """Wait for all scheduler processes, also those of other trees: before any of them takes memory."""
        if self.world is not None:
            dist.barrier(self.world)

    def __str__(self) -> str:
        if self.size == 1:
            return "alone"
        return f"rank {self.rank} of {self.size} that agree through " + (
            "a commit log" if self.is_one_host else "a reduction, on several hosts"
        )


ONE: Final = Ranks()


class Minimum:
    """Reduces votes over all ranks, beside the forward: see `CacheManager.attach_reduction`.

    Args:
        groups: As in `Ranks`.
    """

    def __init__(self, groups: Sequence[Any]) -> None:
        self._groups = groups

    def __call__(self, votes: PageIds) -> Callable[[], NDArray[np.int64]]:
        """Begin, and return what ends it."""
        least = torch.from_numpy(np.array(votes, np.int64))
        *before, last = self._groups
        for group in before:
            dist.all_reduce(least, dist.ReduceOp.MIN, group)
        work = dist.all_reduce(least, dist.ReduceOp.MIN, last, async_op=True)

        def end() -> NDArray[np.int64]:
            work.wait()
            array: NDArray[np.int64] = least.numpy()
            return array

        return end


def meet(params: Any, slots: int) -> Ranks:  # noqa: ANN401 - SGLang's
    """Let this rank find the others of its tree, and agree on what has to be alike. Called once on each of them.

    Args:
        params: What SGLang makes every cache of.
        slots: Pages that the host could hold of this rank. The least counts.
    """
    if not dist.is_initialized():
        return Ranks(slots=slots)
    from sglang.srt.distributed.parallel_state import get_world_group  # noqa: PLC0415 - brings in what models need

    groups, world = groups_of(params), get_world_group().cpu_group
    own = Terms(dist.get_rank(), place(), secrets.randbits(64), slots, params.enable_kv_cache_events)
    told = _gathered([own], groups)
    return Ranks(
        rank=[one.rank for one in told].index(own.rank),
        size=len(told),
        on_host=_gathered([own.place], [world]).count(own.place),
        slots=min(one.slots for one in told),
        has_events=any(one.takes_events for one in told),
        nonce=told[0].nonce,
        is_one_host=len({one.place for one in told}) == 1,
        groups=groups,
        world=world,
    )


def groups_of(params: Any) -> tuple[Any, ...]:  # noqa: ANN401 - SGLang's
    """Return the process groups of more than one rank that lead to all who share a tree.

    These are the ranks that compute the same batch: of tensor parallelism, or of what attention keeps of it beside data
    parallelism and context parallelism, times those of context parallelism. Each replica of data parallelism and each
    stage of a pipeline has a tree of its own.
    """
    groups = _several(params.attn_cp_cache_group, params.attn_tp_cache_group)
    return groups or _several(params.tp_cache_group)


def _several(*groups: Any) -> tuple[Any, ...]:  # noqa: ANN401 - torch's process groups, or nothing
    return tuple(group for group in groups if group is not None and dist.get_world_size(group) > 1)


def _gathered(told: list[Any], groups: Sequence[Any]) -> list[Any]:
    """What all have told, in the same order on all of them."""
    for group in groups:
        parts: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(parts, told, group)
        told = [one for part in parts for one in part]
    return told


def place() -> str:
    """Name the shared memory that this process reaches: that of its host, and of its container."""
    started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{platform.node()} {started} {Path(SHARED_MEMORY).stat().st_dev}"
