"""What came out of a replay, for people and for programs."""

from dataclasses import asdict, dataclass

from cpkv.replay.settings import UNLIMITED, ReplaySettings


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """The figures of one replay.

    Every block of the trace counts as 512 tokens, also the last of a prompt. Ratios are tokens
    found over tokens asked for.

    The parts of the time are CPU time of the process per request: match (match and lock), place
    (choosing the lanes of new pages; only with lanes), evict, insert (allocate, restore, insert,
    release). `us_per_request` is their sum. Making the tokens is not in it, and neither is what
    reading the clock costs, which is measured with every request and taken off each part.
    """

    settings: ReplaySettings
    source: str
    requests: int
    tokens: int
    pages: int
    uncached_pages: int
    device_hit_pages: int
    host_hit_pages: int
    device_hit_ratio: float
    host_hit_ratio: float
    device_evicted_pages: int
    host_evicted_pages: int
    mirror_dropped_pages: int
    late_copied_pages: int
    lost_pages: int
    us_match: float
    us_place: float
    us_evict: float
    us_insert: float
    metadata_bytes: int
    host_run_pages: float

    @property
    def hit_ratio(self) -> float:
        """Both tiers together."""
        return self.device_hit_ratio + self.host_hit_ratio

    @property
    def evicted_pages(self) -> int:
        """Pages that left the device, and pages that left the host."""
        return self.device_evicted_pages + self.host_evicted_pages

    @property
    def us_per_request(self) -> float:
        """CPU microseconds of all cache calls of a request."""
        return self.us_match + self.us_place + self.us_evict + self.us_insert

    def as_json(self) -> dict[str, object]:
        """Return all figures and settings, ready for `json.dump`."""
        figures = asdict(self)
        settings = figures.pop("settings")
        if settings["page_size"] is None:
            settings["page_size"] = self.settings.page_elements * self.settings.element_tokens
        for name in ("device_pages", "host_pages"):
            settings[name] = "unlimited" if settings[name] == UNLIMITED else settings[name]
        derived = {
            "hit_ratio": self.hit_ratio,
            "evicted_pages": self.evicted_pages,
            "us_per_request": self.us_per_request,
        }
        return figures | derived | {"settings": settings}
