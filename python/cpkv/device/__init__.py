"""The copy engines: what moves bytes between device pages and host slots.

`CopyEngine` is the protocol. `CpuEngine` copies in threads, `ManualEngine` when a test says so, the
engine of `cpkv.device.cuda` on streams of a GPU. A `CopyPlan` is prepared once for a forward; each layer
takes a slice of it. `open_engine` makes the one that a machine has.
"""

from cpkv.device.cpu import CpuEngine
from cpkv.device.cpu_stream import CpuEvent, CpuStream
from cpkv.device.engine import BACKUP, LATE, RESTORE, STREAMS, ComputeStream, CopyEngine, OnFailure
from cpkv.device.manual import ManualEngine
from cpkv.device.opening import EngineName, open_engine
from cpkv.device.plan import BlockCopies, CopyPlan, Direction, plan_copies

__all__ = [
    "BACKUP",
    "LATE",
    "RESTORE",
    "STREAMS",
    "BlockCopies",
    "ComputeStream",
    "CopyEngine",
    "CopyPlan",
    "CpuEngine",
    "CpuEvent",
    "CpuStream",
    "Direction",
    "EngineName",
    "ManualEngine",
    "OnFailure",
    "open_engine",
    "plan_copies",
]
