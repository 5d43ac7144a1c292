"""What a forward's split over context-parallel ranks costs before it begins."""

from collections.abc import Iterator
from typing import Final

from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.bench.timing import cpu_microseconds
from cpkv.cp import page_owners, zigzag_split

TOKENS: Final = 1 << 20
RANKS: Final = 8
PAGE: Final = 64
SPLITS: Final = 20
TARGET_US: Final = 200.0


def measure_cp_split(settings: BenchSettings) -> Iterator[Figure]:
    """Split a request of 2**20 tokens, with all that one rank needs of it."""

    def split() -> None:
        for _ in range(SPLITS):
            view = zigzag_split([0], [TOKENS], cp_size=RANKS, page_size=PAGE).view(RANKS - 1)
            _ = view.positions, view.causal_lengths, [(part.offsets, part.key_lengths) for part in view.parts]
            page_owners(view.split, 0)

    split()
    yield Figure(
        name=f"split of {TOKENS:,} tokens over {RANKS} ranks",
        unit="us",
        samples=tuple(cpu_microseconds(split) / SPLITS for _ in range(settings.repeats)),
        target=TARGET_US,
        note="with one rank's positions, lengths and parts, and the owners of all pages",
    )
