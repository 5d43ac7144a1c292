"""Starts the ranks, and makes figures of what they report."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cpkv.bench.copy import CopyFigure
from cpkv.bench.gather.figures import RankReport, figures_of
from cpkv.bench.gather.settings import SETTINGS_FILE, DeviceName, GatherSettings
from cpkv.bench.rank_processes import run_rank_processes
from cpkv.errors import ConfigError, CpkvError

RANK_MODULE: Final = "cpkv.bench.gather.rank_process"


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run has come to.

    Args:
        about: The machine as a rank sees it.
        figures: Of all cases.
    """

    about: Mapping[str, str]
    figures: Sequence[CopyFigure]


def choose_device(settings: GatherSettings) -> DeviceName:
    """Return where the ranks are to be.

    Raises:
        ConfigError: There is no torch, or not a GPU for each rank where that is wanted.
    """
    if find_spec("torch") is None:
        message = "gathering needs torch, which is not installed: try pip install 'cpkv[torch]'"
        raise ConfigError(message)
    if settings.device == "cpu":
        return "cpu"
    gpus = import_module("torch").cuda.device_count()
    if gpus >= settings.ranks:
        return "cuda"
    if settings.device == "cuda":
        message = f"device is 'cuda', and torch sees {gpus} GPUs, want {settings.ranks}: one for each rank"
        raise ConfigError(message)
    return "cpu"


def measure_gather(settings: GatherSettings) -> Measured:
    """Gather on rank processes, and return what that took.

    Args:
        settings: Fitted to the device.

    Raises:
        CpkvError: A rank has failed; the message has what it has said.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="cpkv-bench-") as name:
            directory = Path(name)
            (directory / SETTINGS_FILE).write_text(json.dumps(asdict(settings)), encoding="utf-8")
            run_rank_processes(RANK_MODULE, [(directory, rank) for rank in range(settings.ranks)], directory)
            reports: list[RankReport] = [
                json.loads((directory / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(settings.ranks)
            ]
    except OSError as error:
        message = f"rank processes: {error.strerror}"
        raise CpkvError(message) from None
    return Measured(reports[0]["about"], figures_of(settings, reports))
