"""Bytes of a token in one layer, for the formats that engines store KV and index state in."""

from typing import Final

LATENT_ELEMENTS: Final = 512 + 64
"""MLA: the compressed KV of a token and its rotary key."""
INDEX_ELEMENTS: Final = 128
"""Sparse-attention indexer: the key of a token."""

MLA_BYTES_PER_TOKEN: Final = {
    "bfloat16": LATENT_ELEMENTS * 2,
    # 512 in fp8, four fp32 scales for them, the rotary key in bf16.
    "fp8_packed": 512 + 4 * 4 + 64 * 2,
    "float8_e4m3fn": LATENT_ELEMENTS,
}
"""MLA latent KV by format: 73,728, 41,984 and 36,864 bytes for a page of 64 tokens."""

INDEX_BYTES_PER_TOKEN: Final = INDEX_ELEMENTS + 4
"""Index keys in fp8 and one fp32 scale each: the keys of all tokens of a page, then their scales."""


def attention_bytes_per_token(heads: int, head_dim: int, element_bytes: int) -> int:
    """Return the bytes of K, or of V, of one token in one layer of MHA or GQA."""
    return heads * head_dim * element_bytes
