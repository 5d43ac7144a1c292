"""What a backup transaction adds to a request: reserve, bind and commit.

The same requests go to a cache without and to one with a host tier, in turns; neither evicts, so that
all other work is the same. A request is its own batch and its own tick. Its one copy has landed by
then: what a device writes is a word, stored before the clock runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from time import process_time_ns
from typing import Final

from cpkv._core import AckWords, CacheManager, Transaction
from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.errors import IntegrityError
from cpkv.replay import UNLIMITED, PromptMaker, ReplaySettings, net_microseconds

TARGET_US: Final = 3.0
CACHES: Final = (ReplaySettings(unit="blocks"), ReplaySettings(unit="tokens", page_size=64))


@dataclass(slots=True)
class Parts:
    """CPU nanoseconds of the calls of all requests."""

    find: int = 0
    reserve: int = 0
    forward_end: int = 0
    insert: int = 0
    tick: int = 0

    def per_request(self, reading_ns: int, requests: int) -> dict[str, float]:
        """Return the microseconds of each part, without reading the clock."""
        return {part.name: net_microseconds(getattr(self, part.name), reading_ns, requests) for part in fields(self)}


def measure_transactions(settings: BenchSettings) -> Iterator[Figure]:
    """Serve the requests without and with transactions."""
    for cache in CACHES:
        without, added = [], []
        for _ in range(settings.repeats):
            plain, tracked = (_serve_all(settings, cache, is_tracked=is_tracked) for is_tracked in (False, True))
            without.append(sum(plain.values()))
            added.append({part: tracked[part] - plain[part] for part in plain})
        yield Figure(name=f"request without transaction, {cache.unit}", unit="us", samples=tuple(without))
        totals = tuple(sum(parts.values()) for parts in added)
        yield Figure(name=f"transaction adds, {cache.unit}", unit="us", samples=totals, target=TARGET_US)
        for part in added[0]:
            name = f"  of it {part.replace('_', ' ')}"
            yield Figure(name=name, unit="us", samples=tuple(parts[part] for parts in added))


def _serve_all(settings: BenchSettings, shape: ReplaySettings, *, is_tracked: bool) -> dict[str, float]:
    page_size = shape.page_elements
    cache = CacheManager(
        page_size=page_size,
        device_pages=UNLIMITED,
        host_slots=UNLIMITED if is_tracked else None,
        segment_pages=1,
        copies="tracked" if is_tracked else "assumed",
    )
    prompts, words, parts, reading_ns, committed = PromptMaker(shape), AckWords(1), Parts(), 0, 0
    transaction: Transaction | None = None
    for step, request in enumerate(settings.requests):
        token_ids = prompts.token_ids(request)
        words.store(0, step + 1)

        started = process_time_ns()
        lease = cache.lock(cache.match(token_ids))
        missing = len(token_ids) // page_size - lease.device_pages
        cache.evict_for(missing)
        pages = cache.allocate(missing)
        found = process_time_ns()
        if pages is None:
            message = f"no {missing} pages in a cache without limit: {cache.stats()!r}"
            raise IntegrityError(message)
        reserving = process_time_ns()
        if is_tracked:
            (transaction,) = cache.reserve([(token_ids, pages, lease)])
        reserved = process_time_ns()
        if transaction is not None:
            if transaction.id is not None:
                transaction.submitted(0, step + 1)
            cache.forward_end([transaction])
        submitted = process_time_ns()
        cache.insert(token_ids, pages, lease, transaction)
        lease.release()
        inserted = process_time_ns()
        if is_tracked:
            committed += len(cache.tick(step, words).committed)
            transaction = None  # the end of it is part of its price
        ticked = process_time_ns()
        reading_ns += process_time_ns() - ticked

        parts.find += found - started
        parts.reserve += reserved - reserving
        parts.forward_end += submitted - reserved
        parts.insert += inserted - submitted
        parts.tick += ticked - inserted
    if committed != cache.stats().committed_operations or (is_tracked and cache.has_work()):
        message = f"not everything was committed: {cache.stats()!r}"
        raise IntegrityError(message)
    return parts.per_request(reading_ns, len(settings.requests))
