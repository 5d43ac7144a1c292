"""The parts of the copy benchmark that have a formula."""

import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

import cpkv
from cpkv.bench.copy import COPY_MEASUREMENTS, CopyFigure, CopySettings, Peer, Run, choose_engine, measure_counts, said
from cpkv.bench.copy.case import Case, cases
from cpkv.bench.copy.formulas import (
    gigabytes_per_second,
    layer_microseconds,
    preparation_microseconds,
    slowdown_percent,
)
from cpkv.bench.copy.fragments import FragmentSizes
from cpkv.bench.copy.machine import command_without_files
from cpkv.bench.copy.outcome import measure_copier
from cpkv.bench.copy.passes import alone, beside, one_round
from cpkv.bench.copy.patterns import capacity_for, spread_pages
from cpkv.bench.copy.pools import mla_layout, whole_segments
from cpkv.bench.copy.run import without_paths
from cpkv.bench.copy.sglang import NAMES, sglang_peers
from cpkv.bench.copy.start import SGLANG_PEERS, memory_needed
from cpkv.bench.copy.targets import Targets
from cpkv.cli.copy_figures import copy_table, number
from cpkv.layout import join_runs
from cpkv.replay import Request


def test_the_formulas():
    assert gigabytes_per_second(53_000_000, 1_000_000) == 53.0
    # 2 ms more of a load, beside a copy of 40 ms.
    assert slowdown_percent(60_000_000, 62_000_000, 40_000_000) == 5.0
    assert slowdown_percent(62_000_000, 60_000_000, 40_000_000) == -5.0
    assert layer_microseconds([10_000, 12_000, 900_000]) == 12.0
    assert preparation_microseconds(610_000, 61) == 10.0


def test_a_row_of_one_layer_has_the_bytes_of_the_format():
    layout = mla_layout(2)
    assert [row.component.row_bytes for row in layout.rows] == [73_728, 8_448] * 2


def test_a_figure_is_judged_by_its_median_and_which_way_it_is_wanted():
    figure = CopyFigure(name="copy", unit="GB/s", samples=(50.0, 54.0, 53.0), target=53.0)
    assert (figure.median, figure.is_met) == (53.0, True)
    assert CopyFigure(name="hook", unit="us", samples=(21.0,), target=20.0, wanted="at most").is_met is False
    assert CopyFigure(name="hook", unit="us", target=20.0, error="it broke").is_met is False
    assert CopyFigure(name="hook", unit="us", samples=(1.0,)).is_met is None
    assert figure.as_json() == {
        "name": "copy", "unit": "GB/s", "median": 53.0, "target": 53.0, "wanted": "at least", "is_met": True,
        "note": "", "error": "", "peers": {}, "samples": [50.0, 54.0, 53.0],
    }  # fmt: skip


def test_the_table_shows_peers_beside_ours_and_what_is_missing():
    peers = {"contiguous": Peer(samples=(55.0,)), "each page": Peer(error="it broke"), "X": Peer(error="not there: x")}
    rows = [
        CopyFigure(name="copy", unit="GB/s", samples=(54.0,), target=53.0, peers=peers, note="said"),
        CopyFigure(name="slowdown", unit="%", error="no memory", target=2.0, wanted="at most"),
    ]
    _, _, columns, first, second, _, *notes = copy_table("heading", rows).splitlines()
    assert columns.split() == ["ours", "wanted", "met", "contiguous", "each", "page", "X"]
    assert first.split() == ["copy", "GB/s", "54.0", ">=", "53.0", "yes", "55.0", "failed", "not", "there"]
    assert second.split() == ["slowdown", "%", "failed", "<=", "2.00", "no"]
    assert [note.strip() for note in notes if note] == [
        "copy: said", "slowdown: failed: no memory", "each page: it broke", "X: not there: x",
    ]  # fmt: skip
    assert [number(value) for value in (0, 0.456, 9.99, 53.04, 2_713.4)] == ["0", "0.46", "9.99", "53.0", "2,713"]


def test_a_figure_is_measured_if_everybody_who_is_there_was():
    theirs = {"contiguous": Peer(samples=(1.0,)), "X": Peer(error="not there: x")}
    ours = CopyFigure(name="copy", unit="GB/s", samples=(1.0,), peers=theirs)
    assert ours.is_measured
    assert not replace(ours, samples=(), error="not begun").is_measured
    assert not replace(ours, peers=theirs | {"each page": Peer(error="it broke")}).is_measured


