"""What every test of this folder begins with: torch and a GPU, or a skip that says which is missing."""

import warnings

import pytest


def needs_gpu():
    """Return torch, or skip the whole file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's own imports
        torch = pytest.importorskip("torch", reason="torch is not installed")
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device", allow_module_level=True)
    return torch
