"""Run SGLang's own unit tests of its radix cache with cpkv in the place of that cache.

The tests are read where they lie, in a checkout of SGLang, with SGLang as it is there; nothing is copied. What their
fixtures build is replaced if it is a cache of plain attention (no sliding window, no recurrent state): by cpkv's
adapter for the checkout's generation, plus `insert`, which the tests call and the scheduler does not. Pages of more
than one token come from SGLang's paged allocator, as in an engine: the fixtures take tokens one by one.

    python tools/sglang_own_tests.py CHECKOUT [--theirs] [arguments of pytest]

With `--theirs` nothing is replaced, which shows what passes on this machine anyway.
"""

# ruff: noqa: PLC0415 - SGLang is that of the checkout, whose folder has to be known first

import argparse
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

FOLDER = "test/registered/unit/mem_cache"
FILES = ("test_radix_cache_unit.py", "test_unified_radix_cache_unittest.py")
SIMULATED_TOKENS = 100_000
"""Of the pool, where a test has none."""


def replace_caches() -> None:  # noqa: C901 - a cache, and what builds it
    """Let the fixtures of SGLang's tests build caches of cpkv."""
    import torch
    from sglang.srt.mem_cache import allocator as allocators
    from sglang.srt.mem_cache import radix_cache, unified_radix_cache
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.base_prefix_cache import InsertResult
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.components.tree_component import ComponentType

    from cpkv.sglang.adapters import CacheReqCache
    from cpkv.sglang.keys import namespace_of_key, tokens_of_key
    from cpkv.sglang.opening import new_manager
    from cpkv.sglang.prefix import Prefix

    class Tested(CacheReqCache):  # type: ignore[misc]
        """cpkv's cache, and what tests ask of a cache besides."""

        def insert(self, params: Any) -> Any:  # noqa: ANN401 - SGLang's
            """Insert tokens with the rows that they are in, and give rows back that the cache had already."""
            key, size = params.key, self.page_size
            tokens, namespace = tokens_of_key(key), namespace_of_key(key)
            rows = torch.tensor(key.token_ids) if params.value is None else params.value
            lease = self.manager.lock(self.manager.match(tokens, namespace=namespace), priority=params.priority or 0)
            found = lease.device_pages
            whole = rows[: len(rows) // size * size]
            inserted = self.manager.insert(tokens, self._pages.of(whole)[found:], lease)
            kept = params.prev_prefix_len
            if kept < found * size:
                self.token_to_kv_pool_allocator.free_segment(rows[kept : found * size], start_pos=kept)
            if len(inserted.duplicates):
                self._free(inserted.duplicates)
            lease.release()
            hit = self.manager.match(tokens, namespace=namespace)
            return InsertResult(prefix_len=found * size, last_device_node=Prefix(self.manager, hit, namespace))

        def root_node_handle(self, extra_key: str | None = None) -> Prefix:
            """Return a prefix of nothing that is locked, as SGLang's root always is."""
            root = super().root_node_handle(extra_key)
            root.lock()
            return root

        def sanity_check(self) -> None:
            """Let the core recount everything."""
            self.manager.check_integrity()

    Prefix.id = property(lambda prefix: prefix)
    token_allocator = allocators.TokenToKVPoolAllocator

    def allocator(size: int, dtype: Any, device: Any, kvcache: Any, need_sort: bool) -> Any:  # noqa: ANN401, FBT001
        page_size = getattr(kvcache, "page_size", 1)
        if page_size == 1:
            return token_allocator(size, dtype, device, kvcache, need_sort)
        return PagedTokenToKVPoolAllocator(size, page_size, dtype, device, kvcache, need_sort)

    def make(params: Any) -> Tested:  # noqa: ANN401 - SGLang's
        return Tested(params, new_manager(params), None)

    def simulated(
        disable: bool = False,  # noqa: FBT001, FBT002 - SGLang's
        mock_allocator: Any = None,  # noqa: ANN401 - SGLang's
        page_size: int = 1,
        enable_kv_cache_events: bool = False,  # noqa: FBT001, FBT002 - SGLang's
    ) -> Tested:
        if mock_allocator is None:
            mock_allocator = token_allocator(SIMULATED_TOKENS, torch.float16, "cpu", None, need_sort=False)
        if isinstance(mock_allocator, Mock):
            mock_allocator.size = SIMULATED_TOKENS
        return make(
            CacheInitParams(
                disable=disable,
                req_to_token_pool=None,
                token_to_kv_pool_allocator=mock_allocator,
                page_size=page_size,
                enable_kv_cache_events=enable_kv_cache_events,
            )
        )

    def unified(kind: type, params: Any = None, **named: Any) -> Any:  # noqa: ANN401, ARG001 - SGLang's
        is_plain = kind is unified_radix_cache.UnifiedRadixCache and params.tree_components == (ComponentType.FULL,)
        return make(params) if is_plain else object.__new__(kind)

    allocators.TokenToKVPoolAllocator = allocator
    radix_cache.RadixCache.create_simulated = staticmethod(simulated)
    unified_radix_cache.UnifiedRadixCache.__new__ = staticmethod(unified)


def make_imports_work() -> None:
    """Let the checkout be imported on a machine without a GPU, and tests fail the first time.

    A newer transformers has some of the models that SGLang registers; its test helpers import data sets, unused.
    """
    from transformers import AutoConfig

    os.environ["SGLANG_TEST_MAX_RETRY"] = "0"
    sys.modules.setdefault("datasets", Mock())
    register = AutoConfig.register
    AutoConfig.register = staticmethod(lambda kind, config, exist_ok=True: register(kind, config, exist_ok=True))  # noqa: ARG005

    from sglang.srt import utils

    utils.get_device = lambda: "cpu"


def main() -> int:
    """Run the tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--theirs", action="store_true")
    arguments, others = parser.parse_known_args()
    folder = arguments.checkout / FOLDER
    sys.path.insert(0, str(arguments.checkout / "python"))
    make_imports_work()
    if not arguments.theirs:
        replace_caches()
    files = [str(folder / name) for name in FILES]
    return pytest.main([*files, f"--rootdir={folder}", "-p", "no:cacheprovider", "-c", "/dev/null", *others])


if __name__ == "__main__":
    sys.exit(main())
