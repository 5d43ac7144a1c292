"""A run of the overlap on the machine that it is started on: memory, and nobody to compare with but ourselves."""

from collections.abc import Iterator
from contextlib import contextmanager

from cpkv.bench.copy.case import LONGEST_RUN, Case
from cpkv.bench.copy.pools import device_bytes, mla_layout
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.settings import CopySettings, EngineName
from cpkv.bench.copy.start import opened, targets_of
from cpkv.bench.overlap.settings import DRAFT_LAYERS


def case_of(pages_of_sets: tuple[int, ...]) -> Case:
    """Return how the pages of a forward lie: the most that there are, in the longest runs."""
    pages = pages_of_sets[-1]
    return Case("to_host", pages, min(LONGEST_RUN, pages))


def memory_needed(settings: CopySettings) -> tuple[int, int]:
    """Return the bytes of the host and of the device."""
    case, layout = case_of(settings.pages or (1,)), mla_layout(settings.layers or 1, draft_layers=DRAFT_LAYERS)
    return case.slots * layout.slot_bytes, device_bytes(layout, case.device_pages)


@contextmanager
def started(settings: CopySettings, engine: EngineName) -> Iterator[Run]:
    """Give a run, and the machine's memory back at its end.

    Args:
        settings: Fitted to the engine.
        engine: Chosen.
    """
    with opened(engine, *memory_needed(settings), settings.copy_path) as platform:
        yield Run(platform=platform, settings=settings, peers=(), missing={}, targets=targets_of(platform))
