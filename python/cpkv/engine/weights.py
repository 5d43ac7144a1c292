"""The weights: integers by a power of two, drawn from a seed, so that everyone has the same.

They are made so that the draft is often right and can be wrong. The last layer of the target reads the
context and decides; the layers before it change their input by little. The draft's layer has the last
layer's weights and reads the tokens themselves, so it often finds what the target finds, as long as its own
KV and indexer state are right.
"""

from dataclasses import dataclass, fields
from typing import Final

import torch
from torch import Tensor

from cpkv.engine.config import ModelConfig
from cpkv.engine.exact import WEIGHT_BITS

WITNESS: Final = 2.0**-3
"""How much the mean of all scores counts, which makes the result depend on every indexer key that is read."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Of one layer; each of shape `(inputs, outputs)`, `float64`."""

    query: Tensor
    latent: Tensor
    key: Tensor
    out: Tensor
    index_query: Tensor
    index_key: Tensor
    index_weight: Tensor
    witness: Tensor
    up: Tensor
    down: Tensor

    def to(self, device: str) -> "LayerWeights":
        """Return them on a device."""
        return LayerWeights(**{each.name: getattr(self, each.name).to(device) for each in fields(self)})


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """Of target and draft."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    draft_token: Tensor
    draft_hidden: Tensor
    draft: LayerWeights
    head: Tensor

    @classmethod
    def draw(cls, config: ModelConfig, device: str = "cpu") -> "ModelWeights":
        """Draw the weights of a model."""
        draw = torch.Generator().manual_seed(config.seed)

        def weight(inputs: int, outputs: int, size: float) -> Tensor:
            """So that the product of normalized rows is about as large as `size`."""
            integers = torch.randint(-(2**WEIGHT_BITS), 2**WEIGHT_BITS + 1, (inputs, outputs), generator=draw)
            # Their root mean square is 2**7 / sqrt(3); a power of two keeps them on a grid.
            scale = 2.0 ** round(torch.log2(torch.tensor(size / (inputs**0.5 * 2**WEIGHT_BITS / 3**0.5))).item())
            return integers.double() * scale

        def layer(size: float, shift: float) -> LayerWeights:
            hidden, latent = config.hidden, config.latent
            return LayerWeights(
                query=weight(hidden, config.heads * (latent + config.rope), 1.0),
                latent=weight(hidden, latent, 2.0),
                key=weight(hidden, config.rope, 1.0),
                out=weight(config.heads * latent, hidden, size),
                index_query=weight(hidden, config.index_heads * config.index_dim, 1.0),
                index_key=weight(hidden, config.index_dim, 1.0),
                index_weight=weight(hidden, config.index_heads, 0.25),
                witness=weight(1, hidden, WITNESS * size),
                up=weight(hidden, 2 * hidden, 1.0),
                down=weight(2 * hidden, hidden, shift),
            )

        last = layer(size=2.0, shift=0.5)
        layers = (*(layer(size=0.03125, shift=0.03125) for _ in range(config.layers - 1)), last)
        weights = cls(
            embedding=weight(config.vocab, config.hidden, config.vocab**0.5),
            layers=layers,
            draft_token=torch.eye(config.hidden, dtype=torch.float64),
            draft_hidden=weight(config.hidden, config.hidden, 0.015625),
            draft=last,
            head=weight(config.hidden, config.vocab, 1.0),
        )
        return weights.to(device)

    def to(self, device: str) -> "ModelWeights":
        """Return them on a device."""
        layers = tuple(layer.to(device) for layer in self.layers)
        return ModelWeights(
            embedding=self.embedding.to(device),
            layers=layers,
            draft_token=self.draft_token.to(device),
            draft_hidden=self.draft_hidden.to(device),
            draft=self.draft.to(device),
            head=self.head.to(device),
        )
