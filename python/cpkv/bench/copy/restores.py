"""A restore of many layers: what submitting it costs, and when the first layer can be read."""

from collections.abc import Iterator, Sequence
from statistics import median
from time import perf_counter_ns
from typing import Final

from cpkv.bench.copy.case import LONGEST_RUN, Case
from cpkv.bench.copy.figure import CopyFigure
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


def measure_restores(run: Run) -> Iterator[CopyFigure]:
    """Restore the most pages there are, in runs, and let a forward wait for each layer."""
    layers, pages = restored_layers(run.layers, run.platform.name), run.pages[-1]
    case = Case("to_device", pages, min(LONGEST_RUN, pages))
    title = f"restore, {layers} layers, {pages} pages, runs of {case.run_pages}"
    submission, first = f"{title}, submission", f"{title}, first layer ready"

    def measure() -> Sequence[CopyFigure]:
        submits_ms, firsts, layer_us = _measure(run, case, layers)
        return [
            CopyFigure(
                name=submission,
                unit="ms",
                samples=tuple(submits_ms),
                target=run.targets.restore_ms(layers=layers, run_pages=case.run_pages),
                wanted="at most",
            ),
            CopyFigure(
                name=first,
                unit="layers",
                samples=tuple(firsts),
                target=run.targets.first_layer(),
                wanted="at most",
                note=f"from when the copies could begin, in times of one layer: {median(layer_us):.0f} us",
            ),
        ]

    yield from run.figures(measure, [(submission, "ms"), (first, "layers")])


def _measure(run: Run, case: Case, layers: int) -> tuple[list[float], list[float], list[float]]:
    platform = run.platform
    submits_ms, firsts, layer_us = [], [], []
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
                submits_ms.append((perf_counter_ns() - begun) / 1e6)
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
            firsts.append(platform.elapsed_ns(start, ready[0]) / max(each_ns, 1))
            layer_us.append(each_ns / 1e3)
    return submits_ms, firsts, layer_us
