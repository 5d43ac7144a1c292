"""Replay a request trace against cache sizes and policies.

The replay is an engine without a model: it calls the public `CacheManager` once per step of each
request, and times the calls. `Replay` does it, `read_trace` and `make_workload` bring requests.
"""

from cpkv.replay.clock import net_microseconds
from cpkv.replay.prompts import PromptMaker
from cpkv.replay.result import ReplayResult
from cpkv.replay.runner import Replay
from cpkv.replay.settings import UNLIMITED, ReplaySettings
from cpkv.replay.trace import Request, read_trace
from cpkv.replay.workload import WorkloadSettings, make_workload

__all__ = [
    "UNLIMITED",
    "PromptMaker",
    "Replay",
    "ReplayResult",
    "ReplaySettings",
    "Request",
    "WorkloadSettings",
    "make_workload",
    "net_microseconds",
    "read_trace",
]
