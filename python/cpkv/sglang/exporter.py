"""Publishes cpkv's figures for Prometheus, beside those of SGLang's scheduler: `--enable-metrics`.

A thread of its own reads totals that are kept anyway, once in an interval. The scheduler does nothing for it, and what
is published stays true while the scheduler idles or is paused.
"""

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.runtime_context import get_disagg, get_observability, get_parallel, get_serving

from cpkv._core import CacheManager
from cpkv.drivers.counts import Counts
from cpkv.sglang.metrics import (
    ALL_LAYER_FORWARDS,
    ALL_LAYER_FORWARDS_MEANING,
    COUNTERS,
    GAUGES,
    HOST_COUNTERS,
    HOST_GAUGES,
)

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

INTERVAL_S: Final = 1.0


def labels_of(context: "TreeCacheBuildContext") -> dict[str, str]:
    """Return the labels of what SGLang publishes of a scheduler, but for the one that splits it by priority."""
    # Before 0.5.21 the ranks of a process are kept by what runs its model.
    ranks = getattr(context.tp_worker.model_runner, "ps", None) or get_parallel()
    engine_type = DisaggregationMode.to_engine_type(get_disagg().disaggregation_mode)
    if getattr(get_disagg(), "enable_pd_role_switch", False):
        engine_type = "dynamic"
    labels = {
        "model_name": get_serving().served_model_name,
        "engine_type": engine_type,
        "tp_rank": ranks.tp_rank,
        "pp_rank": ranks.pp_rank,
        "moe_ep_rank": ranks.moe_ep_rank,
    }
    if ranks.dp_rank is not None:
        labels["dp_rank"] = ranks.dp_rank
    labels |= get_observability().extra_metric_labels or {}
    return {name: str(value) for name, value in labels.items()}


class Exporter:
    """Publishes the figures of one cache until it is closed.

    Args:
        manager: What decides.
        counts: What has been copied; `None` without a host tier.
        labels: Of each metric.
        interval_s: Between one reading and the next.
    """

    def __init__(
        self, manager: CacheManager, counts: Counts | None, labels: Mapping[str, str], *, interval_s: float = INTERVAL_S
    ) -> None:
        # SGLang says by an environment variable, which it sets at its start, how processes publish together.
        from prometheus_client import Counter, Gauge  # noqa: PLC0415

        self._manager, self._counts, self._labels = manager, counts, labels
        self._sets: dict[str, Callable[[float], None]] = {}
        """By the name of a figure, what takes its value."""
        for name, metric in (GAUGES | (HOST_GAUGES if counts is not None else {})).items():
            gauge = Gauge(name, metric.documentation, [*labels], multiprocess_mode="mostrecent")
            self._sets |= {figure: gauge.labels(**labels).set for figure in metric.figures}
        self._totals: dict[str, _Total] = {}
        for name, metric in (COUNTERS | (HOST_COUNTERS if counts is not None else {})).items():
            own = next(iter(metric.figures.values()))
            counter = Counter(name, metric.documentation, [*labels, *own])
            for figure, told_by in metric.figures.items():
                self._totals[figure] = _Total(counter.labels(**labels, **told_by))
        if counts is not None:
            self._all_layer_forwards = Counter(ALL_LAYER_FORWARDS, ALL_LAYER_FORWARDS_MEANING, [*labels, "reason"])
        self._reasons: dict[str, _Total] = {}
        self._is_over = threading.Event()
        self._interval_s = interval_s
        self._thread = threading.Thread(target=self._run, name="cpkv metrics", daemon=True)
        self.publish()
        self._thread.start()

    def publish(self) -> None:
        """Publish what the figures are now. Only one thread at a time may do so."""
        figures = self._figures()
        for figure, publish in self._sets.items():
            publish(figures[figure])
        for figure, total in self._totals.items():
            total.grow_to(figures[figure])
        if self._counts is not None:
            for reason, forwards in dict(self._counts.all_layer_forwards).items():
                if reason not in self._reasons:
                    counter = self._all_layer_forwards.labels(**self._labels, reason=reason)
                    self._reasons[reason] = _Total(counter)
                self._reasons[reason].grow_to(forwards)

    def close(self) -> None:
        """Publish a last time, and end the thread. Idempotent."""
        if not self._is_over.is_set():
            self._is_over.set()
            self._thread.join()
            self.publish()

    def _figures(self) -> dict[str, Any]:
        figures: dict[str, Any] = self._manager.stats().as_dict()
        figures["oldest_operation_seconds"] = figures["oldest_operation_ns"] / 1e9
        for tier in ("device", "host"):
            figures[f"{tier}_hit_tokens"] = figures[f"{tier}_hit_pages"] * self._manager.page_size
        return figures if self._counts is None else figures | self._counts.as_dict()

    def _run(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self.publish()


class _Total:
    """A counter of Prometheus that follows a total."""

    def __init__(self, counter: Any) -> None:  # noqa: ANN401 - Prometheus'
        self._counter = counter
        self._told = 0

    def grow_to(self, total: int) -> None:
        """Count what has come since the last time."""
        if total > self._told:
            self._counter.inc(total - self._told)
            self._told = total
