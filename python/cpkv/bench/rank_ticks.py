"""The tick of several rank processes that agree through a commit log, with operations open.

Each rank comes late to each tick by a time of its own, up to the skew. What a tick takes beyond that is
counted from when it could go on: when this rank has entered it and rank 0 has entered the one before,
whose verdicts it waits for. Operations are reserved and closed, and nothing of them lands.
"""

import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from cpkv.bench.figure import Figure
from cpkv.bench.machine import cores
from cpkv.bench.rank_processes import run_rank_processes
from cpkv.bench.settings import BenchSettings
from cpkv.errors import CpkvError

SKEWS_US: Final = (0, 100, 1_000)
PERCENTILES: Final = (50, 99)
TARGET_US: Final = 20.0
SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - where logs are


def beyond_the_skew(times: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return what each tick but the first took from when it could go on, shape `(ranks, ticks - 1)`.

    Args:
        times: When each rank entered and left each tick, shape `(ranks, ticks, 2)`.
    """
    entered, left = times[..., 0], times[..., 1]
    ready = np.maximum(entered[:, 1:], entered[0, :-1])
    return left[:, 1:] - ready


def measure_rank_ticks(settings: BenchSettings) -> Iterator[Figure]:
    """Start the ranks, and collect when they ticked."""
    times = _times(settings)
    note = f"{cores()} cores for {settings.ranks} ranks: bounded by scheduling" if cores() < settings.ranks else ""
    for place, skew_us in enumerate(SKEWS_US):
        beyond_us = [beyond_the_skew(times[:, repeat, place]) / 1_000 for repeat in range(settings.repeats)]
        for percentile in PERCENTILES:
            yield Figure(
                name=f"tick, {settings.operations:,} open, {settings.ranks} ranks, skew {skew_us:,} us, p{percentile}",
                unit="us",
                samples=tuple(float(np.percentile(taken, percentile)) for taken in beyond_us),
                target=TARGET_US,
                note=note,
            )


def _times(settings: BenchSettings) -> npt.NDArray[np.int64]:
    """Return the times of all ranks, shape `(ranks, repeats, skews, ticks, 2)`."""
    try:
        with tempfile.TemporaryDirectory(prefix="cpkv-bench-", dir=SHARED_MEMORY) as name:
            directory = Path(name)
            (directory / "meeting").write_bytes(bytes(8 * settings.ranks))
            _run(settings, directory)
            return np.stack([np.load(directory / f"{rank}.npy") for rank in range(settings.ranks)])
    except OSError as error:
        message = f"rank processes: {error.filename or SHARED_MEMORY}: {error.strerror}"
        raise CpkvError(message) from None


def _run(settings: BenchSettings, directory: Path) -> None:
    sizes = (settings.ranks, settings.operations, settings.ticks, settings.repeats, *SKEWS_US)
    nonce = secrets.randbits(62)
    arguments = [(directory, nonce, rank, *sizes) for rank in range(settings.ranks)]
    run_rank_processes("cpkv.bench.rank_process", arguments, directory)
