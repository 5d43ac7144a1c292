"""The parts of the benchmarks that have a formula."""

import re

import numpy as np
import pytest

import cpkv
from cpkv.bench import MEASUREMENTS, BenchSettings, Figure, machine
from cpkv.bench.rank_ticks import beyond_the_skew
from cpkv.bench.replays import flatness
from cpkv.bench.timing import cpu_microseconds, ratios
from cpkv.replay import net_microseconds


def test_a_figure_is_judged_by_its_median():
    figure = Figure(name="call", unit="us", samples=(9.0, 2.0, 3.0), target=4.0)
    assert (figure.least, figure.median, figure.ratio) == (2.0, 3.0, 0.75)
    assert Figure(name="call", unit="us", samples=(1.0,)).ratio is None
    assert figure.as_json() == {
        "name": "call", "unit": "us", "least": 2.0, "median": 3.0, "target": 4.0, "ratio": 0.75, "note": "",
        "samples": [9.0, 2.0, 3.0],
    }  # fmt: skip


def test_a_tick_is_counted_from_when_it_could_go_on():
    times = np.zeros((3, 3, 2), np.int64)
    times[0] = [(0, 1), (100, 102), (200, 203)]
    # Enters its second tick before rank 0 has entered the first, and its third after the second.
    times[1] = [(-20, -19), (-10, 4), (150, 157)]
    times[2] = [(50, 60), (60, 61), (61, 108)]
    assert beyond_the_skew(times).tolist() == [[2, 3], [4, 7], [1, 8]]


def test_a_ratio_to_the_floor_outvotes_a_slow_sample():
    assert ratios([2, 4, 90, 6, 6, 6], [1, 2, 2, 2, 2, 90], repeats=2) == (2.0, 3.0)


def test_flatness_compares_the_sizes_of_a_turn():
    figure = flatness("spread", [(1.0, 2.0), (3.0, 2.0), (2.0, 4.0)], 1.5)
    assert figure.samples == (3.0, 2.0)


def test_reading_the_clock_is_taken_off():
    assert net_microseconds(9_000, 1_000, 4) == 2.0
    assert net_microseconds(1_000, 9_000) == net_microseconds(0, 0, 0) == 0.0
    calls = []
    assert cpu_microseconds(lambda: calls.append(1)) >= 0
    assert calls == [1]


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"repeats": 0}, "repeats is 0, want at least 1"),
        ({"ranks": 0}, "ranks is 0, want 1 to 64"),
        ({"ranks": 65}, "ranks is 65, want 1 to 64"),
        ({"operations": 0}, "operations is 0, want 1 to 100000"),
        ({"ticks": 1, "repeats": -1}, "repeats is -1, want at least 1; ticks is 1, want at least 2"),
    ],
)
def test_sizes_that_cannot_be_are_refused_at_once(settings, wanted):
    with pytest.raises(cpkv.ConfigError, match=f"^{re.escape(wanted)}$"):
        BenchSettings(**settings)


def test_every_measurement_has_a_name_for_the_command_line():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in MEASUREMENTS)
    assert {"date", "processor", "cores", "python", "command"} < set(machine())
