"""Prompts of two namespaces share nothing, from the match to the host copy."""

import itertools

import numpy as np
import pytest

import cpkv

NAMESPACES = [
    None,
    "a1",
    b"a1",
    "",
    b"",
    {"adapter": "a1"},
    {"salt": "a1"},
    {"user": "a1"},
    {"extra": "a1"},
    {"part:salt": "a1"},
    {"str": "a1"},
    {"bytes": "a1"},
    {"": "salt"},
    {"salt": ""},
    {"salt": "ab", "extra": "c"},
    {"salt": "a", "extra": "bc"},
    {"salt": "abc", "extra": ""},
    {"saltab": "extrac"},
    {"salt": "a1\0"},
    "salta1",
    "part:salt",
    "None",
]
"""Alike, and all different."""
SHAPES = [(key, page_size) for key in ("token", "pair") for page_size in (1, 4, 64)]
PAGES = 3


def make_cache(key, page_size, **settings):
    shared = {"device_pages": 100, "host_slots": 100, "segment_pages": 1}
    return cpkv.CacheManager(key=key, page_size=page_size, **shared | settings)


def prompt(key, page_size):
    return np.arange(PAGES * page_size + int(key == "pair"))


@pytest.mark.parametrize(("key", "page_size"), SHAPES)
def test_nothing_of_one_namespace_is_found_in_another(key, page_size):
    cache, tokens = make_cache(key, page_size), prompt(key, page_size)
    for number, namespace in enumerate(NAMESPACES):
        assert cache.match(tokens, namespace=namespace).pages == 0, namespace
        if number % 2:  # with a lease, which has the namespace of its match, and without one
            with cache.lock(cache.match(tokens, namespace=namespace)) as lease:
                cache.insert(tokens, cache.allocate(PAGES), lease)
        else:
            cache.insert(tokens, cache.allocate(PAGES), namespace=namespace)
        found = [cache.match(tokens, namespace=other).pages for other in NAMESPACES]
        assert found == [PAGES] * (number + 1) + [0] * (len(NAMESPACES) - number - 1)
    assert cache.stats().namespaces == len(NAMESPACES)
    cache.evict(0, 100)
    for namespace in NAMESPACES:
        hit = cache.match(tokens, namespace=namespace)
        assert (hit.device_pages, hit.host_pages) == (0, PAGES), namespace
    slots = []
    for namespace in NAMESPACES:
        with cache.lock(cache.match(tokens, namespace=namespace)) as lease:
            slots += lease.host_slots().tolist()
    assert len(set(slots)) == PAGES * len(NAMESPACES)
    cache.check_integrity()


@pytest.mark.parametrize(("key", "page_size"), SHAPES)
def test_a_backup_serves_the_namespace_of_its_lease(key, page_size):
    cache = make_cache(key, page_size, copies="tracked", host_slots=200, device_pages=200)
    tokens = prompt(key, page_size)
    transactions = []
    for namespace in NAMESPACES:
        with cache.lock(cache.match(tokens, namespace=namespace)) as lease:
            pages = cache.allocate(PAGES)
            (transaction,) = cache.reserve([(tokens, pages, lease)])
            assert (transaction.status, transaction.pages) == ("reserved", PAGES), namespace
            with cache.lock(cache.match(tokens, namespace=namespace)) as other:
                (again,) = cache.reserve([(tokens, cache.allocate(PAGES), other)])
                assert again.status == "nothing", namespace
            transaction.submitted(0, 1)
            cache.forward_end([transaction])
            cache.insert(tokens, pages, lease, transaction)
            transactions.append(transaction.id)
    assert sorted(cache.tick(0, [1]).committed) == sorted(transactions)
    cache.evict(0, 200)
    for namespace in NAMESPACES:
        assert cache.match(tokens, namespace=namespace).host_pages == PAGES, namespace


@pytest.mark.parametrize(("key", "page_size"), SHAPES)
def test_no_page_has_the_name_of_one_of_another_namespace(key, page_size):
    cache, tokens = make_cache(key, page_size), prompt(key, page_size)
    names = [name for namespace in NAMESPACES for name in cache.page_hashes(tokens, namespace=namespace)]
    assert len(set(names)) == PAGES * len(NAMESPACES)


def test_parts_come_in_any_order():
    cache = make_cache("token", 4)
    parts = {"adapter": "a1", "salt": "s", "tenant": "t"}
    tokens = np.arange(12)
    cache.insert(tokens, cache.allocate(3), namespace=parts)
    for order in itertools.permutations(parts):
        assert cache.match(tokens, namespace={name: parts[name] for name in order}).pages == 3
    assert cache.stats().namespaces == 2


def test_what_is_no_namespace_is_refused():
    cache = make_cache("token", 4)
    digest = cache.digest()
    calls = (
        lambda namespace: cache.match(range(8), namespace=namespace),
        lambda namespace: cache.insert(range(8), [], namespace=namespace),
        lambda namespace: cache.page_hashes(range(8), namespace=namespace),
    )
    for call in calls:
        for wrong in (7, ["x"], ("salt", "x"), {"salt": 7}, {7: "salt"}, {"salt": None}):
            with pytest.raises(cpkv.InputTypeError, match="namespace"):
                call(wrong)
        for wrong in ({}, "\ud800", {"salt": "\ud800"}, {"\ud800": "x"}):
            with pytest.raises(cpkv.InputError, match="namespace"):
                call(wrong)
    assert cache.digest() == digest
