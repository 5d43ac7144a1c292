"""The replay: an engine without a model."""

from collections.abc import Callable, Iterable
from itertools import islice
from time import process_time_ns
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cpkv._core import CacheManager, Lease
from cpkv.errors import IntegrityError
from cpkv.replay.clock import net_microseconds
from cpkv.replay.prompts import PromptMaker
from cpkv.replay.result import ReplayResult
from cpkv.replay.settings import ReplaySettings
from cpkv.replay.trace import Request


class Found(NamedTuple):
    """The pages that a request found in each tier."""

    device_pages: int
    host_pages: int


class Replay:
    """Serves requests one after another from one cache, and counts.

    A prompt that is longer than the device pool is cached as far as it fits. What is beyond, and
    what would not fit into its lane, counts as `uncached_pages`.
    """

    def __init__(self, settings: ReplaySettings) -> None:
        """Make the cache."""
        self.settings: Final = settings
        lanes = settings.lanes
        host_pages = settings.host_pages
        self.cache: Final = CacheManager(
            page_size=settings.page_elements,
            key=settings.key,
            lanes=lanes,
            # Unlimited stays unlimited, in whole pages for each lane.
            device_pages=settings.device_pages - settings.device_pages % lanes,
            host_slots=None if host_pages is None else host_pages - host_pages % lanes,
            segment_pages=settings.segment_pages,
            policy=settings.policy,
        )
        self._prompts = PromptMaker(settings)
        self._successor = 1 if settings.key == "pair" else 0
        self.requests = 0
        self.tokens = 0
        self.pages = 0
        self.uncached_pages = 0
        self.device_hit_pages = 0
        self.host_hit_pages = 0
        self._match_ns = 0
        self._place_ns = 0
        self._evict_ns = 0
        self._insert_ns = 0
        self._reading_ns = 0

    def run(
        self,
        requests: Iterable[Request],
        *,
        source: str = "requests",
        on_request: Callable[[], object] | None = None,
    ) -> ReplayResult:
        """Serve `requests`, no more than the settings' limit, and return the figures so far.

        Args:
            requests: The requests, in their order.
            source: What to call them in the result.
            on_request: Called after each request, outside of what is timed.
        """
        for request in islice(requests, self.settings.limit):
            self.serve(request)
            if on_request is not None:
                on_request()
        return self._result(source)

    def serve(self, request: Request) -> Found:
        """Serve one request; return what it found."""
        page_size, lanes, cache = self.settings.page_elements, self.settings.lanes, self.cache
        token_ids = self._prompts.token_ids(request)
        whole = max(len(token_ids) - self._successor, 0) // page_size
        pages = min(whole, cache.device_pages)
        cached_ids = token_ids if pages == whole else token_ids[: pages * page_size + self._successor]

        started = process_time_ns()
        lease = cache.lock(cache.match(cached_ids))
        matched = process_time_ns()
        found = Found(device_pages=lease.device_pages, host_pages=lease.host_pages)
        missing = pages - found.device_pages
        placing = process_time_ns()
        in_lanes = None if lanes == 1 else self._lanes(lease, pages)
        placed = process_time_ns()
        room = cache.evict_for(missing) if in_lanes is None else cache.evict_for(lanes=in_lanes)
        evicted = process_time_ns()
        if room is None:
            # Only with lanes, for a prompt about as long as the pool: one lane is full of it.
            pages = found.device_pages
            found = found._replace(host_pages=0)
        else:
            device_pages = cache.allocate(missing) if in_lanes is None else cache.allocate(lanes=in_lanes)
            if device_pages is None:
                message = f"{missing} pages cannot be had after eviction for them: {cache.stats()!r}"
                raise IntegrityError(message)
            if found.host_pages:
                cache.restore(lease, device_pages[: found.host_pages])
                device_pages = device_pages[found.host_pages :]
            cache.insert(cached_ids, device_pages, lease)
        lease.release()
        inserted = process_time_ns()
        # What a reading costs, under the conditions of this very moment.
        self._reading_ns += process_time_ns() - inserted

        self._match_ns += matched - started
        self._place_ns += placed - placing
        self._evict_ns += evicted - placed
        self._insert_ns += inserted - evicted
        self.requests += 1
        self.tokens += len(token_ids) * self.settings.element_tokens
        self.pages += whole
        self.uncached_pages += whole - pages
        self.device_hit_pages += found.device_pages
        self.host_hit_pages += found.host_pages
        return found

    def _lanes(self, lease: Lease, pages: int) -> npt.NDArray[np.int64]:
        """Return the lanes for the pages that the device lacks.

        Host pages come back in the lane of their slot. New ones are dealt out to the lanes in
        turn, starting with the emptiest: if all prompts began in the same lane, it would be full
        before the others.
        """
        lanes, cache = self.settings.lanes, self.cache
        restored = np.asarray(lease.host_slots()) % lanes
        emptiest = max(range(lanes), key=lambda lane: (cache.free_pages(lane), (lane - self.requests) % lanes))
        new = (emptiest + np.arange(pages - lease.pages)) % lanes
        return np.concatenate([restored, new])

    def _microseconds(self, part_ns: int) -> float:
        """Return the CPU time of a part per request, without what reading the clock costs."""
        return net_microseconds(part_ns, self._reading_ns, self.requests)

    def _result(self, source: str) -> ReplayResult:
        stats = self.cache.stats()
        page_tokens = self.settings.page_elements * self.settings.element_tokens
        tokens = max(self.tokens, 1)
        return ReplayResult(
            settings=self.settings,
            source=source,
            requests=self.requests,
            tokens=self.tokens,
            pages=self.pages,
            uncached_pages=self.uncached_pages,
            device_hit_pages=self.device_hit_pages,
            host_hit_pages=self.host_hit_pages,
            device_hit_ratio=self.device_hit_pages * page_tokens / tokens,
            host_hit_ratio=self.host_hit_pages * page_tokens / tokens,
            device_evicted_pages=stats.device_evicted_pages,
            host_evicted_pages=stats.host_evicted_pages,
            mirror_dropped_pages=stats.mirror_dropped_pages,
            late_copied_pages=stats.late_copied_pages,
            lost_pages=stats.lost_pages,
            us_match=self._microseconds(self._match_ns),
            us_place=0.0 if self.settings.lanes == 1 else self._microseconds(self._place_ns),
            us_evict=self._microseconds(self._evict_ns),
            us_insert=self._microseconds(self._insert_ns),
            metadata_bytes=stats.peak_metadata_bytes,
            host_run_pages=stats.host_run_pages,
        )
