"""DSA's indexer on a CPU: it stores index keys where SGLang does, and lets attention read everything.

Reading everything is what selecting the `index_topk` best does as long as there are no more tokens than that. Tokens
do not show whether index keys are right, then: whoever moves them has to compare the buffers.
"""

import torch
from sglang.srt.layers.attention.dsa import dsa_indexer

from cpu_patches.places import index_page_size

_LARGEST_FP8 = torch.finfo(torch.float8_e4m3fn).max
_SMALLEST_AMAX = 1e-4


def store_on_cpu():
    """Write the form of the indexer that runs on a CPU, which raises: all others are for GPUs."""
    dsa_indexer.Indexer.forward_native = _forward


def _forward(self, x, q_lora, positions, forward_batch, layer_id, return_indices=True, **_):  # noqa: ARG001, FBT002 - as SGLang calls it
    keys = self.k_norm(self.wk(x)[0])
    turning, still = keys.split((self.rope_head_dim, self.head_dim - self.rope_head_dim), dim=-1)
    turning = turning.unsqueeze(1).contiguous()
    _, turning = self.rotary_emb(positions, turning.clone(), turning)
    keys = torch.cat((turning.reshape(len(keys), -1), still), dim=-1).float()
    scales = keys.abs().amax(dim=-1, keepdim=True).clamp(min=_SMALLEST_AMAX) / _LARGEST_FP8
    _store(dsa_indexer.get_token_to_kv_pool(), layer_id, forward_batch.out_cache_loc, keys / scales, scales)


def _store(pool, layer_id, slots, keys, scales):
    """A page has the keys of its tokens, one byte a number, and behind them their scales, four bytes each."""
    buffer = pool.get_index_k_with_scale_buffer(layer_id=layer_id)
    size, width = index_page_size(pool), keys.shape[1]
    page, offset = slots // size, slots % size
    buffer[:, : size * width].view(-1, size, width)[page, offset] = keys.to(torch.float8_e4m3fn).view(torch.uint8)
    buffer[:, size * width :].view(-1, size, scales.element_size())[page, offset] = scales.view(torch.uint8)
