"""The parts of the overlap's benchmark that have a formula, and what its forwards are made of."""

import re
from dataclasses import replace

import numpy as np
import pytest

import cpkv
from cpkv.bench.copy import CopySettings, Timeline
from cpkv.bench.copy.cuda_platform import even_parts
from cpkv.bench.copy.layers import SyntheticLayer
from cpkv.bench.copy.platform import LAYER_UNITS
from cpkv.bench.copy.pools import mla_layout
from cpkv.bench.copy.targets import Targets
from cpkv.bench.copy.timeline import Forward
from cpkv.bench.overlap import OverlapSettings
from cpkv.bench.overlap.calibration import CLOSE_ENOUGH, TRIES, calibrated_units
from cpkv.bench.overlap.formulas import copied_ns, hidden_percent, most_hidden_percent, next_units, span_ns
from cpkv.bench.overlap.rounds import OverlapRound
from cpkv.bench.overlap.rows import UNITS, share_rows
from cpkv.bench.overlap.start import case_of, memory_needed

MS = 1_000_000


def forward(layers, copied, visible, *, begin=0, size=100):
    """A forward whose layers and copies end at these milliseconds."""
    begins = (begin, *layers[:-1])
    return Forward(
        layers=tuple((start * MS, end * MS) for start, end in zip(begins, layers, strict=True)),
        copied=tuple(end * MS for end in copied),
        acked=tuple(end * MS for end in copied),
        ticks=((visible * MS - MS, visible * MS),),
        bytes=size,
    )


# --- Formulas ---


def test_copies_are_counted_without_the_gaps_and_their_span_with_them():
    one = forward([10, 20, 30], [15, 25, 35], 36)
    assert copied_ns(one) == 15 * MS
    assert span_ns(one) == 25 * MS


@pytest.mark.parametrize(
    ("layers", "copied", "hidden"),
    [
        ([10, 20, 30], [15, 25, 35], 100 * 10 / 15),
        # The second copy is under way when the last layer ends: 2 of its 12 ms are over, and none of the third's.
        ([10, 18, 20], [15, 30, 35], 100 * (5 + 2) / 22),
        # The first one lasts until after the forward: nothing of the others is hidden.
        ([10, 20, 30], [32, 37, 42], 100 * 20 / 32),
        # Of a forward that is copied behind its end, nothing is.
        ([30], [45], 0.0),
    ],
)
def test_what_is_hidden_is_what_is_over_when_the_last_layer_ends(layers, copied, hidden):
    assert hidden_percent(forward(layers, copied, 50)) == pytest.approx(hidden)
    later = forward([one + 7 for one in layers], [one + 7 for one in copied], 57, begin=7)
    assert hidden_percent(later) == pytest.approx(hidden), "wherever the clock begins"


def test_the_last_layer_alone_cannot_be_hidden():
    layers = list(range(10, 630, 10))
    perfect = forward(layers, [end + 9 for end in layers], 640)
    assert hidden_percent(perfect) == pytest.approx(most_hidden_percent(62)) == pytest.approx(98.387, abs=1e-3)


def test_a_forward_knows_its_moments():
    one = forward([10, 20, 30], [15, 25, 35], 36, begin=3)
    assert (one.begin_ns, one.end_ns, one.visible_ns, one.taken_ns) == (3 * MS, 30 * MS, 36 * MS, 27 * MS)


# --- Rows ---


ROUND = OverlapRound(
    alone_ns=12 * MS,
    plain_ns=29 * MS,
    again_ns=28 * MS,
    hooked=forward([10, 20, 30], [15, 25, 35], 36, size=5 * 10**6),
    behind=forward([31], [46], 47, size=15 * 10**6),
)


def test_the_rows_of_a_share():
    rows = share_rows("10 %", [ROUND] * 3, {"backup time hidden": 95.0, "slowdown, of the copies' span": 2.0}, {})
    assert [(row.name, row.unit) for row in rows] == [(f"10 %: {what}", unit) for what, unit in UNITS.items()]
    told = {
        row.name.removeprefix("10 %: "): {"ours": row.median, **{name: peer.median for name, peer in row.peers.items()}}
        for row in rows
    }
    wanted = {
        "copy to layer": {"ours": 100 * 12 / 29},
        "forward": {"ours": 30, "no backup": 29, "A/A": 28, "all layers behind": 31},
        "forward, begin to visible": {"ours": 36, "all layers behind": 47},
        "forward, end to visible": {"ours": 6, "all layers behind": 16},
        "backup time hidden": {"ours": 100 * 10 / 15, "all layers behind": 0},
        # 1 ms more, of a span of 25 ms with gaps; behind the forward 2 ms of 15 without any.
        "slowdown, of the copies' span": {"ours": 4, "A/A": -4, "all layers behind": 100 * 2 / 15},
        "slowdown, of the copies' time": {"ours": 100 / 15, "A/A": -100 / 15, "all layers behind": 100 * 2 / 15},
        "copies": {"ours": 1, "copies alone": 15 / 12, "all layers behind": 1},
    }
    assert list(told) == list(wanted)
    for what, values in wanted.items():
        assert told[what] == pytest.approx(values), what
    assert all(len(row.samples) == 3 for row in rows)


