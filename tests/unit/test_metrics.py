"""The table of what is told to Prometheus: nothing that the core or the drivers count is forgotten by accident."""

import re
from pathlib import Path

import pytest

from cpkv import CacheManager
from cpkv.drivers.counts import Counts
from cpkv.sglang.metrics import ALL_LAYER_FORWARDS, COUNTERS, GAUGES, HOST_COUNTERS, HOST_GAUGES

ALL = GAUGES | HOST_GAUGES | COUNTERS | HOST_COUNTERS
IN_OTHER_UNITS = {"device_hit_tokens", "host_hit_tokens", "oldest_operation_seconds"}
LEFT_OUT = {
    "oldest_operation_ns": "told in seconds",
    "device_hit_pages": "told in tokens",
    "host_hit_pages": "told in tokens",
    "device_free_pages": "the pool is SGLang's",
    "device_run_pages": "the pool is SGLang's",
    "host_run_pages": "for who works on the core",
    "host_written_pages": "for assumed copies",
    "late_copied_pages": "for assumed copies",
    "donors_lost": "for who works on the core",
    "leaves": "for who works on the core",
    "peak_metadata_bytes": "Prometheus keeps the most",
    "all_layer_forwards": "told by reason",
}


def test_every_figure_is_told_or_left_out_for_a_reason():
    told = {figure for metric in ALL.values() for figure in metric.figures} - IN_OTHER_UNITS
    known = CacheManager(device_pages=1).stats().as_dict().keys() | Counts().as_dict().keys()
    assert told | LEFT_OUT.keys() == known
    assert not told & LEFT_OUT.keys()


@pytest.mark.parametrize("name", ALL)
def test_names_are_those_that_prometheus_wants(name):
    assert re.fullmatch("cpkv_[a-z_]+", name)
    assert name.endswith("_total") == (name in COUNTERS | HOST_COUNTERS)


def test_the_page_for_users_has_all_of_them():
    document = Path(__file__).parents[2] / "docs/sglang.md"
    shown = set(re.findall(r"^\| `(cpkv_\w+)", document.read_text(encoding="utf-8"), re.MULTILINE))
    assert shown == {*ALL, ALL_LAYER_FORWARDS}