# --- Where pages lie ---


@pytest.mark.parametrize("run_pages", [1, 4, 16])
@pytest.mark.parametrize("count", [16, 128, 512])
def test_pages_lie_in_runs_of_exactly_that_length(count, run_pages):
    pages = spread_pages(count, run_pages, capacity_for(count, 16))
    assert len(set(pages.tolist())) == count
    assert pages.min() >= 0
    assert pages.max() < capacity_for(count, 16)
    runs = join_runs(pages, np.arange(count, dtype=np.int64), 32)
    assert set(runs.lengths.tolist()) == {run_pages}
    assert (spread_pages(count, run_pages, capacity_for(count, 16)) == pages).all()


def test_pages_that_do_not_fit_are_refused():
    with pytest.raises(cpkv.ConfigError, match="20 pages in runs of 16 need 64 device pages, got 60"):
        spread_pages(20, 16, 60)


def test_runs_that_are_longer_than_the_prompt_are_left_out():
    assert [case.run_pages for case in cases("to_device", 4)] == [1, 4]
    assert str(Case("to_host", 512, 16)) == "to host, 512 pages, runs of 16"
    assert (Case("to_host", 33, 1).slots, whole_segments(32)) == (64, 32)


# --- Targets ---


def test_the_targets_are_those_of_full_layers_on_a_known_machine():
    targets = Targets(is_known=True)
    assert targets.bandwidth(to_host=True, pages=512, run_pages=1, load="memory") == 48
    assert targets.bandwidth(to_host=True, pages=512, run_pages=16, load="alone") == 54
    assert targets.bandwidth(to_host=False, pages=512, run_pages=1, load="alone") == 47
    assert targets.bandwidth(to_host=True, pages=128, run_pages=1, load="alone") is None
    assert (targets.slowdown(pages=512, load="matmul"), targets.slowdown(pages=512, load="memory")) == (2, 3)
    assert [targets.hook_us(pages=pages, run_pages=run) for pages, run in ((16, 1), (512, 16), (512, 1))] == [
        20, 45, 450,
    ]  # fmt: skip
    nowhere = Targets(is_known=False)
    assert nowhere.bandwidth(to_host=True, pages=512, run_pages=1, load="alone") is None
    assert nowhere.hook_us(pages=16, run_pages=1) is nowhere.slowdown(pages=512, load="matmul") is None


# --- Rounds ---


def test_loads_begin_alike_with_and_without_copies(monkeypatch):
    """What has rested computes faster: a slowdown would be less than it is."""
    clock = itertools.count(0, 5_000_000)
    monkeypatch.setattr("cpkv.bench.copy.passes.perf_counter_ns", lambda: next(clock))
    machine = MadeUpMachine()
    beside(machine, MadeUpCopies(machine), "matmul", 2, guess_ns=8_000)
    assert (len(set(machine.holds[-6:])), machine.leads) == (1, [])
    machine = MadeUpMachine()
    beside(machine, MadeUpCopies(machine), "matmul", 2, guess_ns=8_000, is_led=True)
    assert machine.leads == [50] * 6


class MadeUpMachine:
    """A load's unit takes 1,000 ns, and 100 ns more for each round that a copy is beside it."""

    hold_ms = 1.0
    lead_units = 80

    def __init__(self):
        self.units = 0
        self.is_copying = False
        self.rounds = []
        self.holds = []
        self.leads = []

    def layer(self, units):
        self.leads.append(units)
        self.hold(0.0)

    def hold(self, milliseconds):
        self.holds.append(milliseconds)
        self.units = 0
        self.is_copying = False

    def follow(self, place, other):
        assert (place, other) == ("load", "compute")

    def mark(self, place):
        return place

    def load(self, name, units):
        assert name == "matmul"
        self.units = units

    def synchronize(self):
        self.rounds.append((self.units, self.is_copying))

    def elapsed_ns(self, begin, end):
        if begin == "load":
            return self.units * 1_000 + 100 * self.is_copying
        assert (begin, end) == ("compute", "copy")
        return 10_000


