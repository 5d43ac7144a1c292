"""The parts of the gather benchmark that have a formula."""

from dataclasses import replace

import pytest

import cpkv
from cpkv.bench.gather import TARGET_US, GatherCase, GatherSettings, figures_of
from cpkv.cli.copy_figures import copy_table
from cpkv.cp import narrow_bytes

SETTINGS = GatherSettings(hidden=16, tokens=64, batches=(2,), splits=("zigzag",), repeats=2)
CUDA, CPU = SETTINGS.fitted("cuda"), SETTINGS.fitted("cpu")


def report_of(*, narrow, full, sent=64, digests=("a", "b"), own=None, readings=("clock", "events", "queued")):
    case = {
        "microseconds": {"narrow": dict.fromkeys(readings, narrow), "full": dict.fromkeys(readings, full)},
        "sent_bytes": {"narrow": sent, "full": 2_048},
        "digests": {"narrow": list(digests), "full": ["a", "b"]},
        "own": own or {},
    }
    return {"about": {}, "cases": [case]}


def rows_of(settings, batch=2, **second):
    settings = replace(settings, batches=(batch,))
    first = report_of(narrow=[60.0, 90.0], full=[500.0, 600.0], own={"0": "a", "1": "b"})
    figures = figures_of(settings, [first, report_of(narrow=[70.0, 50.0], full=[550.0, 550.0], **second)])
    return {figure.name: figure for figure in figures}


def test_the_slowest_rank_counts_in_each_repeat():
    clock = rows_of(CUDA, 1)["zigzag, batch 1, by the thread's clock"]
    assert (clock.samples, clock.median, clock.is_met) == ((70.0, 90.0), 80.0, False)
    assert clock.peers["full gather"].samples == (550.0, 600.0)


def test_where_time_is_wanted_it_is_told_which_rank_was_slow():
    notes = {name.split(", ", 2)[2]: figure.note for name, figure in rows_of(CUDA, 1).items()}
    told = "medians of each rank alone: rank 0 75.0, rank 1 60.0"
    assert notes == {
        "by the thread's clock": told, "by events": told, "by events, queued ahead": "",
        "sent by all ranks": "", "last tokens that differ": "",
    }  # fmt: skip
    assert not any(figure.note for figure in (*rows_of(CUDA).values(), *rows_of(CPU, 1).values()))


@pytest.mark.parametrize(("batch", "target"), [(1, TARGET_US), (2, None)])
def test_the_target_is_for_one_request_on_gpus_and_for_what_is_launched(batch, target):
    targets = {name.split(", ", 2)[2]: figure.target for name, figure in rows_of(CUDA, batch).items()}
    assert targets == {
        "by the thread's clock": target, "by events": target, "by events, queued ahead": None,
        "sent by all ranks": 2 * batch * 16 * 2, "last tokens that differ": 0,
    }  # fmt: skip
    assert rows_of(CPU, 1)["zigzag, batch 1, by the thread's clock"].is_met is None


@pytest.mark.parametrize(("sent", "is_met"), [(64, True), (63, False), (65, False)])
def test_bytes_are_what_was_wanted_or_the_row_says_no(sent, is_met):
    figure = rows_of(CUDA, sent=sent)["zigzag, batch 2, sent by all ranks"]
    assert (figure.median, figure.is_met) == (64 + sent, is_met)
    assert figure.peers["full gather"].samples == (4_096,)
    line = next(line for line in copy_table("", [figure]).splitlines() if "sent" in line)
    assert line.split()[-5:] == [f"{64 + sent}.0", "=", "128.0", "yes" if is_met else "no", "4,096"]


@pytest.mark.parametrize(
    ("second", "differing"),
    [({}, 0), ({"digests": ("a", "c")}, 1), ({"digests": ("x", "y")}, 2), ({"own": {"1": "z"}}, 1)],
)
def test_a_row_that_differs_anywhere_is_counted_once(second, differing):
    figure = rows_of(CUDA, **second)["zigzag, batch 2, last tokens that differ"]
    assert (figure.median, figure.is_met) == (differing, differing == 0)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("batch", [1, 2, 7, 8])
@pytest.mark.parametrize("mode", ["zigzag", "interleave"])
def test_a_batch_has_all_tokens_and_last_ones_on_several_ranks_if_interleaved(mode, batch, ranks):
    split = GatherCase(mode, batch).split(ranks, 2 * batch)
    assert (split.mode, split.cp_size, len(split.batch), split.tokens) == (mode, ranks, batch, 2 * batch * ranks)
    if (mode, ranks, batch) == ("interleave", 2, 8):
        assert set(split.last_ranks.tolist()) == {0, 1}
    assert narrow_bytes(split, 16, 2) == ranks * batch * 16 * 2


def test_a_batch_of_one_has_no_padding():
    for mode in ("zigzag", "interleave"):
        assert GatherCase(mode, 1).split(2, 8_192).padded_tokens == 8_192


def test_sizes_fit_the_device_unless_they_are_given():
    assert (CUDA.device, CUDA.tokens, CUDA.hidden, CUDA.repeats) == ("cuda", 64, 16, 2)
    fitted = GatherSettings().fitted("cuda")
    assert (fitted.tokens, fitted.hidden, fitted.repeats) == (8_192, 7_168, 200)
    assert [str(case) for case in fitted.cases] == [
        "zigzag, batch 1", "zigzag, batch 8", "interleave, batch 1", "interleave, batch 8",
    ]  # fmt: skip


def test_all_conflicts_are_told_at_once():
    with pytest.raises(cpkv.ConfigError) as told:
        GatherSettings(device="tpu", ranks=1, tokens=3, hidden=0, batches=(2, 0), splits=("blocks",), repeats=0)
    assert str(told.value) == (
        "device is 'tpu', want one of auto, cuda, cpu; ranks is 1, want 2 to 64; "
        "tokens is 3, want at least 4, 2 for each request; hidden is 0, want at least 1; "
        "batch is 0, want at least 1; splits are blocks, want some of zigzag, interleave; repeats is 0, want at least 1"
    )
    with pytest.raises(cpkv.ConfigError, match="tokens is 256, want at least 2000"):
        GatherSettings(batches=(1_000,)).fitted("cpu")
