"""The cache manager as Python sees it. What it decides is tested in the core."""

import array
import threading
import weakref

import numpy as np
import pytest

import cpkv


def make_cache(**settings):
    return cpkv.CacheManager(**{"page_size": 4, "device_pages": 16} | settings)


def serve(cache, token_ids, **options):
    """A whole request; returns its hit."""
    hit = cache.match(token_ids, **options)
    with cache.lock(hit) as lease:
        pages = cache.allocate(len(token_ids) // cache.page_size - lease.device_pages)
        cache.insert(token_ids, pages, lease)
    return hit


# --- Arguments ---

TOKENS = list(range(12))


@pytest.mark.parametrize(
    "convert",
    [
        list,
        tuple,
        lambda tokens: array.array("q", tokens),
        lambda tokens: array.array("l", tokens),
        lambda tokens: np.array(tokens, dtype=np.int64),
        lambda tokens: memoryview(array.array("q", tokens)),
        lambda tokens: np.array(tokens * 2, dtype=np.int64)[: len(tokens)],
        lambda tokens: range(len(tokens)),
    ],
    ids=["list", "tuple", "array q", "array l", "numpy", "memoryview", "numpy slice", "range"],
)
def test_tokens_come_in_any_int64_buffer_or_list(convert):
    cache = make_cache()
    assert serve(cache, convert(TOKENS)).pages == 0
    assert serve(cache, convert(TOKENS)).pages == 3
    assert serve(cache, convert([])).pages == 0


def test_no_export_outlives_the_call():
    cache = make_cache()
    tokens = array.array("q", TOKENS)
    hit = cache.match(tokens)
    tokens.append(12)  # refused while exported
    lease = cache.lock(hit)
    tokens.extend([13, 14, 15])
    cache.insert(tokens, cache.allocate(4), lease)
    tokens.append(16)
    lease.release()
    assert cache.match(tokens).pages == 4


@pytest.mark.parametrize(
    ("tokens", "seen"),
    [
        (np.zeros(4, dtype=np.int32), "format 'i'"),
        (np.zeros(4, dtype=np.float64), "format 'd'"),
        (np.zeros(4, dtype=np.uint64), "format 'L'"),
        (np.zeros(0, dtype=np.int32), "format 'i'"),
        (np.zeros(4, dtype=">i8"), "format '>q'"),
        (np.zeros((2, 4), dtype=np.int64), "2 dimensions"),
        (np.zeros(8, dtype=np.int64)[::2], "strided"),
        (np.frombuffer(bytes(17), dtype=np.int64, count=2, offset=1), "unaligned"),
        (b"abcdefgh", "format 'B'"),
        ("text", "str"),
        (7, "int"),
        (None, "NoneType"),
        ([1, "two"], "str"),
        ([1.5], "float"),
        ({1, 2}, "set"),
    ],
)
def test_tokens_of_another_type_are_refused(tokens, seen):
    cache = make_cache()
    before = cache.digest()
    with pytest.raises(cpkv.InputTypeError, match=seen) as refused:
        cache.match(tokens)
    assert "token_ids" in str(refused.value)
    assert isinstance(refused.value, TypeError)
    assert cache.digest() == before


def test_tokens_of_a_list_have_64_bits():
    with pytest.raises(cpkv.InputError, match="64 bits"):
        make_cache().match([2**63])
    cache = make_cache(page_size=1)
    serve(cache, [2**63 - 1, -(2**63), -1])
    assert cache.match([2**63 - 1, -(2**63), -1]).pages == 3
    assert cache.match([2**63 - 1, -(2**63), 2**32 - 1]).pages == 2


def test_limits_and_counts():
    cache = make_cache()
    serve(cache, TOKENS)
    hit = cache.match(TOKENS, limit=11)
    assert (hit.pages, hit.tokens, hit.device_pages, hit.host_pages) == (2, 8, 2, 0)
    assert cache.match(TOKENS, limit=0).pages == 0
    lease = cache.lock(hit)
    for call in (
        lambda: cache.match(TOKENS, limit=-1),
        lambda: cache.match(TOKENS, limit=-(10**30)),
        lambda: cache.lock(hit, priority=2**31),
        lambda: lease.page_ids(-1),
        lambda: cache.allocate(-1),
        lambda: cache.allocate(2**32),
        lambda: cache.allocate(2**70),
        lambda: cache.allocate(first_lane=0, lanes=[0]),
        lambda: cache.allocate(1, first_lane=1),
        lambda: cache.allocate(1, first_lane=-1),
        lambda: cache.allocate(lanes=[0, 1]),
        lambda: cache.allocate(lanes=[0, -1]),
        lambda: cache.allocate(lanes=[0, 2**40]),
        cache.allocate,
        lambda: cache.allocate(1, lanes=[0]),
        lambda: cache.evict(1, 1),
        lambda: cache.evict(0, -1),
        lambda: cache.evict_for(1, first_lane=7),
        lambda: cache.free_pages(1),
        lambda: cache.evictable_pages(-1),
    ):
        before = cache.digest()
        with pytest.raises(cpkv.InputError):
            call()
        assert cache.digest() == before
    lease.release()
    assert cache.match(TOKENS, limit=10**30).pages == 3
    assert cache.allocate(14) is None
    assert cache.allocate(2**32 - 1) is None
    assert cache.evict_for(17) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"device_pages": 0}, "device_pages is 0"),
        ({"device_pages": -5}, "device_pages is -5"),
        ({"device_pages": 2**32}, "device_pages is 4294967296"),
        ({"device_pages": 2**80}, "device_pages is 1208925819614629174706176, want 1 to"),
        ({"page_size": 0}, "page_size is 0"),
        ({"lanes": 0}, "lanes is 0"),
        ({"lanes": 2**32 - 2}, "lanes is 4294967294, want 1 to 1024"),
        ({"lanes": 3}, "device_pages is 16, want a multiple of lanes, which is 3"),
        ({"host_slots": 0}, "host_slots is 0"),
        ({"host_slots": 16}, "segment_pages is 32, want at most 16, the host_slots of a lane"),
        ({"key": "bigram"}, "key is 'bigram', want one of token, pair"),
        ({"policy": "random"}, "policy is 'random', want one of lru, lfu"),
        ({"device_pool": "mine"}, "device_pool is 'mine', want one of owned, external"),
        ({"lanes": 3, "host_slots": 16}, "which is 3; host_slots is 16, want a multiple"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(cpkv.ConfigError, match=message) as refused:
        make_cache(**settings)
    assert isinstance(refused.value, ValueError)


def test_every_conflict_is_told():
    wrong = {"key": "x", "policy": "y", "device_pool": "z", "page_size": 0, "lanes": 0, "host_slots": -1}
    with pytest.raises(cpkv.ConfigError) as refused:
        make_cache(**wrong)
    assert len(str(refused.value).split("; ")) == len(wrong)


def test_host_slots_are_whole_segments():
    assert make_cache(host_slots=100).host_slots == 96
    assert make_cache(host_slots=100, segment_pages=1).host_slots == 100
    assert make_cache().host_slots == 0


# --- Leases ---


def test_a_lease_is_released_once():
    cache = make_cache()
    serve(cache, TOKENS)
    lease = cache.lock(cache.match(TOKENS))
    assert (lease.pages, lease.tokens, lease.device_pages, lease.host_pages, lease.released) == (3, 12, 3, 0, False)
    assert cache.evictable_pages() == 0
    lease.release()
    assert lease.released
    assert cache.evictable_pages() == 3
    assert repr(lease) == "Lease(2, released)"
    before = cache.digest()
    for call in (
        lease.release,
        lease.page_ids,
        lease.host_slots,
        lambda: lease.pages,
        lease.__enter__,
        lambda: cache.insert(TOKENS, [], lease),
        lambda: cache.restore(lease, []),
    ):
        with pytest.raises(cpkv.LeaseError, match="released"):
            call()
    assert cache.digest() == before


def test_a_lease_is_a_context_manager():
    cache = make_cache()
    with cache.lock(cache.match(TOKENS)) as lease:
        cache.insert(TOKENS, cache.allocate(3), lease)
    assert lease.released
    with pytest.raises(KeyError), cache.lock(cache.match(TOKENS)) as lease:
        raise KeyError
    assert lease.released
    with cache.lock(cache.match(TOKENS)) as lease:
        lease.release()
    assert cache.evictable_pages() == 3


def test_a_forgotten_lease_is_released_and_warned_about():
    cache = make_cache()
    serve(cache, TOKENS)
    lease = cache.lock(cache.match(TOKENS))
    with pytest.warns(ResourceWarning, match="a lease of 3 pages was dropped without release"):
        del lease
    cache.tick(0)
    assert cache.evictable_pages() == 3


def test_a_forgotten_lease_does_not_swallow_an_exception():
    cache = make_cache()
    with pytest.warns(ResourceWarning), pytest.raises(ZeroDivisionError):
        # The lease dies while the exception is on its way.
        (cache.lock(cache.match(TOKENS)), 1 // 0)


def test_leases_and_hits_belong_to_their_cache():
    cache, other = make_cache(), make_cache()
    hit = cache.match(TOKENS)
    with pytest.raises(cpkv.LeaseError, match="another cache"):
        other.lock(hit)
    with cache.lock(hit) as lease:
        for call in (lambda: other.insert(TOKENS, [0, 1, 2], lease), lambda: other.restore(lease, [])):
            with pytest.raises(cpkv.LeaseError, match="another cache"):
                call()
        with pytest.raises(cpkv.InputError, match="namespace"):
            cache.insert(TOKENS, cache.allocate(3), lease, namespace="x")


def test_a_lock_holds_what_is_left_of_a_hit():
    cache = make_cache()
    tokens = np.array(TOKENS)
    serve(cache, tokens)
    hit = cache.match(tokens)
    assert cache.evict(0, 2).tolist() == [1, 2]
    with cache.lock(hit) as lease:
        assert lease.pages == 1
    cache.evict(0, 1)
    with cache.lock(hit) as lease:
        assert lease.pages == 0


def test_a_pin_holds_and_is_no_use():
    cache = make_cache()
    serve(cache, TOKENS)
    hit = cache.match(TOKENS)
    with cache.pin(hit, priority=3) as lease:
        assert (lease.pages, lease.page_ids().tolist()) == (3, [0, 1, 2])
        assert cache.evict(0, 3).tolist() == []
    assert (cache.stats().leases, cache.stats().device_hit_pages) == (2, 0), "serve took the first"
    with cache.lock(hit):
        assert cache.stats().device_hit_pages == 3


def test_pages_of_a_hit_are_those_that_are_left():
    cache = make_cache()
    serve(cache, TOKENS)
    hit = cache.match(TOKENS, limit=8)
    assert cache.pages_of(hit).tolist() == [0, 1]
    cache.evict(0, 2)
    assert cache.pages_of(hit).tolist() == [0]
    assert cache.pages_of(cache.match([])).tolist() == []
    other = make_cache()
    for call in (other.pin, other.pages_of):
        with pytest.raises(cpkv.LeaseError, match="another cache"):
            call(hit)
    with pytest.raises(cpkv.InputTypeError, match="hit"):
        cache.pages_of(None)
    with pytest.raises(cpkv.InputError, match="priority"):
        cache.pin(hit, priority=2**31)


def test_a_hit_does_not_hold_on_to_its_tokens():
    cache = make_cache()
    tokens = np.array(TOKENS)
    alive = weakref.ref(tokens)
    hit = cache.match(tokens)
    del tokens
    assert alive() is None
    cache.lock(hit).release()


def test_a_lock_is_for_what_was_matched():
    """An engine may use one buffer for all prompts: what is in it by now is somebody else's."""
    cache = make_cache(device_pages=100)
    mine, other = list(range(12)), list(range(100, 112))
    serve(cache, mine)
    serve(cache, other)
    buffer = array.array("q", mine)
    hit = cache.match(buffer)
    cache.evict(0, 1)
    buffer[:] = array.array("q", other)
    with cache.lock(hit) as lease:
        pages = lease.page_ids().tolist()
    with cache.lock(cache.match(mine)) as lease:
        assert pages == lease.page_ids().tolist()
        assert len(pages) == 2


# --- Insert and restore ---


def test_duplicates_stay_with_their_request():
    cache = make_cache()
    first, second = cache.lock(cache.match(TOKENS)), cache.lock(cache.match(TOKENS))
    pages = cache.allocate(3)
    inserted = cache.insert(TOKENS, pages, first)
    assert (inserted.new_pages, len(inserted.duplicates)) == (3, 0)
    mine = cache.allocate(3)
    inserted = cache.insert(TOKENS, mine, second)
    assert (inserted.new_pages, inserted.duplicates) == (0, mine)
    assert second.page_ids() == pages
    assert second.page_ids(first_page=2) == pages[2:]
    assert len(second.page_ids(first_page=9)) == 0
    cache.free(inserted.duplicates)
    first.release()
    second.release()
    cache.check_integrity()


def test_refused_pages():
    cache = make_cache()
    pages = cache.allocate(3)
    with cache.lock(cache.match(TOKENS)) as lease:
        before = cache.digest()
        for given, message in (
            ([pages[0], pages[0], pages[1]], "given twice"),
            ([pages[0], pages[1], 16], "out of range, want 0 to 15"),
            ([pages[0], pages[1], -1], "out of range"),
            ([pages[0], pages[1], 9], "free: allocate it first"),
        ):
            with pytest.raises(cpkv.PageError, match=message):
                cache.insert(TOKENS, given, lease)
        with pytest.raises(cpkv.InputError, match="got 2 page ids, want 3"):
            cache.insert(TOKENS, pages[:2], lease)
        with pytest.raises(cpkv.InputTypeError, match="device_pages"):
            cache.insert(TOKENS, np.zeros(3), lease)
        assert cache.digest() == before
        cache.insert(TOKENS, pages, lease)
        with pytest.raises(cpkv.LeaseError, match="page 2 is another one"):
            cache.insert([*TOKENS[:-1], 99], [], lease)
    with pytest.raises(cpkv.PageError, match="already holds a page"):
        cache.free(pages)


def test_restore_from_the_host():
    cache = make_cache(host_slots=8, segment_pages=8)
    serve(cache, TOKENS)
    assert cache.evict(0, 2) == cpkv.CacheManager(device_pages=3).allocate(3)[1:]
    hit = cache.match(TOKENS)
    assert (hit.device_pages, hit.host_pages) == (1, 2)
    assert repr(hit) == "Hit(device_pages=1, host_pages=2)"
    with cache.lock(hit) as lease:
        assert lease.host_slots().tolist() == [1, 2]
        pages = cache.allocate(2)
        assert len(cache.restore(lease, pages).duplicates) == 0
        assert (lease.device_pages, lease.host_pages) == (3, 0)
        assert lease.page_ids(1) == pages
        assert cache.insert(TOKENS, [], lease).new_pages == 0
    assert cache.stats().restored_pages == 2


def test_an_external_pool():
    cache = make_cache(device_pool="external", device_pages=1_000)
    cache.insert(TOKENS, [7, 900, 3], namespace="mine")
    assert cache.match(TOKENS, namespace="mine").pages == 3
    assert cache.evict(0, 2).tolist() == [900, 3]
    assert cache.free([1]).tolist() == [1], "the engine's to free"
    for call in (lambda: cache.allocate(1), lambda: cache.evict_for(1)):
        with pytest.raises(cpkv.UsageError, match="the engine"):
            call()


# --- Figures ---


def test_stats_are_complete():
    cache = make_cache(host_slots=32)
    serve(cache, TOKENS)
    stats = cache.stats()
    figures = stats.as_dict()
    assert figures == {name: getattr(stats, name) for name in figures}
    names = {name for name in dir(stats) if not name.startswith("_")} - {"as_dict"}
    assert names == set(figures)
    assert figures["device_cached_pages"] == figures["host_mirror_slots"] == 3
    assert figures["host_run_pages"] == 3.0
    assert "inserted_pages" in repr(stats)
    assert repr(cache) == "CacheManager(page_size=4, device_pages=3/16, host_slots=3/32)"


def test_match_changes_nothing_and_replicas_agree():
    caches = [make_cache(host_slots=32, key="pair") for _ in range(2)]
    prompts = [np.arange(start, start + 15) for start in (0, 4, 0, 100)]
    for prompt in prompts:
        digests = set()
        for cache in caches:
            before = cache.digest()
            hit = cache.match(prompt)
            assert cache.digest() == before
            with cache.lock(hit) as lease:
                missing = 3 - lease.device_pages
                cache.evict_for(missing)
                cache.insert(prompt, cache.allocate(missing), lease)
            digests.add(cache.digest())
        assert len(digests) == 1


def test_threads_take_turns():
    """Long calls run without the interpreter; short ones wait for them with it held."""
    cache = cpkv.CacheManager(page_size=64, device_pages=40_000)
    failures = []

    def work(number):
        try:
            for turn in range(10):
                tokens = np.arange(64 * 1_000) + number * 10_000_000 + turn * 100_000
                short = tokens[:640]
                with cache.lock(cache.match(tokens)) as lease:
                    cache.evict_for(1_000)
                    pages = cache.allocate(1_000)
                    if pages is None:
                        continue
                    cache.insert(tokens, pages, lease)
                    assert cache.match(short).pages == 10
                    cache.stats()
        except Exception as failure:  # noqa: BLE001 - reported below
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    cache.check_integrity()
    assert cache.evictable_pages() + cache.free_pages() == 40_000
