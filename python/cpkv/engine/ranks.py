"""Rank processes on this host: each with an engine, gloo or NCCL for the model, and one commit log."""

import multiprocessing
import os
import secrets
import signal
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Final, Self

import torch
import torch.distributed as dist

from cpkv._core import CommitLog
from cpkv.engine.config import EngineConfig
from cpkv.engine.engine import DEATH_IS_KNOWN_S, Engine
from cpkv.engine.pools import check_device
from cpkv.errors import CpkvError

JOIN_S: Final = 60.0
MEETING: Final = "meeting"
PATIENCE_S: Final = 30.0
"""After which a silent rank is an error on all others."""
MARGIN_S: Final = DEATH_IS_KNOWN_S + 5.0
"""What the others may take beyond that to hear which rank it was, and to end."""

Work = Callable[[Engine], Any]
"""What a rank does with its engine, alike on all ranks; has to be importable. Returns what can be pickled.

If it has a method `options(rank)`, that returns more arguments of the engine on a rank, such as what copies.
"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the ranks of a group meet.

    Args:
        folder: Of the files through which processes find each other.
        nonce: Of the commit log.
        cp_size: Ranks.
        patience_s: After which a silent rank is an error.
    """

    folder: str
    nonce: int
    cp_size: int
    patience_s: float


def run_ranks(work: Work, config: EngineConfig, cp_size: int, *, patience_s: float = PATIENCE_S) -> list[Any]:
    """Do the same on every rank of a group of processes, and return what each has returned, by rank.

    Args:
        work: Called with the engine of each rank.
        config: Of the engines.
        cp_size: Ranks.
        patience_s: After which a silent rank is an error.

    Raises:
        CpkvError: A rank has failed or stands still; the message has what each has said.
    """
    with Ranks(work, config, cp_size, patience_s=patience_s) as ranks:
        results = ranks.results()
    check_results(results)
    return results


def check_results(results: Sequence[Any]) -> None:
    """Refuse what `Ranks.results` has returned if a rank has failed.

    Raises:
        CpkvError: Has a line for each that has, with its number and what it has said.
    """
    failed = [f"rank {rank}: {result}" for rank, result in enumerate(results) if isinstance(result, RankFailure)]
    if failed:
        raise CpkvError("\n".join(failed))


@dataclass(frozen=True, slots=True)
class RankFailure:
    """How a rank has ended that has not done its work.

    Args:
        error: The name of the exception; empty if the process is gone.
        said: Its message.
        trace: Where it was raised.
    """

    error: str
    said: str
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.error}: {self.said}" if self.error else self.said


