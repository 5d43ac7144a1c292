"""One layer: what it keeps of its rows, and what it computes of them with what is kept of the context."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cpkv.engine.config import ModelConfig
from cpkv.engine.exact import COARSE, linear, normalized, rotated, shares, snap
from cpkv.engine.state_rows import index_bytes, index_of, kv_bytes, kv_of, scores
from cpkv.engine.weights import LayerWeights


@dataclass(frozen=True, slots=True)
class Context:
    """What a layer has kept of one request, in the order of its positions.

    Args:
        kv: Bytes of latents and keys, `uint8`, shape `(tokens, kv_bytes)`.
        index: Bytes of indexer keys and scales, `uint8`, shape `(tokens, index_bytes)`.
    """

    kv: Tensor
    index: Tensor


def state_of(weights: LayerWeights, rows: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """Return the bytes that are kept of rows.

    Args:
        weights: Of the layer.
        rows: Its input, shape `(n, hidden)`.
        turns: See `rotated`.

    Returns:
        KV and indexer state, `uint8`, shapes `(n, kv_bytes)` and `(n, index_bytes)`.
    """
    inputs = normalized(rows)
    key = rotated(linear(inputs, weights.key), turns)
    return kv_bytes(linear(inputs, weights.latent), key), index_bytes(snap(linear(inputs, weights.index_key), COARSE))


def attended(  # noqa: PLR0913, PLR0917 - what attention reads
    config: ModelConfig, weights: LayerWeights, rows: Tensor, turns: Tensor, lengths: Tensor, context: Context
) -> Tensor:
    """Return what attention adds to the rows of one request.

    The indexer scores every token that a row sees, attention reads the `top_k` best of them.

    Args:
        config: Of the model.
        weights: Of the layer.
        rows: The layer's input, shape `(n, hidden)`.
        turns: See `rotated`.
        lengths: Tokens that each row sees, itself included, `int64`, shape `(n,)`.
        context: Of the request, of at least as many tokens as the last row sees.
    """
    inputs = normalized(rows)
    count = inputs.shape[0]
    index_queries = snap(linear(inputs, weights.index_query), COARSE).view(count, config.index_heads, -1)
    wanted = scores(index_queries, linear(inputs, weights.index_weight), *index_of(context.index))
    places = torch.arange(wanted.shape[1], device=rows.device)
    is_seen = places < lengths[:, None]
    mean = snap(wanted.masked_fill(~is_seen, 0.0).sum(-1) / lengths)
    # Of equal scores the first: a stable order is the same for every number of tokens.
    order = wanted.masked_fill(~is_seen, -torch.inf).sort(dim=-1, descending=True, stable=True).indices
    chosen = order[:, : config.top_k].sort(-1).values
    is_chosen_seen = chosen < lengths[:, None]

    # What lies behind the last token is anything.
    kept = kv_of(context.kv)[chosen].masked_fill_(~is_chosen_seen[..., None], 0.0)
    queries = linear(inputs, weights.query).view(count, config.heads, -1)
    bare, turned = queries.split([config.latent, config.rope], -1)
    queries = snap(torch.cat([bare, rotated(turned, turns)], -1), COARSE)
    matches = torch.einsum("nhd,nkd->nhk", queries, kept) / 16 + wanted.gather(1, chosen)[:, None] / 16
    weighed = shares(snap(matches.clamp(-2.0, 2.0)), is_chosen_seen[:, None].expand_as(matches))
    read = snap(torch.einsum("nhk,nkd->nhd", weighed, kept[..., : config.latent]))
    return snap(linear(read.reshape(count, -1), weights.out) + snap(mean)[:, None] * weights.witness[0])


def fed_forward(weights: LayerWeights, rows: Tensor) -> Tensor:
    """Return what the second half of a layer adds to rows."""
    return linear(snap(linear(normalized(rows), weights.up).relu() / 4, COARSE), weights.down)
