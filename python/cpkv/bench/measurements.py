"""The measurements by name."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cpkv.bench.blocks import measure_blocks
from cpkv.bench.cp_split import measure_cp_split
from cpkv.bench.figure import Figure
from cpkv.bench.idle_tick import measure_idle_tick
from cpkv.bench.import_time import measure_import
from cpkv.bench.long_match import measure_long_match
from cpkv.bench.metadata import measure_metadata
from cpkv.bench.pair_insert import measure_pair_insert
from cpkv.bench.rank_ticks import measure_rank_ticks
from cpkv.bench.settings import BenchSettings
from cpkv.bench.tokens import measure_tokens
from cpkv.bench.transactions import measure_transactions


@dataclass(frozen=True, slots=True)
class Measurement:
    """One thing that can be measured.

    Args:
        measure: Does it.
        serves_requests: Whether it serves those of the settings.
    """

    measure: Callable[[BenchSettings], Iterator[Figure]]
    serves_requests: bool = False


MEASUREMENTS: Final = {
    "blocks": Measurement(measure_blocks, serves_requests=True),
    "tokens": Measurement(measure_tokens, serves_requests=True),
    "transactions": Measurement(measure_transactions, serves_requests=True),
    "long-match": Measurement(measure_long_match),
    "pair-insert": Measurement(measure_pair_insert),
    "idle-tick": Measurement(measure_idle_tick),
    "rank-ticks": Measurement(measure_rank_ticks),
    "metadata": Measurement(measure_metadata, serves_requests=True),
    "cp-split": Measurement(measure_cp_split),
    "import": Measurement(measure_import),
}
