"""Standard output is data: the table of a replay, readable without colour and at any width."""

import os
import sys
from collections.abc import Iterator

from cpkv.errors import CpkvError
from cpkv.replay import UNLIMITED, ReplayResult


def write_out(text: str) -> None:
    """Write to standard output.

    Raises:
        CpkvError: It takes no more: closed, or on a full disk.
    """
    if sys.stdout is None:
        message = "standard output: closed, want somewhere to write"
        raise CpkvError(message)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python flushes once more on exit: what could not be written has to go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        message = f"standard output: {error.strerror}, want somewhere to write"
        raise CpkvError(message) from None


def table(result: ReplayResult) -> str:
    """Return the figures of a replay for people, a line each."""
    rows = list(_rows(result))
    names, values = (max(len(cell) for cell in column) for column in zip(*rows, strict=True))
    lines = [f"  {name:<{names}}  {value:>{values}}" for name, value in rows]
    return "\n".join([_heading(result), "", *lines, ""]) + "\n"


def _heading(result: ReplayResult) -> str:
    settings = result.settings
    page = "a page is a block" if settings.unit == "blocks" else f"pages of {settings.page_elements} tokens"
    parts = [page, f"{settings.key} keys", settings.policy, f"{_count(settings.device_pages)} device pages"]
    if settings.host_pages is not None:
        parts.append(f"{_count(settings.host_pages)} host pages")
    if settings.lanes > 1:
        parts.append(f"{settings.lanes} lanes")
    return f"{result.source}: {', '.join(parts)}"


def _rows(result: ReplayResult) -> Iterator[tuple[str, str]]:
    has_host = result.settings.host_pages is not None
    yield "requests", _count(result.requests)
    yield "tokens", _count(result.tokens)
    yield "hit ratio, device", f"{result.device_hit_ratio:.4f}"
    if has_host:
        yield "hit ratio, host", f"{result.host_hit_ratio:.4f}"
        yield "hit ratio, both", f"{result.hit_ratio:.4f}"
    yield "evicted pages, device", _count(result.device_evicted_pages)
    if has_host:
        yield "evicted pages, host", _count(result.host_evicted_pages)
        yield "mirrors dropped", _count(result.mirror_dropped_pages)
        yield "pages copied late", _count(result.late_copied_pages)
    if result.uncached_pages:
        yield "pages that did not fit", _count(result.uncached_pages)
    yield "us per request, match", f"{result.us_match:.2f}"
    yield "us per request, insert", f"{result.us_insert:.2f}"
    yield "us per request, evict", f"{result.us_evict:.2f}"
    if result.settings.lanes > 1:
        yield "us per request, place", f"{result.us_place:.2f}"
    yield "us per request", f"{result.us_per_request:.2f}"
    yield "peak metadata bytes", _count(result.metadata_bytes)


def _count(number: int) -> str:
    return "unlimited" if number == UNLIMITED else f"{number:,}"
