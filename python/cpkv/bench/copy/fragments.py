"""A host pool as it is after a day: full, and its free slots in pieces.

Requests are served without their bytes, more of them than the pool can hold. Then a tenth of it is made
free again by a transaction that is aborted, which gives back what the eviction has found for it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Final

import numpy as np

from cpkv._core import AckWords
from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.bandwidth import outcome_rows
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.outcome import Outcome, Outcomes, measure_copier, measure_peers_at
from cpkv.bench.copy.passes import one_round
from cpkv.bench.copy.peers import Work
from cpkv.bench.copy.pools import device_bytes, mla_layout, whole_segments
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.settings import PAGE_SIZE, SEGMENT_PAGES
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.targets import ALONE
from cpkv.device import STREAMS
from cpkv.errors import CpkvError
from cpkv.layout import PageLayout, join_runs
from cpkv.replay import PromptMaker, ReplaySettings

FREE_SHARE: Final = 0.1
TURNOVERS: Final = 3
"""How many times as many pages as there are host slots the requests have to write at least."""
HOST_TIMES, DEVICE_TIMES = 12, 4
"""Host slots and device pages, in times of the pages of one prompt."""


@dataclass(frozen=True, slots=True)
class FragmentSizes:
    """Sizes for prompts of so many pages. As many layers as there is memory for, of those of a forward.

    Args:
        pages: Of a prompt.
        layers: Of a forward.
        host_bytes: What there is for slots.
        device_bytes: What there is for device pages; `None` if that is no limit.
    """

    pages: int
    layers: int
    host_bytes: int
    device_bytes: int | None = None

    @property
    def slots(self) -> int:
        """Host slots."""
        return whole_segments(HOST_TIMES * self.pages)

    @property
    def device_pages(self) -> int:
        """Device pages."""
        return DEVICE_TIMES * self.pages

    @property
    def layout(self) -> PageLayout:
        """The layers that there is memory for, one at the least."""
        one = mla_layout(1)
        fit = self.host_bytes // (self.slots * one.slot_bytes)
        if self.device_bytes is not None:
            fit = min(fit, self.device_bytes // device_bytes(one, self.device_pages))
        return mla_layout(max(min(self.layers, fit), 1))


def measure_fragments(run: Run) -> Iterator[CopyFigure]:
    """Back prompts up into the holes of a full host pool."""
    pages = run.pages[-1]

    def measure() -> Sequence[CopyFigure]:
        return _figures(run, pages)

    yield from run.figures(measure, _rows(run, pages, None, {}, [()] * len(_RUNS)))


_RUNS: Final = ("device pages", "host slots", "copies")
"""What lies in runs: the device pages, the slots in their order, and what is contiguous on both sides."""


def _figures(run: Run, pages: int) -> list[CopyFigure]:
    platform, settings = run.platform, run.settings
    sizes = FragmentSizes(pages, run.layers, platform.host_bytes, platform.device_bytes)
    layers, slots = sizes.layout.layers, sizes.slots
    with run.site(pages=sizes.device_pages, slots=slots, layers=layers, device_pool="owned") as site:
        _fill(run, site)
        _make_room(site)
        occupied = site.cache.stats().host_cached_slots / slots
        site.cache.evict_for(pages)
        own = site.cache.allocate(pages)
        if own is None:
            message = f"no {pages} device pages after eviction for them: {site.cache.stats()!r}"
            raise CpkvError(message)
        copier = BackupCopier(site, np.array(own, np.int64), ends="aborted")
        one_round(platform, copier)
        ours = measure_copier(run, copier, platform.loads, is_wanted=True)
        work = Work(site.pools, copier.pages, copier.slots, "to_host")
        peers = measure_peers_at(run, lambda: work, platform.loads, is_wanted=False)
    figures = _rows(run, pages, ours, peers, _run_lengths(copier))
    note = (
        f"{layers} of {run.layers} layers, {slots:,} host slots, {occupied:.0%} full after "
        f"{len(settings.requests):,} requests of {settings.source}"
    )
    return [replace(figures[0], note=note), *figures[1:]]


def _rows(
    run: Run, pages: int, ours: Outcome | None, peers: Outcomes, lengths: Sequence[tuple[int, ...]]
) -> list[CopyFigure]:
    title = f"to host, {pages} pages, host pool full and fragmented"
    loads = run.platform.loads
    rows = outcome_rows(
        title,
        ours,
        peers,
        bandwidths={load: run.targets.fragmented(pages=pages, load=load) for load in (ALONE, *loads)},
        slowdowns=dict.fromkeys(loads),
    )
    return rows + [_run_row(f"{title}, runs of {what}", several) for what, several in zip(_RUNS, lengths, strict=True)]


def _run_row(name: str, lengths: tuple[int, ...]) -> CopyFigure:
    if not lengths:
        return CopyFigure(name=name, unit="pages")
    runs = f"{len(lengths)} run{'' if len(lengths) == 1 else 's'}"
    note = f"the mean of {runs}; median {median(lengths):.0f}, from {min(lengths)} to {max(lengths)}"
    return CopyFigure(name=name, unit="pages", samples=(mean(lengths),), note=note)


def _run_lengths(copier: BackupCopier) -> list[tuple[int, ...]]:
    """Return the lengths of the runs of device pages, of slots, and of both together, in pages."""
    count = len(copier.pages)
    in_order, slots = np.arange(count, dtype=np.int64), np.sort(copier.slots)
    several = (
        join_runs(copier.pages, in_order, count),
        join_runs(in_order, slots, SEGMENT_PAGES),
        join_runs(copier.pages, copier.slots, SEGMENT_PAGES),
    )
    return [tuple(runs.lengths.tolist()) for runs in several]


def _fill(run: Run, site: Site) -> None:
    """Serve requests without their bytes.

    Raises:
        CpkvError: There are too few of them.
    """
    cache, pool = site.cache, site.pools
    prompts = PromptMaker(ReplaySettings(unit="tokens", page_size=PAGE_SIZE))
    # A stream beside those of the engine: its word is past everything that is ever said of it.
    words = AckWords(STREAMS + 1)
    longest = pool.device.pages // 2
    for request in run.settings.requests:
        # Of a prompt that is too long for the pool, its end: the beginnings are those that others share.
        token_ids = prompts.token_ids(request)[-longest * PAGE_SIZE :]
        with cache.lock(cache.match(token_ids)) as lease:
            missing = len(token_ids) // PAGE_SIZE - lease.device_pages
            cache.evict_for(missing)
            pages = cache.allocate(missing)
            if pages is None:
                message = f"no {missing} device pages after eviction for them: {cache.stats()!r}"
                raise CpkvError(message)
            (transaction,) = cache.reserve([(token_ids, pages, lease)])
            words.store(STREAMS, site.step + 1)
            if transaction.id is not None:
                transaction.submitted(STREAMS, site.step + 1)
            cache.forward_end([transaction])
            duplicates = cache.insert(token_ids, pages, lease, transaction).duplicates
        if len(duplicates):
            cache.free(duplicates)
        _tick(site, words)
    stats = cache.stats()
    if (
        stats.inserted_pages < TURNOVERS * pool.host.slots
        or stats.host_cached_slots < (1 - FREE_SHARE) * pool.host.slots
    ):
        message = (
            f"{len(run.settings.requests):,} requests have written {stats.inserted_pages} pages and filled "
            f"{stats.host_cached_slots} of {pool.host.slots} slots, want {TURNOVERS * pool.host.slots} pages"
        )
        raise CpkvError(message)
    while cache.has_work():
        _tick(site, words)
    # No token of the prompts that are measured has been seen.
    site.skip_tokens()


def _tick(site: Site, words: AckWords) -> None:
    report = site.cache.tick(site.step, words)
    for late in report.started:
        late.submitted(STREAMS, words.load(STREAMS))
        late.submitted_all()
    site.step += 1


def _make_room(site: Site) -> None:
    """Abort a transaction as large as what is to be free: it takes what is free, and evicts the rest."""
    cache, slots = site.cache, site.pools.host.slots
    room = math.ceil(FREE_SHARE * slots)
    cache.evict_for(room)
    pages = cache.allocate(room)
    if pages is None:
        message = f"no {room} device pages after eviction for them: {cache.stats()!r}"
        raise CpkvError(message)
    token_ids = site.prompt(room)
    with cache.lock(cache.match(token_ids)) as lease:
        (transaction,) = cache.reserve([(token_ids, pages, lease)])
        transaction.abort()
    cache.free(pages)
    site.settle(lambda: not cache.has_work())
