"""What is kept of a token in a layer, as bytes: the latent and the key in bfloat16, the indexer key in fp8.

A page of indexer state has all its keys first and then all its scales (64 x 128 and 64 x 4 bytes in
DeepSeek-V3.2), so a token's bytes lie in two places.
"""

from typing import Final

import torch
from torch import Tensor

from cpkv.engine.exact import snap

KV_GRID: Final = 11
KV_LARGEST: Final = 7.5
FP8_LARGEST: Final = 448.0
BELOW_ZERO: Final = 2.0**-4


def kept(values: Tensor) -> Tensor:
    """Round to what bfloat16 keeps, as odd multiples of `2**-12`: no byte of them is without effect."""
    odd = (torch.floor(values.clamp(-KV_LARGEST, KV_LARGEST) * 2.0**KV_GRID) + 0.5) * 2.0**-KV_GRID
    return odd.to(torch.bfloat16)


def kv_bytes(latent: Tensor, key: Tensor) -> Tensor:
    """Return the bytes of tokens, `uint8`, shape `(n, 2 * (latent + rope))`."""
    return kept(torch.cat([latent, key], -1)).view(torch.uint8)


def kv_of(stored: Tensor) -> Tensor:
    """Return latent and key of bytes, `float64`, shape `(n, latent + rope)`."""
    return stored.view(torch.bfloat16).double()


def index_bytes(keys: Tensor) -> Tensor:
    """Return fp8 keys with the bytes of their scale, `uint8`, shape `(n, index_dim + 4)`."""
    scales = (keys.abs().amax(-1, keepdim=True) / FP8_LARGEST).clamp(min=2.0**-20).float()
    quantized = (keys / scales.double()).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn)
    return torch.cat([quantized.view(torch.uint8), scales.view(torch.uint8)], -1)


def index_of(stored: Tensor) -> tuple[Tensor, Tensor]:
    """Return quantized keys and scales of bytes, `float64`, shapes `(n, index_dim)` and `(n,)`."""
    keys, scales = stored[:, :-4].contiguous(), stored[:, -4:].contiguous()
    return keys.view(torch.float8_e4m3fn).double(), scales.view(torch.float32).double()[:, 0]


def index_page_rows(pages: Tensor, index_dim: int) -> Tensor:
    """Turn pages of indexer state into the bytes of their tokens.

    Args:
        pages: `uint8`, shape `(n, page_size * (index_dim + 4))`.
        index_dim: Bytes of a key.

    Returns:
        Shape `(n * page_size, index_dim + 4)`.
    """
    page_size = pages.shape[1] // (index_dim + 4)
    keys = pages[:, : page_size * index_dim].reshape(-1, index_dim)
    scales = pages[:, page_size * index_dim :].reshape(-1, 4)
    return torch.cat([keys, scales], -1)


def scores(queries: Tensor, weights: Tensor, keys: Tensor, scales: Tensor) -> Tensor:
    """Return how much each row wants each key, snapped, shape `(rows, keys)`.

    The sum over heads of `weight * relu(query . key) * scale`, as DeepSeek-V3.2's indexer has it, except
    that what is below zero counts a little, so that no byte of a key is without effect.

    Args:
        queries: Shape `(rows, heads, index_dim)`, snapped coarsely.
        weights: Of the heads, shape `(rows, heads)`.
        keys: Quantized, shape `(keys, index_dim)`.
        scales: Of them, shape `(keys,)`.
    """
    total = queries.new_zeros((queries.shape[0], keys.shape[0]))
    for head in range(queries.shape[1]):
        matches = queries[:, head] @ keys.T
        total += torch.where(matches > 0, matches, matches * BELOW_ZERO) * weights[:, head, None]
    return snap(total * scales, 20)
