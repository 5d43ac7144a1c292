"""LoRA without a GPU: what SGLang pins for copies to one stays as it is."""

import torch

MAKERS = ("tensor", "empty", "zeros")
"""Of tensors that LoRA's layers and its backend pin."""


def pin_nothing():
    """Pinning asks the driver of a GPU."""
    torch.Tensor.pin_memory = lambda tensor, *_: tensor
    for name in MAKERS:
        setattr(torch, name, without_pinning(getattr(torch, name)))


def without_pinning(make):
    """The same without the option."""

    def made(*arguments, pin_memory=False, **named):  # noqa: ARG001 - left out
        return make(*arguments, **named)

    return made
