"""One copier measured in every way: alone, beside each load, and what it costs the calling thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

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

SLOW_NS: Final = 100_000_000
"""A peer whose copies take longer is measured less often: its noise is as small a share of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Samples of one copier.

    Args:
        alone: GB/s with nothing beside it.
        submit_us: Time of the calling thread for each layer.
        submit_cpu_us: CPU of it.
        beside: By the name of the load.
    """

    alone: tuple[float, ...]
    submit_us: tuple[float, ...]
    submit_cpu_us: tuple[float, ...]
    beside: Mapping[str, Beside] = field(default_factory=dict)

    def bandwidth(self, load: str) -> tuple[float, ...]:
        """Return GB/s alone or beside a load."""
        return self.alone if load == ALONE else self.beside[load].gigabytes_per_second

    def slowdown(self, load: str) -> tuple[float, ...]:
        """Return percent of the copy's time that a load took longer."""
        return self.beside[load].slowdown_percent

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


def measure_copier(run: Run, copier: Copier, loads: Sequence[str], *, is_wanted: bool, is_ours: bool = True) -> Outcome:
    """Measure a copier alone and beside loads, after one round to warm up.

    Args:
        run: With the platform.
        copier: Ours or a peer's.
        loads: Beside which.
        is_wanted: Whether something is wanted of it: then it is measured `Run.repeats` times, unless it is a slow
            peer, and loads are led. Otherwise `Run.fewer_repeats` times.
        is_ours: Whether it is no peer: then the loads are also compared with themselves.
    """
    warm = one_round(run.platform, copier)
    is_slow = not is_ours and warm.span_ns > SLOW_NS
    repeats = run.fewer_repeats if is_slow or not is_wanted else run.repeats
    rounds = alone(run.platform, copier, repeats)
    guess_ns = typical_ns(rounds)
    return Outcome(
        alone=tuple(gigabytes_per_second(copier.bytes, taken.span_ns) for taken in rounds),
        submit_us=tuple(taken.submit_ns / copier.layers / 1_000 for taken in rounds),
        submit_cpu_us=tuple(taken.submit_cpu_ns / copier.layers / 1_000 for taken in rounds),
        beside={
            load: beside(run.platform, copier, load, repeats, guess_ns, has_same=is_ours, is_led=is_wanted)
            for load in loads
        },
    )


def measure_peers(run: Run, direction: Direction, pages: int, loads: Sequence[str]) -> Outcomes:
    """Measure the peers on scattered pages, and keep that for others who ask.

    They copy page by page wherever the pages lie.
    """
    case = Case(direction, pages, 1)

    def work() -> Work:
        pools = Pools(run.platform, mla_layout(run.layers), pages=case.device_pages, slots=case.slots)
        # The slots of a pool that nobody has used: one after the other.
        return Work(pools, case.places(), np.arange(pages, dtype=np.int64), direction)

    run.outcomes[direction, pages] = outcomes = measure_peers_at(run, work, loads, is_wanted=run.is_wanted(pages))
    return outcomes


def known_peers(run: Run, direction: Direction, pages: int) -> Outcomes:
    """Return what the peers did on scattered pages, measured alone unless they were before."""
    return run.outcomes.get((direction, pages)) or measure_peers(run, direction, pages, ())


def measure_peers_at(run: Run, work: Callable[[], Work], loads: Sequence[str], *, is_wanted: bool) -> Outcomes:
    """Measure the peers one after the other on work that is made anew for each."""
    outcomes = {}
    for peer in run.peers:
        one: Outcome | str
        try:
            run.check_time()
            todo = work()
            copier = PeerCopier(run.platform, todo, peer.prepare(todo))
            one = measure_copier(run, copier, loads, is_wanted=is_wanted, is_ours=False)
        except Exception as error:  # noqa: BLE001 - told in the peer's place
            one = said(error)
        outcomes[peer.name] = one
    return outcomes | dict(run.missing)
