"""What SGLang's own host cache copies with when its backend is `direct`: to compare with `enable_hierarchical_cache`.

Device pools are lists of layers of token rows. A host pool has the same form (`layer_first`) or is one tensor of
pages, each with all layers (`page_first_direct`).
"""

from sglang.srt.mem_cache.pool_host import common, mha, mla

try:
    from sglang.srt.mem_cache.pool_host import dsa
except ImportError:  # before 0.5.19
    from sglang.srt.mem_cache import memory_pool_host as dsa

NAMES = ("transfer_kv_direct", "transfer_kv_per_layer_direct_pf_lf", "transfer_kv_all_layer_direct_lf_pf")


def copy_by_indexing():
    """The pools import their copies on a GPU only, and register memory with CUDA, which there is none to do."""
    common._cuda_host_register = do_nothing
    common._cuda_host_unregister = do_nothing
    for name in NAMES:
        copy_by(name, globals()[name])


def copy_by(name, function):
    """Let the pools call a function by the name that they call."""
    for pool in dsa, mha, mla:
        setattr(pool, name, function)


def do_nothing(*_, **__):
    """Neither register nor copy."""


def transfer_kv_direct(src_layers, dst_layers, src_indices, dst_indices, page_size):  # noqa: ARG001 - rows will do
    """Rows to rows, layer by layer, both ways."""
    for source, destination in zip(src_layers, dst_layers, strict=True):
        destination[dst_indices.cpu()] = source[src_indices.cpu()]


def transfer_kv_per_layer_direct_pf_lf(src_ptrs, dst_ptrs, src_indices, dst_indices, layer_id, page_size):
    """One layer of pages on the host to rows on the device."""
    pages = src_indices[::page_size] // page_size
    for source, destination in zip(src_ptrs, dst_ptrs, strict=True):
        destination[dst_indices] = source[pages, layer_id].flatten(0, 1)


def transfer_kv_all_layer_direct_lf_pf(src_ptrs, dst_ptrs, src_indices, dst_indices, page_size):
    """Rows on the device, all layers of the first pool and then all of the next, to pages on the host."""
    pages = dst_indices[::page_size] // page_size
    layers = len(src_ptrs) // len(dst_ptrs)
    for pool, destination in enumerate(dst_ptrs):
        for layer in range(layers):
            rows = src_ptrs[pool * layers + layer][src_indices]
            destination[pages, layer] = rows.unflatten(0, (len(pages), page_size))
