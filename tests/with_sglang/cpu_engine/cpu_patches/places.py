"""Where the versions of SGLang have what these patches replace, and what an adapter of cpkv has of each."""

from sglang.srt.managers.scheduler import Scheduler
from sglang.version import __version__

from cpkv.sglang.adapters import ADAPTERS
from cpkv.sglang.versions import interface_of

try:
    from sglang.srt.managers.scheduler_components.internal_state import SchedulerInternalStateController as StateTeller
except ImportError:  # before 0.5.22
    StateTeller = Scheduler

AdaptedCache = ADAPTERS[interface_of(__version__)]
"""The cache that an engine of this version gets."""


def hit_tokens(match):
    """How many tokens a match has found on the device."""
    found = getattr(match, "device_indices", None)  # before 0.5.22
    return match.device_prefix_len if found is None else len(found)


def index_page_size(pool):
    """How many index keys a page of DSA has."""
    return getattr(pool, "index_page_size", pool.page_size)  # since 0.5.22
