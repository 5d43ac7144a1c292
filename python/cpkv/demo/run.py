"""Runs the groups of ranks, one for each split, and leaves what they have recorded in a folder."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from cpkv.demo.picture import draw, is_drawable
from cpkv.demo.scenarios import RankReport, Scenarios, short_length
from cpkv.demo.verdict import Verdict, expected, judge
from cpkv.demo.watching import Progress, new_cells
from cpkv.engine import EngineConfig
from cpkv.engine.pools import check_device
from cpkv.engine.ranks import Ranks, check_results
from cpkv.errors import ConfigError

TIMELINE: Final = "timeline.json"
PICTURE: Final = "timeline.png"
SPLITS: Final = ("zigzag", "interleave")
MOST_RANKS: Final = 16
MOST_PAGE: Final = 64
WATCH_S: Final = 0.05

Watch = Callable[[str, Sequence[Progress]], None]
"""Called while the ranks of a split run, with what they say of themselves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DemoSettings:
    """What is run.

    Args:
        ranks: Context-parallel ranks of a group.
        page_size: Tokens of a page.
        splits: How prompts are shared; a group for each.
        device: Where tensors are, "cpu" or "cuda".
    """

    ranks: int = 4
    page_size: int = 16
    splits: tuple[str, ...] = SPLITS
    device: str = "cpu"

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        if not 1 <= self.page_size <= MOST_PAGE:
            message = f"page_size is {self.page_size}, want 1 to {MOST_PAGE}, so that prompts have several pages"
            raise ConfigError(message)
        if not 1 <= self.ranks <= MOST_RANKS:
            message = f"ranks is {self.ranks}, want 1 to {MOST_RANKS}"
            raise ConfigError(message)
        if not self.splits or set(self.splits) - set(SPLITS):
            message = f"splits are {', '.join(self.splits) or 'none'}, want some of {', '.join(SPLITS)}"
            raise ConfigError(message)
        self.engine(self.splits[0])

    def engine(self, split: str) -> EngineConfig:
        """Return how the engines of a group are configured."""
        return EngineConfig(
            page_size=self.page_size,
            split="zigzag" if split == "zigzag" else "interleave",
            device_pages=max(1_024 // self.page_size, 16),
            host_slots=max(1_024 // self.page_size, 16),
            chunk_tokens=200,
            device=self.device,
            keeps_logits=True,
        )


def run_demo(settings: DemoSettings, folder: Path, *, watch: Watch | None = None) -> Verdict:
    """Run every scenario with every split.

    Args:
        settings: What is run.
        folder: Where the timeline is written, `timeline.json` for Perfetto or chrome://tracing, and beside it
            `timeline.png` if there is matplotlib.
        watch: See `Watch`.

    Raises:
        ConfigError: The folder cannot be written to, or there is no such GPU.
        CpkvError: A rank has failed or stands still; the message names it.
    """
    check_device(settings.engine("zigzag"))
    _check_folder(folder)
    plain = replace(
        settings.engine("zigzag"), host_slots=0, is_cached=False, device_pages=1_024, chunk_tokens=4_096, device="cpu"
    )
    short = short_length(settings.ranks, settings.page_size)
    wanted = expected(plain, short)
    reports = {split: _run_group(settings, split, watch) for split in settings.splits}
    events = _timeline(reports)
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    (folder / TIMELINE).write_text(text, encoding="utf-8")
    if is_drawable():
        draw(events, folder / PICTURE)
    return judge(reports, wanted, short)


def _run_group(settings: DemoSettings, split: str, watch: Watch | None) -> list[RankReport]:
    config = settings.engine(split)
    layers = config.model.layers + 1
    cells = new_cells(settings.ranks, layers)
    seen = [Progress(cells, rank, layers) for rank in range(settings.ranks)]
    with Ranks(Scenarios(cells, split, is_on_gpu=config.is_on_gpu), config, settings.ranks) as ranks:
        meanwhile = partial(watch, split, seen) if watch is not None else None
        results = ranks.results(meanwhile=meanwhile, every_s=WATCH_S)
    check_results(results)
    return results


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / TIMELINE).touch()
    except OSError as error:
        message = f"{folder}: {error.strerror or error}"
        raise ConfigError(message) from error


def _timeline(reports: Mapping[str, Sequence[RankReport]]) -> list[dict[str, Any]]:
    """Return the events of all ranks; times begin with the first."""
    events: list[dict[str, Any]] = [event for ranks in reports.values() for report in ranks for event in report.events]
    timed = [event for event in events if "ts" in event]
    first = min((event["ts"] for event in timed), default=0.0)
    for event in timed:
        event["ts"] -= first
    return events
