"""Stands in for SGLang's compiled kernels, which are not there for a CPU without AMX.

SGLang imports names from all over that package, whether it calls them or not. Here any name of any module can be
imported. What is called without having been written raises; `chains` has what EAGLE calls.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

from sgl_kernel.chains import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_tree_kernel_efficient_cpu,
    copy_all_layer_kv_cache_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "verify_tree_greedy_cpu",
]


class Unwritten:
    """Whatever SGLang has imported and must not call."""

    def __init__(self, name):
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return Unwritten(f"{self._name}.{attribute}")

    def __call__(self, *_, **__):
        message = f"{self._name} is called and has not been written for the CPU"
        raise NotImplementedError(message)


class UnwrittenModule(ModuleType):
    """A module under this one that has every name."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Unwritten(f"{self.__name__}.{name}")


class UnwrittenModules:
    """Finds the modules under this one for which there is no file: it comes last in `sys.meta_path`."""

    def find_spec(self, name, path=None, target=None):  # noqa: ARG002 - as importlib calls it
        return ModuleSpec(name, self, is_package=True) if name.startswith(f"{__name__}.") else None

    def create_module(self, spec):
        return UnwrittenModule(spec.name)

    def exec_module(self, module):
        """There is nothing to run."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Unwritten(f"{__name__}.{name}")


sys.meta_path.append(UnwrittenModules())