def test_only_what_is_wanted_is_judged_and_by_the_right_side():
    targets = {"backup time hidden": 66.0, "slowdown, of the copies' span": 3.0}
    rows = {row.name: row for row in share_rows("x", [ROUND], targets, {"forward": "said"})}
    judged = {name: (row.wanted, row.is_met) for name, row in rows.items() if row.target is not None}
    assert judged == {
        "x: backup time hidden": ("at least", True),
        "x: slowdown, of the copies' span": ("at most", False),
    }
    assert [row.note for row in rows.values() if row.note] == ["said"]


def test_what_is_wanted_is_wanted_of_full_layers_on_a_known_machine():
    assert Targets(is_known=True).hidden(pages=512) == 95
    assert Targets(is_known=True).hidden(pages=16) is None
    assert Targets(is_known=False).hidden(pages=512) is None


# --- The work of a layer ---


def test_work_is_scaled_to_the_wanted_time():
    assert next_units(100, 2_000.0, 3_000.0) == 150
    assert next_units(100, 2_000.0, 1.0) == 1, "never none"
    assert next_units(100, 0.0, 5.0) == 500


@pytest.mark.parametrize("share", [10, 50, 90])
def test_the_work_of_a_layer_comes_near_the_wanted_time_with_few_measurements(share):
    """Some time for whatever there is to compute, and a clock that is a little slower with every measurement."""
    tries = []

    def layer_ns(units):
        tries.append(units)
        return (20_000 + 11_000 * units) * (1 + 0.001 * len(tries))

    wanted = 780_000 * 100 / share
    units = calibrated_units(layer_ns, wanted)
    assert tries[0] == LAYER_UNITS
    assert len(tries) <= TRIES
    assert 20_000 + 11_000 * units == pytest.approx(wanted, abs=11_000 / 2 + 2 * CLOSE_ENOUGH * wanted)


def test_the_nearest_try_is_taken_if_none_is_near():
    times = iter([5_000.0, 900.0, 40_000.0, 1_300.0, 70_000.0])
    tries = []
    assert calibrated_units(lambda units: (tries.append(units), next(times))[1], 1_000.0) == tries[1]


def test_the_same_work_is_not_measured_twice():
    tries = []
    calibrated_units(lambda units: (tries.append(units), 1_000_000.0)[1], 10.0)
    assert tries == [LAYER_UNITS, 1]


def test_work_is_cut_into_few_products_of_about_the_same_size():
    assert even_parts(128, 128) == [128]
    assert even_parts(129, 128) == [64, 65]
    assert even_parts(1, 128) == [1]
    for count in range(1, 1_000, 7):
        parts = even_parts(count, 128)
        assert sum(parts) == count
        assert len(parts) == -(-count // 128)
        assert max(parts) - min(parts) <= 1


class MadeUpMachine:
    def __init__(self):
        self.calls = []

    def layer(self, units):
        self.calls.append(("layer", units))

    def mark(self, place):
        self.calls.append(("mark", place))
        return "end"


def test_a_layer_has_hooks_before_and_behind_its_work():
    machine = MadeUpMachine()
    layer = SyntheticLayer(machine, 7)
    before = layer.register_forward_pre_hook(lambda *arguments: machine.calls.append(("before", *arguments)))
    after = layer.register_forward_hook(lambda *arguments: machine.calls.append(("after", *arguments)))
    assert layer() == "end"
    assert machine.calls == [("before", layer, ()), ("layer", 7), ("mark", "compute"), ("after", layer, (), None)]
    before.remove()
    after.remove()
    machine.calls.clear()
    layer()
    assert machine.calls == [("layer", 7), ("mark", "compute")]


# --- Sizes ---


def test_target_and_draft_have_state_of_their_own():
    layout = mla_layout(61, draft_layers=1)
    assert [component.name for component in layout.components] == [
        "target_kv", "target_index", "draft_kv", "draft_index",
    ]  # fmt: skip
    assert set(np.diff(layout.first_bytes).tolist()) == {64 * (576 * 2 + 132)}, "all layers have equal copies"


def test_the_memory_is_that_of_one_forward_and_of_gaps_between_its_runs():
    settings = CopySettings().fitted("cuda")
    case = case_of(settings.pages)
    assert (case.pages, case.run_pages) == (512, 16)
    host, device = memory_needed(settings)
    assert host == 512 * 62 * 82_176
    assert device == 1_056 * 62 * 82_176
    assert case_of((4,)).run_pages == 4


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [
        ((), "shares is empty, want at least one number"),
        ((10, 0, -5), "shares has 0, want at least 1; shares has -5, want at least 1"),
        ((50, 50), "shares has a number twice: 50, 50"),
    ],
)
def test_shares_that_cannot_be_are_refused_at_once(shares, wanted):
    with pytest.raises(cpkv.ConfigError, match=f"^{re.escape(wanted)}$"):
        OverlapSettings(shares=shares)


def test_a_timeline_can_be_cut_down_to_the_last_of_each_kind():
    one = forward([10], [15], 16)
    forwards = [replace(one, title=title, bytes=number) for number, title in enumerate("aabab")]
    assert [(each.title, each.bytes) for each in Timeline(forwards).last_of_each().forwards] == [("a", 3), ("b", 4)]
    events = Timeline(forwards).as_json({})["traceEvents"]
    assert {event["args"]["title"] for event in events if event["ph"] != "M"} == {"a", "b"}
    untitled = Timeline([one]).as_json({})["traceEvents"]
    assert not any("title" in event["args"] for event in untitled)
