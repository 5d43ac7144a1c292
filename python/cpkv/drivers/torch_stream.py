"""Torch's current stream, asked for with every layer."""

from collections.abc import Callable
from functools import partial
from importlib import import_module


def torch_stream(device: int = 0) -> Callable[[], int]:
    """Return what tells the handle of torch's current stream on a GPU, for `HostTier`'s `compute_stream`.

    Args:
        device: Which GPU, as the process counts them.

    Raises:
        ImportError: There is no torch.
    """
    torch = import_module("torch")
    # What torch's own compiler calls: an integer and no object for each call.
    raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # noqa: SLF001 - see above
    if raw is not None:
        return partial(raw, device)
    return lambda: int(torch.cuda.current_stream(device).cuda_stream)
