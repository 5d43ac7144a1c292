"""A GPU to ask for what it can do."""

import torch

HOPPER = (9, 0)


def name_a_gpu():
    """Answer for it: where there is none, the question raises, though nothing here depends on the answer."""
    torch.cuda.get_device_capability = lambda *_, **__: HOPPER