class Ranks:
    """The processes of a group. A context manager that ends them.

    Args:
        work: See `run_ranks`.
        config: Of the engines.
        cp_size: Ranks.
        patience_s: See `run_ranks`.
        folder: Where they meet; a new one that goes with them if not given.
    """

    def __init__(
        self,
        work: Work,
        config: EngineConfig,
        cp_size: int,
        *,
        patience_s: float = PATIENCE_S,
        folder: Path | None = None,
    ) -> None:
        self._own_folder = None if folder else tempfile.TemporaryDirectory(prefix="cpkv-ranks-")
        where = folder or Path(self._own_folder.name if self._own_folder else ".")
        self._grace_s = patience_s + MARGIN_S
        """What ranks may take after the first has ended."""
        self._is_over = False
        """Whether that time has passed, and what still ran was killed."""
        # What an earlier group has left is none of this one's.
        (where / MEETING).unlink(missing_ok=True)
        place = Place(str(where), secrets.randbits(62), cp_size, patience_s)
        context = multiprocessing.get_context("forkserver")
        # Importing torch takes longer than what the ranks do: once for all of them.
        context.set_forkserver_preload(["cpkv.engine.ranks"])
        self.processes = []
        self._ends: list[Connection] = []
        for rank in range(cp_size):
            here, there = context.Pipe(duplex=False)
            arguments = (there, work, config, rank, place)
            process = context.Process(target=_run, args=arguments, name=f"cpkv-rank-{rank}", daemon=True)
            process.start()
            there.close()
            self.processes.append(process)
            self._ends.append(here)

    def results(self, *, meanwhile: Callable[[], None] | None = None, every_s: float = 0.05) -> list[Any]:
        """Wait for all ranks; a `RankFailure` for each that has failed.

        The others hear of a rank that stands still after the group's patience, and it never ends by itself: what
        runs for that long, and a margin, after the first rank has ended is killed.

        Args:
            meanwhile: Called again and again until all have ended.
            every_s: How often.
        """
        waiting = {end: rank for rank, end in enumerate(self._ends)}
        results: dict[int, Any] = {}
        killer = threading.Timer(self._grace_s, self._kill)
        killer.daemon = True
        try:
            while waiting:
                ready = wait(list(waiting), every_s if meanwhile is not None else None)
                if ready and not results:
                    # Before the first is read: it may stand still in the middle of what it says.
                    killer.start()
                for end in self._ends:
                    if end in ready:
                        rank = waiting.pop(end)
                        results[rank] = self.result(rank)
                if meanwhile is not None:
                    meanwhile()
        finally:
            killer.cancel()
        return [results[rank] for rank in range(len(self.processes))]

    def result(self, rank: int, timeout_s: float | None = None) -> Any:  # noqa: ANN401 - what the work returns
        """Wait for one rank; a `RankFailure` if it has failed, or does not end in time."""
        if not self._ends[rank].poll(timeout_s):
            return RankFailure("", f"the process has not ended in {timeout_s} s")
        try:
            result = self._ends[rank].recv()
        except (EOFError, OSError):  # at the end of the process, also in the middle of what it says
            self.processes[rank].join()
            if self._is_over and self.processes[rank].exitcode == -signal.SIGKILL:
                return RankFailure("", f"stands still: it has not ended in {self._grace_s:g} s after the first rank")
            return RankFailure("", f"the process has ended with status {self.processes[rank].exitcode}")
        self.processes[rank].join()
        return result

    def _kill(self) -> None:
        self._is_over = True
        for process in self.processes:
            # One that has ended is left alone. Whether it has is asked by the thread that joins it only.
            process.kill()

    def close(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        for end in self._ends:
            end.close()
        if self._own_folder is not None:
            self._own_folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _run(end: Connection, work: Work, config: EngineConfig, rank: int, place: Place) -> None:
    try:
        end.send(_work(work, config, rank, place))
    except BaseException as error:  # noqa: BLE001 - the process that waits is told
        end.send(RankFailure(type(error).__name__, str(error), traceback.format_exc()))
    finally:
        end.close()


def _work(work: Work, config: EngineConfig, rank: int, place: Place) -> Any:  # noqa: ANN401
    torch.set_num_threads(1)
    backend = "gloo"
    if config.is_on_gpu:
        check_device(config)
        if config.device == "cuda":
            gpus = torch.cuda.device_count()
            config = replace(config, device=f"cuda:{rank % gpus}")
            # NCCL takes one rank on a GPU. With more, what they send goes through the host.
            backend = "nccl" if gpus >= place.cp_size else "gloo"
        # A collective with a dead rank is then an error as with gloo: see `all_gather_over`.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        torch.cuda.set_device(config.gpu)
    meeting = Path(place.folder) / MEETING
    dist.init_process_group(
        backend,
        init_method=f"file://{meeting}",
        rank=rank,
        world_size=place.cp_size,
        timeout=timedelta(seconds=place.patience_s),
    )
    try:
        options = getattr(work, "options", None)
        more = options(rank) if options else {}
        with Engine(config, rank=rank, cp_size=place.cp_size, new_log=_log_of(rank, place), **more) as engine:
            return work(engine)
    finally:
        dist.destroy_process_group()


def _log_of(rank: int, place: Place) -> Callable[[int], CommitLog]:
    def new_log(fingerprint: int) -> CommitLog:
        ranks, folder = place.cp_size, place.folder
        if rank == 0:
            log = CommitLog.create("engine", place.nonce, ranks=ranks, fingerprint=fingerprint, directory=folder)
            log.wait_for_all(JOIN_S)
        else:
            log = CommitLog.join(
                "engine", place.nonce, rank, timeout=JOIN_S, ranks=ranks, fingerprint=fingerprint, directory=folder
            )
        log.set_patience(warning=place.patience_s / 2, deadline=place.patience_s)
        return log

    return new_log
