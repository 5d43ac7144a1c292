"""One copier measured in every way: alone, beside each load, and what it costs the calling thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from cpkv.bench.copy.case import Case
from cpkv.bench.copy.copier import Copier
from cpkv.bench.copy.figure import Peer
from cpkv.bench.copy.formulas import gigabytes_per_second
from cpkv.bench.copy.passes import Beside, alone, beside, one_round, typical_ns
from cpkv.bench.copy.peers import PeerCopier, Work
from cpkv.bench.copy.pools import Pools, mla_layout
from cpkv.bench.copy.run import Run, said
from cpkv.bench.copy.targets import ALONE
from cpkv.device import Direction


@dataclass(frozen=True, slots=True)
class Outcome:
    """Samples of one copier.

    Args:
        alone: GB/s with nothing beside it.
        submit_us: CPU of the calling thread for each layer.
        beside: By the name of the load.
    """

    alone: tuple[float, ...]
    submit_us: tuple[float, ...]
    beside: Mapping[str, Beside] = field(default_factory=dict)

    def bandwidth(self, load: str) -> tuple[float, ...]:
        """Return GB/s alone or beside a load."""
        return self.alone if load == ALONE else self.beside[load].gigabytes_per_second

    def note(self, load: str) -> str:
        """Return a warning if copies were not beside the load to their end."""
        if load == ALONE or not self.beside[load].outlasted:
            return ""
        return f"in {self.beside[load].outlasted} of {len(self.alone)} rounds the copy ended after the load"


Outcomes = Mapping[str, Outcome | str]
"""Of the peers by name; a text is why there is none."""


def peers_of(outcomes: Outcomes, samples: Callable[[Outcome], tuple[float, ...]], load: str = ALONE) -> dict[str, Peer]:
    """Return what the peers did, as figures have it."""
    return {
        name: Peer(error=one) if isinstance(one, str) else Peer(samples=samples(one), note=one.note(load))
        for name, one in outcomes.items()
    }


def measure_copier(run: Run, copier: Copier, loads: Sequence[str]) -> Outcome:
    """Measure a copier alone and beside loads, after one round to warm up."""
    one_round(run.platform, copier)
    rounds = alone(run.platform, copier, run.repeats)
    guess_ns = typical_ns(rounds)
    return Outcome(
        alone=tuple(gigabytes_per_second(copier.bytes, taken.span_ns) for taken in rounds),
        submit_us=tuple(taken.submit_ns / copier.layers / 1_000 for taken in rounds),
        beside={load: beside(run.platform, copier, load, run.repeats, guess_ns) for load in loads},
    )


def measure_peers(run: Run, direction: Direction, pages: int, loads: Sequence[str]) -> Outcomes:
    """Measure the peers on scattered pages: they copy page by page wherever the pages lie."""
    case, outcomes = Case(direction, pages, 1), {}
    for peer in run.peers:
        one: Outcome | str
        try:
            run.check_time()
            pools = Pools(run.platform, mla_layout(run.layers), pages=case.device_pages, slots=case.slots)
            # The slots of a pool that nobody has used: one after the other.
            work = Work(pools, case.places(), np.arange(pages, dtype=np.int64), direction)
            one = measure_copier(run, PeerCopier(run.platform, work, peer.prepare(work)), loads)
        except Exception as error:  # noqa: BLE001 - told in the peer's place
            one = said(error)
        outcomes[peer.name] = one
    return outcomes | dict(run.missing)
