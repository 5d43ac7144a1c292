"""Starts the rank processes of a measurement, and sees them end: all of them, or none goes on."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpkv.errors import CpkvError


def run_rank_processes(module: str, arguments: Sequence[Sequence[object]], directory: Path) -> None:
    """Run a module in a process for each rank, and return when all have ended.

    Args:
        module: Of this package.
        arguments: Of each rank.
        directory: Where each rank's standard error goes, `RANK.txt`.

    Raises:
        CpkvError: A rank has failed; the message has the last line that it has said.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        # Not in this thread: an interrupt after the start of a process would make it forgotten.
        with ThreadPoolExecutor(1) as starter:
            starter.submit(_start, module, arguments, directory, processes).result()
        # When one ends early the others hear of it late, or never.
        while None in (codes := [process.poll() for process in processes]) and not any(codes):
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for rank, code in enumerate(codes):
        if code:
            told = (directory / f"{rank}.txt").read_text(errors="replace").splitlines() or ["without a word"]
            message = f"rank {rank} ended with code {code}: {told[-1]}"
            raise CpkvError(message)


def _start(
    module: str, arguments: Sequence[Sequence[object]], directory: Path, processes: list[subprocess.Popen[bytes]]
) -> None:
    for rank, own in enumerate(arguments):
        with (directory / f"{rank}.txt").open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 - this very interpreter
                [sys.executable, "-P", "-m", module, *map(str, own)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
                # An interrupt is for this process, which ends the ranks.
                start_new_session=True,
            )
        processes.append(process)
