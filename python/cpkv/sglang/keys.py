"""From SGLang's keys and requests to tokens, namespaces and priorities of cpkv."""

from array import array
from typing import TYPE_CHECKING, Final

import numpy as np

from cpkv.types import Int64s, Namespace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang.srt.mem_cache.radix_cache import RadixKey

LEAST_PRIORITY: Final = -(2**31)
MOST_PRIORITY: Final = 2**31 - 1
"""Priorities of cpkv have 32 bits."""


def priority_of(priority: int | None) -> int:
    """Return a priority that cpkv takes. SGLang gives a request that names none the least, or most, of 64 bits."""
    return min(max(priority or 0, LEAST_PRIORITY), MOST_PRIORITY)


def namespace_of(extra_key: str | None, cache_salt: str | None = None) -> Namespace:
    """Return what separates requests: SGLang puts adapters and the like into the key, and salts beside it."""
    if not cache_salt:
        return extra_key
    return {"salt": cache_salt} if extra_key is None else {"salt": cache_salt, "key": extra_key}


def namespace_of_key(key: "RadixKey") -> Namespace:
    """Return the namespace of a key. Versions before 0.5.18 have no salt."""
    return namespace_of(key.extra_key, getattr(key, "cache_salt", None))


def tokens_of(token_ids: "Sequence[int]", end: int | None = None) -> Int64s:
    """Return the first `end` tokens, or all, shape `(n,)`.

    An `array('q')`, which SGLang uses, is not copied: it cannot grow as long as the result lives.
    """
    if isinstance(token_ids, array) and token_ids.typecode == "q":
        return memoryview(token_ids)[:end]
    return np.asarray(token_ids[:end], np.int64)


def tokens_of_key(key: "RadixKey") -> Int64s:
    """Return the raw tokens of a key up to its limit, shape `(n,)`."""
    return tokens_of(key.token_ids, key.limit)
