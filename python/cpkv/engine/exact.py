"""Arithmetic whose sums have no rounding, so that a row is the same in every batch, tile, rank and device.

Rows of a floating-point matrix product depend on the shape of the batch: the sums are taken in another order.
Here all values lie on a grid, multiples of a power of two, and a sum of products of them has less bits than
`float64` keeps. Its order does not matter then, and nothing has to be padded to tiles of one shape. What is
computed of single elements (products, quotients, square roots) is rounded the same everywhere by IEEE 754.
"""

import math
from typing import Final

import torch
from torch import Tensor

FINE: Final = 32
"""Activations are multiples of `2**-32`; with less than 2**5 in size that is 37 bits."""
COARSE: Final = 10
"""What is squared before it is summed."""
WEIGHT_BITS: Final = 7
"""Weights are integers up to `2**7` by a power of two."""
MOST_INPUTS: Final = 512
"""Of a product with a weight: 37 and 7 bits, and 9 for the sum, are the 53 that `float64` has."""
MOST_KEYS: Final = 1 << 15
"""Shares of 32 bits, and latents of 15, leave 6 bits for a sum over keys whose shares are 1 in all, and shares are
at most 3 bits before they are divided: far more keys than that would do."""
LARGEST: Final = 31.0


def snap(values: Tensor, bits: int = FINE) -> Tensor:
    """Round to multiples of `2**-bits`, and to what activations may be at most."""
    return torch.round(values * 2.0**bits).mul_(2.0**-bits).clamp_(-LARGEST, LARGEST)


def linear(rows: Tensor, weight: Tensor) -> Tensor:
    """Return the product of rows with a weight on its grid.

    Args:
        rows: Shape `(n, inputs)`, snapped.
        weight: Shape `(inputs, outputs)`.
    """
    return snap(rows @ weight)


def normalized(rows: Tensor) -> Tensor:
    """Return rows over the root of their mean square, shape `(n, width)`."""
    squares = snap(rows, COARSE).square().sum(-1, keepdim=True)
    return snap(rows / torch.sqrt(squares / rows.shape[-1] + 2.0**-COARSE))


def shares(scores: Tensor, is_seen: Tensor) -> Tensor:
    """Return how much each score weighs along the last dimension, 0 where nothing is seen.

    As a softmax: `(1 + s / 16) ** 16` stands for the exponential, which is not the same on every machine.

    Args:
        scores: Snapped, and not below -15.
        is_seen: The same shape.
    """
    powers = 1 + scores / 16
    for _ in range(4):
        powers = powers.square()
    powers = snap(powers.clamp_(max=LARGEST)).masked_fill_(~is_seen, 0.0)
    return snap(powers / powers.sum(-1, keepdim=True))


def rotations(positions: int, width: int) -> Tensor:
    """Return cosine and sine by which the pairs of a key are turned, shape `(2, positions, width / 2)`.

    Of the standard library, element by element: vectorized ones differ from machine to machine.
    """
    pairs = width // 2
    angles = [[position / 1_000 ** (pair / pairs) for pair in range(pairs)] for position in range(positions)]
    table = torch.tensor([[[turn(angle) for angle in row] for row in angles] for turn in (math.cos, math.sin)])
    return snap(table.double(), COARSE)


def rotated(rows: Tensor, turns: Tensor) -> Tensor:
    """Turn the halves of rows against each other.

    Args:
        rows: Shape `(n, ..., width)`.
        turns: Of the rows' positions, shape `(2, n, width / 2)`.
    """
    cosine, sine = (turn.view(turn.shape[0], *[1] * (rows.dim() - 2), turn.shape[1]) for turn in turns)
    front, back = rows.chunk(2, -1)
    return snap(torch.cat([front * cosine - back * sine, front * sine + back * cosine], -1))
