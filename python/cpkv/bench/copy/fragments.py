"""A host pool as it is after a day: full, and its free slots in pieces.

Requests are served without their bytes, more of them than the pool can hold. Then a tenth of it is made
free again by a transaction that is aborted, which gives back what the eviction has found for it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from cpkv._core import AckWords
from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.bandwidth import bandwidth_figure, slowdown_figure
from cpkv.bench.copy.case import beside_name
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.outcome import measure_copier
from cpkv.bench.copy.passes import one_round
from cpkv.bench.copy.pools import whole_segments
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.settings import PAGE_SIZE, SEGMENT_PAGES
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.targets import ALONE
from cpkv.device import STREAMS
from cpkv.errors import CpkvError
from cpkv.layout import join_runs
from cpkv.replay import PromptMaker, ReplaySettings

MOST_LAYERS: Final = 8
FREE_SHARE: Final = 0.1
TURNOVERS: Final = 3
"""How many times as many pages as there are host slots the requests have to write at least."""
HOST_TIMES, DEVICE_TIMES = 12, 4
"""Host slots and device pages, in times of the pages of one prompt."""


def fragment_sizes(run_layers: int, pages: int) -> tuple[int, int, int]:
    """Return layers, host slots and device pages."""
    return min(run_layers, MOST_LAYERS), whole_segments(HOST_TIMES * pages), DEVICE_TIMES * pages


def measure_fragments(run: Run) -> Iterator[CopyFigure]:
    """Back prompts up into the holes of a full host pool."""
    pages = run.pages[-1]
    title = f"to host, {pages} pages, host pool full and fragmented"
    loads = (ALONE, *run.platform.loads)

    def measure() -> Sequence[CopyFigure]:
        return _figures(run, title, pages)

    yield from run.figures(measure, [(f"{title}, {beside_name(load)}", "GB/s") for load in loads])


def _figures(run: Run, title: str, pages: int) -> list[CopyFigure]:
    layers, slots, device_pages = fragment_sizes(run.layers, pages)
    with run.site(pages=device_pages, slots=slots, layers=layers, device_pool="owned") as site:
        _fill(run, site)
        _make_room(site)
        occupied = site.cache.stats().host_cached_slots / slots
        site.cache.evict_for(pages)
        own = site.cache.allocate(pages)
        if own is None:
            message = f"no {pages} device pages after eviction for them: {site.cache.stats()!r}"
            raise CpkvError(message)
        copier = BackupCopier(site, np.array(own, np.int64), ends="aborted")
        one_round(run.platform, copier)
        ours = measure_copier(run, copier, run.platform.loads)
        note = (
            f"{layers} layers, host pool {occupied:.0%} full of {len(run.settings.requests):,} requests' prompts, "
            f"{_runs_note(copier)}"
        )
    loads = run.platform.loads
    figures = [
        bandwidth_figure(title, ours, load, run.targets.fragmented(pages=pages, load=load), {})
        for load in (ALONE, *loads)
    ]
    figures += [slowdown_figure(title, ours, load, None, {}) for load in loads]
    figures[0] = replace(figures[0], note=note)
    return figures


def _runs_note(copier: BackupCopier) -> str:
    order = np.argsort(copier.slots)
    on_host = join_runs(np.arange(len(order), dtype=np.int64), copier.slots[order], SEGMENT_PAGES).lengths
    together = join_runs(copier.pages, copier.slots, SEGMENT_PAGES).lengths
    return (
        f"host runs of {on_host.mean():.1f} pages (median {np.median(on_host):.0f}, least {on_host.min()}), "
        f"copies of {together.mean():.1f} (median {np.median(together):.0f})"
    )


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
