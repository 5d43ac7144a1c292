"""A restore of many layers: what submitting it costs, and when the first layer can be read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter_ns
from typing import Final

from cpkv.bench.copy.case import LONGEST_RUN, Case
from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.outcome import Outcomes, known_peers, peers_of
from cpkv.bench.copy.passes import no_collection, one_round
from cpkv.bench.copy.restore_copier import RestoreCopier
from cpkv.bench.copy.run import Run
from cpkv.bench.copy.settings import RESTORED_LAYERS
from cpkv.errors import CpkvError

HOLD_ROUNDS: Final = 2.0
"""`compute` stands still for so many times what the submission has taken: all is queued before any is copied."""


def restored_layers(run_layers: int, engine: str) -> int:
    """Return of how many layers a restore is measured."""
    return RESTORED_LAYERS if engine == "cuda" else run_layers


@dataclass(frozen=True, slots=True)
class _Samples:
    """One number for each restore."""

    submits_ms: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    layer_us: list[float] = field(default_factory=list)


def measure_restores(run: Run) -> Iterator[CopyFigure]:
    """Restore the most pages there are, in runs, and let a forward wait for each layer."""
    layers, pages = restored_layers(run.layers, run.platform.name), run.pages[-1]
    case = Case("to_device", pages, min(LONGEST_RUN, pages))
    peers = known_peers(run, "to_device", pages)

    def measure() -> Sequence[CopyFigure]:
        return _rows(run, case, layers, peers, _measure(run, case, layers))

    yield from run.figures(measure, _rows(run, case, layers, peers, _Samples()))


def _rows(run: Run, case: Case, layers: int, peers: Outcomes, taken: _Samples) -> list[CopyFigure]:
    title = f"restore, {layers} layers, {case.pages} pages, runs of {case.run_pages}"
    one_layer = f": {median(taken.layer_us):.0f} us" if taken.layer_us else ""
    return [
        CopyFigure(
            name=f"{title}, submission",
            unit="ms",
            samples=tuple(taken.submits_ms),
            target=run.targets.restore_ms(layers=layers, run_pages=case.run_pages),
            wanted="at most",
            peers=peers_of(peers, lambda one: tuple(layers * layer_us / 1e3 for layer_us in one.submit_us)),
            note=f"by the clock; of the peers {layers} times a layer of the scattered pages",
        ),
        CopyFigure(
            name=f"{title}, first layer ready",
            unit="layers",
            samples=tuple(taken.firsts),
            target=run.targets.first_layer(),
            wanted="at most",
            note=f"from when the copies could begin, in times of one layer{one_layer}",
        ),
    ]


def _measure(run: Run, case: Case, layers: int) -> _Samples:
    platform, taken = run.platform, _Samples()
    with run.site(pages=case.device_pages, slots=case.slots, layers=layers) as site:
        copier = RestoreCopier(site, case.places())
        hold_ms = platform.hold_ms + HOLD_ROUNDS * one_round(platform, copier).submit_ns / 1e6
        for _ in range(run.repeats):
            copier.begin()
            lease = copier.lease
            if lease is None:
                message = "the restore has no lease"
                raise CpkvError(message)
            with no_collection():
                platform.hold(hold_ms)
                start = platform.mark("compute")
                begun = perf_counter_ns()
                copier.submit()
                taken.submits_ms.append((perf_counter_ns() - begun) / 1e6)
                site.tier.begin_forward([], [lease])
                ready = []
                for layer in range(layers):
                    site.tier.layer_begins(layer)
                    ready.append(platform.mark("compute"))
                    site.tier.layer_ended(layer)
                site.tier.end_forward()
                platform.synchronize()
            copier.finish()
            each_ns = platform.elapsed_ns(start, ready[-1]) / layers
            taken.firsts.append(platform.elapsed_ns(start, ready[0]) / max(each_ns, 1))
            taken.layer_us.append(each_ns / 1e3)
    return taken
