"""Small caches with tracked copies, and the start of a request."""

import numpy as np

import cpkv


def tracked(key="token", page_size=1, device_pages=16, host_slots=16, **settings):
    return cpkv.CacheManager(
        key=key,
        page_size=page_size,
        device_pages=device_pages,
        host_slots=host_slots,
        segment_pages=1,
        copies="tracked",
        draft=True,
        **settings,
    )


def prompt(cache, pages, first=0, key="token"):
    return np.arange(first, first + pages * cache.page_size + int(key == "pair"))


def start(cache, tokens, key="token"):
    lease = cache.lock(cache.match(tokens))
    pages = cache.allocate((len(tokens) - int(key == "pair")) // cache.page_size - lease.pages)
    return lease, pages
