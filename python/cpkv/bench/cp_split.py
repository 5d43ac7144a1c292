"""What a forward's split over context-parallel ranks costs before it begins."""

from collections.abc import Callable, Iterator
from typing import Final

from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.bench.timing import cpu_microseconds
from cpkv.cp import LocalView, page_owners, zigzag_split

TOKENS: Final = 1 << 20
RANKS: Final = 8
PAGE: Final = 64
SPLITS: Final = 20
TARGET_US: Final = 200.0


def measure_cp_split(settings: BenchSettings) -> Iterator[Figure]:
    """Split a request of 2**20 tokens, with what one rank needs of it before its rows, and with its rows."""

    def split() -> LocalView:
        view = zigzag_split([0], [TOKENS], cp_size=RANKS, page_size=PAGE).view(RANKS - 1)
        _ = [(part.offsets, part.key_lengths) for part in view.parts]
        page_owners(view.split, 0)
        return view

    def rows() -> None:
        view = split()
        _ = view.positions, view.causal_lengths

    what = f"split of {TOKENS:,} tokens over {RANKS} ranks"
    metadata, whole = (_samples(work, settings.repeats) for work in (split, rows))
    yield Figure(
        name=what, unit="us", samples=metadata, target=TARGET_US, note="parts of one rank, owners of all pages"
    )
    yield Figure(
        name=f"{what}, and rows", unit="us", samples=whole, note="also position and length of each of its rows"
    )


def _samples(work: Callable[[], object], repeats: int) -> tuple[float, ...]:
    def several() -> None:
        for _ in range(SPLITS):
            work()

    several()
    return tuple(cpu_microseconds(several) / SPLITS for _ in range(repeats))
