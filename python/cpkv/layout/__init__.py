"""Where the state of a page lies: on the device as the engine has it, on the host in segments.

`PageLayout` says which rows a page has: one for each component and layer. `DevicePool` describes the
engine's tensors, `HostPool` has the one formula for host addresses. All arithmetic is in 64 bits, and
ids are checked before it. Addresses and bytes only; nothing here reads memory.
"""

from cpkv.layout.component import Component
from cpkv.layout.device_pool import Buffers, DevicePool
from cpkv.layout.formats import INDEX_BYTES_PER_TOKEN, MLA_BYTES_PER_TOKEN, attention_bytes_per_token
from cpkv.layout.geometry import check_geometry, check_memory
from cpkv.layout.host_pool import HostPool, Place
from cpkv.layout.page_layout import PageLayout, Row
from cpkv.layout.runs import Runs, join_runs

__all__ = [
    "INDEX_BYTES_PER_TOKEN",
    "MLA_BYTES_PER_TOKEN",
    "Buffers",
    "Component",
    "DevicePool",
    "HostPool",
    "PageLayout",
    "Place",
    "Row",
    "Runs",
    "attention_bytes_per_token",
    "check_geometry",
    "check_memory",
    "join_runs",
]
