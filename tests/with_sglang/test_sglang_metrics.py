"""Prometheus finds cpkv's figures beside SGLang's, with the same labels."""

import time
from collections import defaultdict
from functools import partial

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.multiprocess import MultiProcessCollector
from prompts import Prompts
from served import Request
from setups import Setup

from cpkv import CacheManager
from cpkv.drivers.counts import Counts
from cpkv.sglang.exporter import Exporter
from cpkv.sglang.metrics import ALL_LAYER_FORWARDS, COUNTERS, GAUGES, HOST_COUNTERS, HOST_GAUGES

SETUP = Setup("llama", 16, pool_tokens=640)
METRICS = {"enable_metrics": True, "extra_metric_labels": {"cluster": "north"}}
HOST_TIER = {"enable_hierarchical_cache": True, "hicache_io_backend": "direct", "hicache_ratio": 8.0}
SECONDS = 20
"""For what is published every second, by a machine that has other work."""


def published(folder):
    """What SGLang's endpoint answers with: for each name, values by their labels."""
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=str(folder))
    values = defaultdict(dict)
    for metric in registry.collect():
        for sample in metric.samples:
            values[sample.name][frozenset(sample.labels.items())] = sample.value
    return values


def wanted(state):
    """What has to be published of a state, by name and by the labels that a metric has for itself."""
    hits = {f"{tier}_hit_tokens": state[f"{tier}_hit_pages"] * SETUP.page_size for tier in ("device", "host")}
    figures = state | hits | {"oldest_operation_seconds": state["oldest_operation_ns"] / 1e9}
    metrics = GAUGES | COUNTERS | (HOST_GAUGES | HOST_COUNTERS if "restores" in state else {})
    return {
        (name, frozenset(own.items())): figures[figure]
        for name, metric in metrics.items()
        for figure, own in metric.figures.items()
    }


def found(values, labels):
    """What is published under names of cpkv, with the labels by which it differs from what all have."""
    return {
        (name, told_by ^ labels): value
        for name, by_labels in values.items()
        if name.startswith("cpkv_")
        for told_by, value in by_labels.items()
    }


def check(engine, folder):
    """Everything is published, nothing else, and with the labels of SGLang. Returns it."""
    state = engine.settle()
    until = time.monotonic() + SECONDS
    while True:
        values = published(folder)
        [labels] = values["sglang:num_running_reqs"]
        seen = found(values, labels)
        if seen == wanted(state) or time.monotonic() > until:
            break
        time.sleep(0.1)
    assert seen == wanted(state)
    assert {name for name, _ in labels} >= {"model_name", "engine_type", "tp_rank", "pp_rank", "cluster"}
    return seen


@pytest.fixture
def seen_engine(cached_engine, tmp_path):
    def start(**options):
        return cached_engine(SETUP, PROMETHEUS_MULTIPROC_DIR=str(tmp_path), **options)

    return start


def serve(engine, prompts):
    """More than the device holds, and the first of it once more."""
    requests = [Request(prompts.tokens(400)) for _ in range(3)]
    for request in [*requests, requests[0]]:
        [answer] = engine.serve(request)
        engine.settle()
    return answer


def test_the_host_tier_in_figures_that_never_fall(seen_engine, tmp_path):
    engine, prompts = seen_engine(**METRICS, **HOST_TIER), Prompts(71)
    answer = serve(engine, prompts)
    before = check(engine, tmp_path)
    host = frozenset({("tier", "host")})
    assert before["cpkv_hit_tokens_total", host] >= answer.host_hit > 0
    assert_that_sglang_tells_the_same_of_the_host(tmp_path)
    assert before["cpkv_copied_bytes_total", frozenset({("direction", "to_device"), ("when", "restore")})] > 0
    assert engine.flush()
    after = check(engine, tmp_path)
    assert (after["cpkv_device_cached_pages", frozenset()], after["cpkv_host_cached_slots", frozenset()]) == (0, 0)
    assert after["cpkv_flushes_total", frozenset()] == 1
    serve(engine, prompts)
    last = check(engine, tmp_path)
    for name in (name for name in before if name[0].endswith("_total")):
        assert before[name] <= after[name] <= last[name]


def assert_that_sglang_tells_the_same_of_the_host(folder):
    values = published(folder)
    told = {name: value for name, by_labels in values.items() for value in by_labels.values()}
    slots = told["cpkv_host_capacity_slots"]
    assert told["sglang:hicache_host_total_tokens"] == slots * SETUP.page_size
    assert 0 < told["sglang:hicache_host_used_tokens"] <= told["cpkv_host_cached_slots"] * SETUP.page_size


def test_the_device_tier_alone(seen_engine, tmp_path):
    engine = seen_engine(**METRICS)
    request = Request(Prompts(72).tokens(200))
    engine.serve(request)
    [hot] = engine.serve(request)
    seen = check(engine, tmp_path)
    assert seen["cpkv_hit_tokens_total", frozenset({("tier", "device")})] == hot.device_hit > 0
    assert ALL_LAYER_FORWARDS not in {name for name, _ in seen}


def test_forwards_that_are_copied_all_at_once_are_told_by_reason(seen_engine, tmp_path):
    engine = seen_engine(CPKV_TEST_FAULT="hook nothing", **METRICS, **HOST_TIER)
    engine.serve(Request(Prompts(73).tokens(100)))
    state = engine.settle()
    assert state["all_layer_forwards_graph replay"] == 1
    until = time.monotonic() + SECONDS
    while not (told := published(tmp_path)[ALL_LAYER_FORWARDS]) and time.monotonic() < until:
        time.sleep(0.1)
    [[labels, forwards]] = told.items()
    assert (dict(labels)["reason"], forwards) == ("graph replay", 1)


def test_a_copy_that_does_not_end_shows_in_an_age_that_grows(monkeypatch):
    registry = CollectorRegistry()
    for kind in (Counter, Gauge):
        monkeypatch.setattr(prometheus_client, kind.__name__, partial(kind, registry=registry))
    cache = CacheManager(page_size=1, device_pages=8, host_slots=8, segment_pages=1, copies="tracked")
    labels = {"tp_rank": "0"}
    exporter = Exporter(cache, Counts(), labels, interval_s=60)
    lease = cache.lock(cache.match([1, 2]))
    [transaction] = cache.reserve([([1, 2], cache.allocate(2), lease)])
    for step, (now_s, age_s) in enumerate([(7, 0), (7.5, 0.5), (99, 92)]):
        cache.tick(step, now_ns=int(now_s * 1e9))
        exporter.publish()
        assert registry.get_sample_value("cpkv_oldest_operation_seconds", labels) == age_s
    transaction.abort()
    lease.release()
    exporter.close()


def test_without_metrics_there_is_nothing_of_it(seen_engine, tmp_path):
    engine = seen_engine()
    engine.serve(Request(Prompts(74).tokens(100)))
    assert not engine.settle()["imports_prometheus"]
    assert not list(tmp_path.iterdir())
