"""The timeline of forwards, and that its check finds what cannot be."""

import json
from dataclasses import replace

import pytest

import cpkv
from cpkv.bench.copy import draw, faults
from cpkv.bench.copy.timeline import COMMIT, Forward, Timeline
from cpkv.bench.copy.timeline_check import first_copy_leads, forwards_of

FORWARD = Forward(
    layers=((1_000_000, 3_000_000), (3_000_000, 5_000_000), (5_000_000, 7_000_000)),
    copied=(3_900_000, 6_100_000, 8_000_000),
    acked=(3_950_000, 6_150_000, 8_050_000),
    ticks=((7_900_000, 7_910_000), (8_100_000, 8_120_000)),
    bytes=100,
)


@pytest.fixture
def trace():
    return Timeline([FORWARD, FORWARD]).as_json({"machine": "made up"})


def event(trace, kind, layer, forward=1):
    return next(
        one
        for one in trace["traceEvents"]
        if one.get("cat") == kind and one["args"] == one["args"] | {"forward": forward, "layer": layer}
    )


def test_a_good_timeline_has_no_faults(trace):
    assert faults(trace) == []
    assert faults(json.loads(json.dumps(trace))) == []
    events = forwards_of(trace)[0]
    assert [one["name"] for one in events["copy"]] == ["copy 0", "copy 1", "copy 2"]
    assert (events["layer"][0]["ts"], events["layer"][0]["dur"]) == (0.0, 2_000.0), "microseconds of the first forward"
    assert events["tick"][-1]["name"] == COMMIT
    assert all({"ph", "pid", "tid", "name"} <= set(one) for one in trace["traceEvents"])
    assert trace["otherData"] == {"machine": "made up"}


def test_a_copy_begins_when_its_layer_and_the_copy_before_it_have_ended():
    assert FORWARD.copies() == [(3_000_000, 3_900_000), (5_000_000, 6_100_000), (7_000_000, 8_000_000)]
    slow = replace(FORWARD, copied=(5_500_000, 7_500_000, 9_500_000))
    assert [begin for begin, _ in slow.copies()] == [3_000_000, 5_500_000, 7_500_000]


def test_a_commit_before_an_ack_is_a_fault(trace):
    event(trace, "ack", 2)["ts"] = 7_200.0
    assert faults(trace) == ["forward 1 commits before the ack of layer 2"]


def test_a_first_copy_after_the_last_layer_is_a_fault(trace):
    for layer in range(3):
        event(trace, "copy", layer)["ts"] = 6_000.0 + 10 * layer
        event(trace, "copy", layer)["dur"] = 10.0
        event(trace, "ack", layer)["ts"] = 6_020.0 + 10 * layer
    assert faults(trace) == ["forward 1 has no copy before its last layer ends"]
    good, bad = (forwards_of(trace)[number] for number in (0, 1))
    assert first_copy_leads(good)
    assert not first_copy_leads(bad)
    assert not first_copy_leads({})


def test_layers_that_were_copied_all_at_once_are_a_fault(trace):
    trace["traceEvents"].remove(event(trace, "copy", 0))
    trace["traceEvents"].remove(event(trace, "copy", 1))
    assert faults(trace) == [
        "forward 1 has no copy of layer 0",
        "forward 1 has no copy of layer 1",
        "forward 1 has no copy before its last layer ends",
    ]


def test_a_copy_before_its_layer_and_an_ack_before_its_copy_are_faults(trace):
    event(trace, "copy", 1)["ts"] -= 1_000.0
    assert faults(trace) == ["forward 1 copies layer 1 before it has ended"]
    event(trace, "copy", 1)["ts"] += 1_000.0
    event(trace, "ack", 1)["ts"] = event(trace, "copy", 1)["ts"] - 30.0
    assert faults(trace) == ["forward 1 has an ack of layer 1 before its copy"]
    assert faults(trace, tolerance_us=50.0) == [], "two clocks"


def test_a_forward_without_a_commit_and_a_trace_without_a_forward_are_faults(trace):
    trace["traceEvents"] = [one for one in trace["traceEvents"] if one["name"] != COMMIT]
    assert faults(trace) == [f"forward {number} has 0 commits, want 1" for number in (0, 1)]
    assert faults(Timeline().as_json({})) == ["there is no forward"]


def test_a_picture_of_a_forward_that_is_not_there_is_refused(trace, tmp_path):
    with pytest.raises(cpkv.ConfigError, match=r"forward is 7, want one of the 2|needs matplotlib"):
        draw(trace, tmp_path / "picture.png", forward=7)


def test_a_forward_is_drawn(trace, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is an extra")
    draw(trace, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