class MadeUpCopies:
    bytes = 500_000
    layers = 2

    def __init__(self, machine):
        self.machine = machine
        self.calls = []

    def begin(self):
        self.calls.append("begin")

    def submit(self):
        self.machine.is_copying = True
        self.calls.append("submit")

    def ended(self):
        self.calls.append("ended")
        return "copy"

    def finish(self):
        self.calls.append("finish")


def test_a_round_is_begun_submitted_marked_and_finished():
    machine = MadeUpMachine()
    copies = MadeUpCopies(machine)
    taken = one_round(machine, copies, "matmul", 30)
    assert copies.calls == ["begin", "submit", "ended", "finish"]
    assert (taken.span_ns, taken.load_ns) == (10_000, 30_100)
    assert one_round(machine, None, "matmul", 30).load_ns == 30_000


def test_pairs_take_turns_and_the_load_is_longer_than_the_copy():
    machine = MadeUpMachine()
    result = beside(machine, MadeUpCopies(machine), "matmul", 3, guess_ns=8_000)
    pair = beside(MadeUpMachine(), MadeUpCopies(MadeUpMachine()), "matmul", 2, guess_ns=8_000, has_same=False)
    assert (len(pair.slowdown_percent), pair.same_percent) == (2, ())
    assert result.gigabytes_per_second == (50.0,) * 3
    assert result.slowdown_percent == (1.0,) * 3
    assert result.same_percent == (0.0,) * 3
    assert result.outlasted == 0
    sizing, pairs = machine.rounds[:3], machine.rounds[3:]
    assert [is_copying for _, is_copying in sizing] == [False, True, True]
    assert [is_copying for _, is_copying in pairs] == [False, True, False, True, False, False, False, True, False]
    assert {units for units, _ in pairs} == {13}, "1.15 times the copy, in whole units and one more"


@pytest.mark.parametrize(("call_ms", "hold_ms"), [(0.001, 1.0), (5.0, 22.5), (50.0, 60.0)])
def test_nothing_begins_before_everything_is_queued(monkeypatch, call_ms, hold_ms):
    """The time of the thread is not the time of the copies: `compute` stands still for longer."""
    clock = itertools.count(0, int(call_ms * 1e6))
    monkeypatch.setattr("cpkv.bench.copy.passes.perf_counter_ns", lambda: next(clock))
    machine = MadeUpMachine()
    alone(machine, MadeUpCopies(machine), 2)
    assert machine.holds == [1.0, hold_ms, hold_ms]
    machine = MadeUpMachine()
    beside(machine, MadeUpCopies(machine), "matmul", 1, guess_ns=8_000)
    assert machine.holds[1:3] == [1.0, hold_ms]
    assert hold_ms in machine.holds[3:]


def run_on(machine, **settings):
    return Run(
        platform=machine,
        settings=CopySettings(**settings).fitted("cuda"),
        peers=(),
        missing={},
        targets=Targets(is_known=True),
    )


@pytest.mark.parametrize(("is_ours", "span_ns", "repeats"), [(True, 10**9, 7), (False, 10**9, 3), (False, 10**7, 7)])
def test_a_slow_peer_is_measured_less_often(monkeypatch, is_ours, span_ns, repeats):
    machine = MadeUpMachine()
    monkeypatch.setattr(MadeUpMachine, "elapsed_ns", lambda *_: span_ns)
    outcome = measure_copier(run_on(machine), MadeUpCopies(machine), ("matmul",), is_wanted=True, is_ours=is_ours)
    assert len(outcome.alone) == len(outcome.submit_us) == len(outcome.submit_cpu_us) == repeats
    assert len(outcome.slowdown("matmul")) == repeats
    assert len(outcome.beside["matmul"].same_percent) == (repeats if is_ours else 0)


def test_rows_that_fail_keep_what_was_wanted_of_them():
    run = run_on(MadeUpMachine())
    row = CopyFigure(name="copy", unit="GB/s", target=54.0, peers={"contiguous": Peer(samples=(55.0,))})

    def fail():
        raise cpkv.CopyError("it broke")

    assert run.figures(fail, [row]) == [replace(row, error="it broke")]
    run.started_s -= run.settings.seconds + 1
    (late,) = run.figures(lambda: [row], [row])
    assert (late.error, late.target, late.is_met) == ("not begun: the run has taken its 240 s", 54.0, False)
    assert [run.is_wanted(pages) for pages in run.pages] == [False, False, True]


