"""What SGLang's device pools hold of a page, layer by layer, described where it lies."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, MLATokenToKVPool

from cpkv.errors import ConfigError
from cpkv.layout import Buffers, Component, PageLayout
from cpkv.sglang.options import ALONE

if TYPE_CHECKING:
    from cpkv.layout.component import Model

_KNOWN: Final = (MHATokenToKVPool, MLATokenToKVPool, DSATokenToKVPool)
_SCALES: Final = ("k_scale_buffer", "v_scale_buffer", "kv_scale_buffer")


class State(NamedTuple):
    """The layout of a page, and for each component SGLang's own tensors."""

    layout: PageLayout
    buffers: Mapping[str, Buffers]


class _Kind(NamedTuple):
    """One kind of state: a tensor for each layer, empty where a layer shares that of another one."""

    name: str
    tensors: Sequence[Any]
    tokens_per_page: int


def describe(pool: Any, page_size: int, drafts: Sequence[Any] = ()) -> State:  # noqa: ANN401 - SGLang's
    """Describe the pool of a target model, and those of its draft.

    Args:
        pool: SGLang's KV pool.
        page_size: Tokens in a page of the cache.
        drafts: The pool of the draft, or of each of its depths.

    Raises:
        ConfigError: One is of a kind that is not known, or its pages are others than the cache's.
    """
    components, buffers = [], {}
    counts: dict[Model, int] = {"target": 0, "draft": 0}
    pools: dict[Model, Sequence[Any]] = {"target": [pool], "draft": drafts}
    for model, its_pools in pools.items():
        for kind in _joined(its_pools, page_size):
            layers = tuple(layer for layer, tensor in enumerate(kind.tensors) if tensor.shape[0])
            found = Buffers.of([kind.tensors[layer] for layer in layers], tokens_per_page=kind.tokens_per_page)
            dtype = str(kind.tensors[0].dtype).removeprefix("torch.")
            name = f"{model}_{kind.name}"
            components.append(Component(name=name, model=model, layers=layers, row_bytes=found.row_bytes, dtype=dtype))
            buffers[name] = found
            counts[model] = len(kind.tensors)
    layout = PageLayout(
        page_size=page_size,
        target_layers=counts["target"],
        draft_layers=counts["draft"],
        components=tuple(components),
    )
    return State(layout, buffers)


def _joined(pools: Sequence[Any], page_size: int) -> Sequence[_Kind]:
    """The kinds of one model's pools: the layers of each pool come behind those of the pool before it."""
    if len({type(pool) for pool in pools}) > 1:
        types = ", ".join(type(pool).__name__ for pool in pools)
        message = f"--enable-hierarchical-cache: the draft's pools are {types}, want one kind; {ALONE}"
        raise ConfigError(message)
    return [
        same[0]._replace(tensors=[tensor for kind in same for tensor in kind.tensors])
        for same in zip(*(_kinds(pool, page_size) for pool in pools), strict=True)
    ]


def _kinds(pool: Any, page_size: int) -> Iterator[_Kind]:  # noqa: ANN401 - SGLang's
    layout = getattr(pool, "kv_cache_layout", "nhd" if type(pool) in _KNOWN else "unknown")
    scales = [name for name in _SCALES if getattr(pool, name, None) is not None]
    pooling = getattr(pool, "index_kpool", 1)
    # Other kinds are made from these, and keep more of a page than these do.
    if type(pool) not in _KNOWN or layout != "nhd" or scales or pooling != 1:
        kind = f"{type(pool).__name__} of layout {layout}"
        if scales:
            kind += f" with {', '.join(scales)}"
        if pooling != 1:
            kind += f" whose index has one key for {pooling} tokens"
        message = (
            f"--enable-hierarchical-cache: the KV pool is a {kind}, want one of MHA (nhd), MLA or DSA without scales "
            f"beside it and with a key for each token; {ALONE}"
        )
        raise ConfigError(message)
    if isinstance(pool, MHATokenToKVPool):
        yield _Kind("k", pool.k_buffer, page_size)
        yield _Kind("v", pool.v_buffer, page_size)
        return
    yield _Kind("kv", pool.kv_buffer, page_size)
    if isinstance(pool, DSATokenToKVPool):
        if pool.page_size != page_size:
            message = f"--page-size is {page_size}, want {pool.page_size} as the indexer's pages have"
            raise ConfigError(message)
        yield _Kind("index", pool.index_k_with_scale_buffer, 1)
