"""What the ranks have measured, as figures: the slowest of them counts."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final, Literal, TypedDict

from cpkv.bench.copy import CopyFigure, Peer
from cpkv.bench.gather.settings import ELEMENT_BYTES, GatherCase, GatherSettings

Way = Literal["narrow", "full"]
"""The last tokens' hidden states alone, or those of all tokens."""
WAYS: Final[tuple[Way, ...]] = ("narrow", "full")
FULL: Final = "full gather"
TARGET_US: Final = 70.0
"""What is wanted of the narrow gather of one request on GPUs, its launch included."""

CLOCK: Final = "clock"
EVENTS: Final = "events"
QUEUED: Final = "queued"
_NAMES: Final = {CLOCK: "by the thread's clock", EVENTS: "by events", QUEUED: "by events, queued ahead"}
_LAUNCHED: Final = (CLOCK, EVENTS)


class CaseReport(TypedDict):
    """What a rank has to tell of a case.

    `microseconds` are by way and reading, one for each repeat; `sent_bytes` by way; `digests` those of each
    request's row as the rank got it, by way; `own` those of the rows that it has computed itself, by request.
    """

    microseconds: dict[Way, dict[str, list[float]]]
    sent_bytes: dict[Way, int]
    digests: dict[Way, list[str]]
    own: dict[str, str]


class RankReport(TypedDict):
    """What a rank has to tell: the machine as it sees it, and each case in the order of the settings."""

    about: dict[str, str]
    cases: list[CaseReport]


def figures_of(settings: GatherSettings, reports: Sequence[RankReport]) -> list[CopyFigure]:
    """Return the figures of all cases.

    Args:
        settings: Fitted to the device.
        reports: Of all ranks.
    """
    return [
        figure
        for place, case in enumerate(settings.cases)
        for figure in _case_figures(settings, case, [report["cases"][place] for report in reports])
    ]


def _case_figures(settings: GatherSettings, case: GatherCase, reports: Sequence[CaseReport]) -> Iterator[CopyFigure]:
    for reading, name in _NAMES.items():
        if reading not in reports[0]["microseconds"]["narrow"]:
            continue
        narrow, full = ([report["microseconds"][way][reading] for report in reports] for way in WAYS)
        target = TARGET_US if settings.device == "cuda" and reading in _LAUNCHED and case.batch == 1 else None
        medians = ", ".join(f"rank {rank} {median(samples):.1f}" for rank, samples in enumerate(narrow))
        yield CopyFigure(
            name=f"{case}, {name}",
            unit="us",
            samples=_slowest(narrow),
            target=target,
            wanted="at most",
            peers={FULL: Peer(samples=_slowest(full))},
            note="" if target is None else f"medians of each rank alone: {medians}",
        )
    narrow_bytes, full_bytes = (sum(report["sent_bytes"][way] for report in reports) for way in WAYS)
    yield CopyFigure(
        name=f"{case}, sent by all ranks",
        unit="bytes",
        samples=(narrow_bytes,),
        target=settings.ranks * case.batch * (settings.hidden or 0) * ELEMENT_BYTES,
        wanted="exactly",
        peers={FULL: Peer(samples=(full_bytes,))},
    )
    yield CopyFigure(
        name=f"{case}, last tokens that differ", unit="", samples=(_differing(reports),), target=0, wanted="exactly"
    )


def _slowest(samples: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return what each repeat took the rank that took longest."""
    return tuple(max(repeat) for repeat in zip(*samples, strict=True))


def _differing(reports: Sequence[CaseReport]) -> int:
    """Return the requests whose row is not the same on all ranks, of both gathers, as where it was computed."""
    seen: dict[int, set[str]] = {}
    for report in reports:
        rows: list[Mapping[int, str]] = [dict(enumerate(report["digests"][way])) for way in WAYS]
        rows.append({int(request): digest for request, digest in report["own"].items()})
        for digests in rows:
            for request, digest in digests.items():
                seen.setdefault(request, set()).add(digest)
    return sum(len(digests) > 1 for digests in seen.values())
