"""Ranks, as threads, that agree on the sizes of their caches by a minimum over all of them."""

import threading
from array import array

import numpy as np
import pytest

import cpkv
from cpkv.config import sizes
from cpkv.config.checks import KINDS

SETTINGS = {
    "device_pages": 64, "page_size": 4, "lanes": 2, "host_slots": 96, "segment_pages": 8, "copies": "tracked",
}  # fmt: skip
"""Each size is a multiple of the lanes."""


class Minimum:
    """A reduction over threads: each brings its numbers and takes the least of all of them."""

    def __init__(self, ranks, *, is_begun_only):
        self.numbers, self.is_begun_only, self.calls = [None] * ranks, is_begun_only, [0] * ranks
        self.meeting = threading.Barrier(ranks, timeout=20)

    def of(self, rank):
        def wait():
            self.meeting.wait()
            return np.min(self.numbers, axis=0)

        def reduce(numbers):
            self.calls[rank] += 1
            self.numbers[rank] = np.array(numbers)
            assert self.numbers[rank].dtype == np.int64
            return wait if self.is_begun_only else wait()

        return reduce


def agree(configs, *, is_begun_only=False):
    """What each rank comes to: a config, or the error that it is refused with."""
    minimum, outcomes = Minimum(len(configs), is_begun_only=is_begun_only), [None] * len(configs)

    def rank(place):
        try:
            outcomes[place] = configs[place].agreed(minimum.of(place))
        except cpkv.CpkvError as error:
            outcomes[place] = error

    threads = [threading.Thread(target=rank, args=[place]) for place in range(len(configs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert minimum.calls == [1] * len(configs)
    return outcomes


def serve(cache):
    """The same on every rank, with pages that go for want of room."""
    for step in range(40):
        tokens = [token + step * 7 for token in range(33)]
        with cache.lock(cache.match(tokens)) as lease:
            lanes = [page % 2 for page in range(lease.pages, 8)]
            assert cache.evict_for(lanes=lanes) is not None
            cache.free(cache.insert(tokens, cache.allocate(lanes=lanes), lease).duplicates)
        for late in cache.tick(step, [step]).started:
            late.submitted(0, step + 1)
            late.submitted_all()
    stats = cache.stats()
    assert min(stats.device_evicted_pages, stats.mirror_dropped_pages) > 0, "both tiers were full"
    return cache.digest()


@pytest.mark.parametrize("is_begun_only", [False, True])
def test_the_least_of_each_size_counts_and_the_caches_are_alike(caplog, is_begun_only):
    measured = [(64, 112), (60, 96), (70, 128), (60, 120)]
    configs = [cpkv.CacheConfig(**SETTINGS | {"device_pages": pages, "host_slots": slots}) for pages, slots in measured]
    agreed = agree(configs, is_begun_only=is_begun_only)
    assert agreed == [configs[0].replace(device_pages=60, host_slots=96)] * 4
    caches = [config.create(own_lane=rank % 2) for rank, config in enumerate(agreed)]
    assert len({cache.fingerprint for cache in caches}) == 1
    assert len({config.create().fingerprint for config in configs}) == 4
    assert len({serve(cache) for cache in caches}) == 1
    assert sorted(record.getMessage() for record in caplog.records) == [
        "device_pages is 60 instead of 64: another rank has no more",
        "device_pages is 60 instead of 70: another rank has no more",
        "host_slots is 96 instead of 112: another rank has no more",
        "host_slots is 96 instead of 120: another rank has no more",
        "host_slots is 96 instead of 128: another rank has no more",
    ]
    assert {(record.name, record.levelname) for record in caplog.records} == {("cpkv.config", "WARNING")}


def test_ranks_without_a_host_tier_or_a_size_agree_as_well(caplog):
    for settings in ({"device_pages": 8}, {}):
        configs = [cpkv.CacheConfig(**settings)] * 2
        assert agree(configs) == configs
    assert caplog.records == []


OTHERS = {
    "page_size": 8,
    "key": "pair",
    "lanes": 4,
    "device_pool": "external",
    "segment_pages": 4,
    "policy": "lfu",
    "copies": "assumed",
    "draft": True,
    "copy_deadline_s": 299.0,
    "events": True,
    "write": "selective",
    "write_uses": 3,
    "clean_pages": 1,
    "engine": "cpu",
    "log_warning_s": 4.0,
    "log_deadline_s": 299.0,
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("odd", [0, 2])
def test_each_other_setting_has_to_be_alike(name, odd):
    assert OTHERS.keys() == KINDS.keys() - {"device_pages", "host_slots"}
    configs = [cpkv.CacheConfig(**SETTINGS | {"device_pages": 60 + 4 * rank}) for rank in range(3)]
    configs[odd] = configs[odd].replace(**{name: OTHERS[name]})
    for config, error in zip(configs, agree(configs), strict=True):
        assert isinstance(error, cpkv.ConfigError)
        value = getattr(config, name)
        seen = f'"{value}"' if isinstance(value, str) else str(value).lower()
        assert str(error) == f"{name} is {seen} on this rank and differs on another, want it alike on all"


def test_everything_that_differs_is_told_to_everybody():
    configs = [
        cpkv.CacheConfig(device_pages=8, policy="lfu", host_slots=32),
        cpkv.CacheConfig(device_pages=8, policy="lru", events=True),
        cpkv.CacheConfig(policy="lru", host_slots=32),
    ]
    told = [str(error).split("; ") for error in agree(configs)]
    assert [[one.split()[0] for one in each] for each in told] == [
        ["device_pages", "host_slots", "policy", "events"]
    ] * 3
    words = "on this rank and differs on another, want it alike on all"
    assert told[1][:2] == [f"device_pages is given {words}", f"host_slots is none {words}"]


def test_ranks_of_another_version_are_told_apart(monkeypatch):
    config, numbers = cpkv.CacheConfig(device_pages=8), []
    config.agreed(lambda own: numbers.append(np.array(own)) or own)
    monkeypatch.setattr(sizes, "__version__", "0.0.1")
    with pytest.raises(cpkv.ConfigError, match=r"cpkv is 0\.0\.1 on this rank and another version on another"):
        config.agreed(lambda own: np.minimum(own, numbers[0]))


@pytest.mark.parametrize(
    ("reduce", "error", "message"),
    [
        (lambda own: own[:-1], cpkv.LogError, "not the minimum of the 128 numbers of each rank"),
        (lambda own: array("q", [*own[:-1], 1]), cpkv.LogError, "not the minimum of the 128 numbers"),
        (lambda _own: None, cpkv.InputTypeError, "reduced sizes: got NoneType, want 128 integers"),
        (lambda _own: lambda: "no" * 64, cpkv.InputTypeError, "reduced sizes: got str, want 128 integers"),
    ],
)
def test_what_is_no_minimum_is_refused(reduce, error, message):
    with pytest.raises(error, match=message):
        cpkv.CacheConfig(device_pages=8).agreed(reduce)


def test_the_reduction_is_that_of_the_ticks():
    """What serves `attach_reduction` serves here."""

    def reduce(votes):
        return np.minimum(votes, votes)

    cache = cpkv.CacheConfig(device_pages=8).agreed(reduce).create()
    cache.attach_reduction(reduce)
    cache.tick(0)