def test_every_forward_that_is_known_is_counted():
    run = run_on(MadeUpMachine())
    run.has_led += [True, False, True]
    run.totals["hooked_forwards"] = 5
    led, at_once = measure_counts(run)
    assert (led.samples, led.target, led.is_met) == ((1.0,), 0.0, False)
    assert led.note == (
        "of 3 forwards: 0 of the timeline, by events of the device, and 3 whose hooks were timed, by acks; "
        "the other 2 of the run's 5 compute no layers, or only warm up"
    )
    assert (at_once.samples, at_once.is_met) == ((0.0,), True)


# --- What is said ---


def test_no_path_is_told():
    assert without_paths("no /tmp/some/where/lib.so: /a/b") == "no lib.so: b"
    assert without_paths("53 GB/s to host and/or device") == "53 GB/s to host and/or device"
    assert said(ImportError("/usr/lib/x.so: undefined\nmore")) == "ImportError: x.so: undefined"
    assert said(cpkv.CopyError("it broke")) == "it broke"
    command = ["/usr/bin/cpkv", "bench", "copy", "--json", "/home/a", "--timeline=/home/b", "--pages", "4"]
    assert command_without_files(command) == "cpkv bench copy --json FILE --timeline=FILE --pages 4"


def test_peers_that_are_not_installed_say_so(monkeypatch):
    for name in ("sgl_kernel", "sglang"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
    peers, missing = sglang_peers(None)
    assert peers == []
    assert set(missing) == set(NAMES) == set(SGLANG_PEERS)
    assert all(reason.startswith("not there: ModuleNotFoundError: ") for reason in missing.values())


# --- Settings ---


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"pages": ()}, "pages is empty, want at least one number"),
        ({"pages": (4, 0)}, "pages is 0, want at least 1"),
        ({"layers": 0, "repeats": 0}, "layers is 0, want at least 1; repeats is 0, want at least 1"),
        ({"copy_path": "fast"}, "copy_path is 'fast', want one of auto, batch, blocks, kernel, each"),
        ({"seconds": 0}, "seconds is 0, want more than 0"),
    ],
)
def test_sizes_that_cannot_be_are_refused_at_once(settings, wanted):
    with pytest.raises(cpkv.ConfigError, match=f"^{re.escape(wanted)}$"):
        CopySettings(**settings)


def test_sizes_that_are_left_open_fit_the_engine():
    assert CopySettings().fitted("cuda").pages == (16, 128, 512)
    assert CopySettings().fitted("cuda").layers == 61
    assert CopySettings(pages=(8, 4, 8)).fitted("cpu").pages == (4, 8)
    with pytest.raises(cpkv.ConfigError, match="copy_path is 'batch', which the engine 'cpu' does not have"):
        CopySettings(copy_path="batch").fitted("cpu")
    with pytest.raises(cpkv.ConfigError, match="engine is 'gpu', want one of auto, cuda, cpu"):
        choose_engine("gpu")
    host, device = memory_needed(CopySettings().fitted("cuda"), "cuda", None)
    assert host < 5 * 10**9
    assert device < 8 * 10**9


def test_a_host_pool_is_fragmented_in_as_many_layers_as_there_is_memory_for():
    settings = CopySettings().fitted("cuda").with_requests((Request(np.arange(1), 512),), "a trace")
    for available, layers in ((None, 17), (100 * 2**30, 61), (20 * 2**30, 21)):
        host, device = memory_needed(settings, "cuda", available)
        assert FragmentSizes(512, 61, host, device).layout.layers == layers
    assert FragmentSizes(512, 61, 1).layout.layers == 1
    few_on_device = FragmentSizes(512, 61, 100 * 2**30, 2_048 * (73_728 + 8_448) * 3)
    assert (few_on_device.layout.layers, few_on_device.slots, few_on_device.device_pages) == (3, 6_144, 2_048)


def test_every_measurement_has_a_name_for_the_command_line():
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in COPY_MEASUREMENTS)
