"""One rank of `measure_gather`, a process of its own; `main` says how to start it.

Reads `DIRECTORY/settings.json`, gathers, and leaves a `RankReport` in `DIRECTORY/RANK.json`. Needs torch.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor

from cpkv.bench.gather.figures import WAYS, CaseReport, Way
from cpkv.bench.gather.settings import SETTINGS_FILE, GatherSettings
from cpkv.bench.gather.stopwatch import Stopwatch
from cpkv.bench.nvidia_smi import nvidia_smi
from cpkv.cp import CpSplit, as_last_hidden
from cpkv.cp.tensors import AllGather, CpTensors, all_gather_over
from cpkv.errors import CpkvError

MEETING: Final = "meeting"
PATIENCE_S: Final = 120.0
"""After which a silent rank is an error."""
WARM_UP: Final = 20
"""Repeats that are not counted: connections are made, and memory is."""
TURN: Final = 20
"""Repeats of a case and way, before it is another one's turn."""
LEAD: Final = 2
"""Repeats at the begin of a turn that are not counted: caches have what the other way needs."""


class Gathers:
    """Both gathers of one case on one rank.

    Args:
        split: Of the batch.
        rank: This one.
        hidden: Elements of a hidden state.
        device: Where they are.
    """

    def __init__(self, split: CpSplit, rank: int, hidden: int, device: torch.device) -> None:
        self.tensors = CpTensors.of(split.view(rank), device)
        self.hidden = _drawn((split.padded_tokens, hidden), rank, device)
        self.hidden[self.tensors.view.tokens :] = 0
        # As an engine has it: memory that is there, and hidden states with their padding.
        rows = {"narrow": len(split.batch), "full": split.padded_tokens}
        self.over: dict[Way, AllGather] = {
            way: all_gather_over(out=self.hidden.new_empty((split.cp_size * rows[way], hidden))) for way in WAYS
        }

    def gather(self, way: Way, all_gather: AllGather) -> Tensor:
        """Gather, and return the last tokens' hidden states or those of all, rank by rank with their padding."""
        if way == "full":
            return all_gather(self.hidden)
        rows: Tensor = self.tensors.collect_last_token_hidden(self.hidden, all_gather).rows
        return rows

    def call(self, way: Way) -> Callable[[], Tensor]:
        """Return what is timed."""
        return partial(self.gather, way, self.over[way])

    def compared(self) -> CaseReport:
        """Gather both ways once, with what is sent counted and the last tokens' rows as digests."""
        split, view = self.tensors.view.split, self.tensors.view
        report = CaseReport(microseconds={way: {} for way in WAYS}, sent_bytes={}, digests={}, own={})
        for way in WAYS:
            sent: list[int] = []
            rows = self.gather(way, partial(_counted, self.over[way], sent))
            if way == "full":
                rows = as_last_hidden(split, self.tensors.restore(rows))
            report["sent_bytes"][way] = sum(sent)
            report["digests"][way] = _digests(rows)
        mine = (split.last_ranks == view.rank).nonzero()[0].tolist()
        own = _digests(self.hidden[split.last_rows[mine].tolist()])
        report["own"] = {str(request): digest for request, digest in zip(mine, own, strict=True)}
        return report


def run(directory: Path, rank: int) -> None:
    """Be a rank, from joining the group to leaving it."""
    settings = _read(directory)
    torch.set_num_threads(1)
    device, options = torch.device("cpu"), {}
    if settings.device == "cuda":
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
        options = {"device_id": device}
    dist.init_process_group(
        "nccl" if settings.device == "cuda" else "gloo",
        init_method=f"file://{directory / MEETING}",
        rank=rank,
        world_size=settings.ranks,
        timeout=timedelta(seconds=PATIENCE_S),
        **options,
    )
    stopwatch = Stopwatch(device)
    cases = _measured(settings, rank, device, stopwatch)
    report = {"about": _about(settings), "cases": cases}
    (directory / f"{rank}.json").write_text(json.dumps(report), encoding="utf-8")
    dist.destroy_process_group()


def _read(directory: Path) -> GatherSettings:
    read = json.loads((directory / SETTINGS_FILE).read_text(encoding="utf-8"))
    return GatherSettings(**read | {name: tuple(read[name]) for name in ("batches", "splits")})


def _measured(settings: GatherSettings, rank: int, device: torch.device, stopwatch: Stopwatch) -> list[CaseReport]:
    """Measure all cases in turns: what slows the machine for a while slows each of them."""
    tokens, hidden = settings.tokens or 0, settings.hidden or 0
    measured = [Gathers(case.split(settings.ranks, tokens), rank, hidden, device) for case in settings.cases]
    reports = [gathers.compared() for gathers in measured]
    parent, repeats = os.getppid(), settings.repeats or 0
    works = [
        (begin, gathers.call(way), report["microseconds"][way])
        for gathers, report in zip(measured, reports, strict=True)
        for way in WAYS
        for begin in stopwatch.ways_to_begin
    ]
    for turn in range(-1, -(-repeats // TURN)):
        if os.getppid() != parent:
            message = "the process that started the ranks is gone"
            raise CpkvError(message)
        lead, counted = (WARM_UP, 0) if turn < 0 else (LEAD, min(TURN, repeats - turn * TURN))
        for begin, call, microseconds in works if turn % 2 else reversed(works):
            for repeat in range(-lead, counted):
                for reading, taken in begin(call).items():
                    samples = microseconds.setdefault(reading, [])
                    if repeat >= 0:
                        samples.append(round(taken, 3))
    return reports


def _counted(all_gather: AllGather, sent: list[int], tensor: Tensor) -> Tensor:
    """Gather, and note what this rank has sent, in bytes."""
    sent.append(tensor.numel() * tensor.element_size())
    return all_gather(tensor)


def _drawn(shape: tuple[int, int], seed: int, device: torch.device) -> Tensor:
    """Return bf16 of random bits, what is no number among them: rows are moved, and not computed with."""
    generator = torch.Generator(device).manual_seed(seed)
    bits = torch.randint(-(1 << 15), 1 << 15, shape, generator=generator, dtype=torch.int16, device=device)
    return bits.view(torch.bfloat16)


def _digests(rows: Tensor) -> list[str]:
    return [hashlib.sha256(row.tobytes()).hexdigest() for row in rows.view(torch.int16).cpu().numpy()]


def _about(settings: GatherSettings) -> dict[str, str]:
    about = {"torch": str(torch.__version__)}
    if settings.device == "cuda":
        return about | {
            "device": f"{settings.ranks} x {torch.cuda.get_device_name()}",
            "backend": f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}",
            "driver": nvidia_smi("driver_version")["driver_version"],
            "cuda": str(torch.version.cuda),
        }
    return about | {"device": "no GPU", "backend": "gloo"}


def main() -> int:
    """Run `rank_process DIRECTORY RANK`."""
    try:
        run(Path(sys.argv[1]), int(sys.argv[2]))
    except Exception as error:  # noqa: BLE001 - told by the process that waits
        # In one line, whatever NCCL has to say.
        sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())}\n")
        sys.stderr.flush()
        # The others are in a collective that never ends, and leaving the group would wait for them.
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
