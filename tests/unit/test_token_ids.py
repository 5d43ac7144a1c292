"""Token ids are 64 bits wide in whatever form they come, and with pair keys a page has one more of them."""

import array

import numpy as np
import pytest

import cpkv

FORMS = {
    "list": list,
    "tuple": tuple,
    "array": lambda tokens: array.array("q", tokens),
    "numpy": lambda tokens: np.array(tokens, dtype=np.int64),
    "slice": lambda tokens: np.array([7, *tokens, 8], dtype=np.int64)[1:-1],
    "read-only": lambda tokens: memoryview(np.array(tokens, dtype=np.int64)).toreadonly(),
}
EDGES = [0, 1, -1, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**62, 2**63 - 1, -(2**63)]


def make_cache(key, page_size):
    return cpkv.CacheManager(page_size=page_size, key=key, device_pages=200, host_slots=200, segment_pages=1)


def serve(cache, tokens, pages):
    with cache.lock(cache.match(tokens)) as lease:
        cache.insert(tokens, cache.allocate(pages - lease.device_pages), lease)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("page_size", [1, 4, 64])
@pytest.mark.parametrize("key", ["token", "pair"])
def test_pages_of_any_length_in_any_form(key, page_size, form):
    convert, extra = FORMS[form], int(key == "pair")
    tokens = [2**40 + token for token in range(3 * page_size + 2)]
    for length in range(len(tokens) + 1):
        cache = make_cache(key, page_size)
        prompt, pages = convert(tokens[:length]), max(0, length - extra) // page_size
        assert len(cache.page_hashes(prompt)) == pages
        serve(cache, prompt, pages)
        assert cache.match(prompt).pages == pages, length
        assert cache.match(np.array(tokens)).pages == pages
        # A scheduler leaves one token to be computed.
        limit = max(0, length - 1)
        assert cache.match(prompt, limit=limit).pages == min(pages, limit // page_size)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("page_size", [1, 4, 64])
@pytest.mark.parametrize("key", ["token", "pair"])
def test_ids_at_the_edges_of_narrower_types_stay_apart(key, page_size, form):
    convert, extra = FORMS[form], int(key == "pair")
    # In the first page, at the end of one, and where only the pair in front of it knows.
    for place in sorted({0, page_size - 1, page_size, 2 * page_size - 1 + extra}):
        cache = make_cache(key, page_size)
        prompts = []
        for edge in EDGES:
            tokens = list(range(100, 100 + 2 * page_size + extra))
            tokens[place] = edge
            prompts.append(convert(tokens))
        shared = max(0, place - extra) // page_size
        for number, prompt in enumerate(prompts):
            assert cache.match(prompt).pages == (shared if number else 0), (place, EDGES[number])
            serve(cache, prompt, 2)
        for prompt in prompts:
            assert cache.match(prompt).pages == 2
        names = {tuple(cache.page_hashes(prompt)) for prompt in prompts}
        assert len(names) == len(EDGES)
        assert cache.stats().device_cached_pages == shared + len(EDGES) * (2 - shared)
        cache.check_integrity()
