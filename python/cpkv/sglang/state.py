"""What SGLang's device pools hold of a page, layer by layer, described where it lies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, MLATokenToKVPool

from cpkv.errors import ConfigError
from cpkv.layout import Buffers, Component, PageLayout


class State(NamedTuple):
    """The layout of a page, and for each component SGLang's own tensors."""

    layout: PageLayout
    buffers: Mapping[str, Buffers]


class _Kind(NamedTuple):
    """One kind of state: a tensor for each layer, empty where a layer shares that of another one."""

    name: str
    tensors: Sequence[Any]
    tokens_per_page: int


def describe(pool: Any, page_size: int) -> State:  # noqa: ANN401 - SGLang's
    """Describe the pool of a target model.

    Args:
        pool: SGLang's KV pool.
        page_size: Tokens in a page of the cache.

    Raises:
        ConfigError: It is of a kind that is not known, or its pages are others than the cache's.
    """
    kinds = list(_kinds(pool, page_size))
    components, buffers = [], {}
    for kind in kinds:
        layers = tuple(layer for layer, tensor in enumerate(kind.tensors) if tensor.shape[0])
        found = Buffers.of([kind.tensors[layer] for layer in layers], tokens_per_page=kind.tokens_per_page)
        dtype = str(kind.tensors[0].dtype).removeprefix("torch.")
        name = f"target_{kind.name}"
        components.append(Component(name=name, model="target", layers=layers, row_bytes=found.row_bytes, dtype=dtype))
        buffers[name] = found
    layout = PageLayout(
        page_size=page_size, target_layers=len(kinds[0].tensors), draft_layers=0, components=tuple(components)
    )
    return State(layout, buffers)


def _kinds(pool: Any, page_size: int) -> Iterator[_Kind]:  # noqa: ANN401 - SGLang's
    if isinstance(pool, MLATokenToKVPool):
        yield _Kind("kv", pool.kv_buffer, page_size)
        if isinstance(pool, DSATokenToKVPool):
            if pool.page_size != page_size:
                message = f"--page-size is {page_size}, want {pool.page_size} as the indexer's pages have"
                raise ConfigError(message)
            yield _Kind("index", pool.index_k_with_scale_buffer, 1)
    elif isinstance(pool, MHATokenToKVPool) and getattr(pool, "kv_cache_layout", "nhd") == "nhd":
        yield _Kind("k", pool.k_buffer, page_size)
        yield _Kind("v", pool.v_buffer, page_size)
    else:
        kind = f"{type(pool).__name__} of layout {getattr(pool, 'kv_cache_layout', 'unknown')}"
        message = (
            f"--enable-hierarchical-cache: the KV pool is a {kind}, want one of MHA (nhd), MLA or DSA; "
            "leave the option out, and cpkv caches on the device"
        )
        raise ConfigError(message)
