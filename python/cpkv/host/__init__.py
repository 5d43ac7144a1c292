"""Host memory: what the host can give, taken near to a device, registered with it, and given back.

`HostMemory` is made of a size and a `Placement`, and told to a `Registrar`: a `CudaRegistrar` where there is a GPU,
a `MlockRegistrar` or nobody where there is none. `read_limits` says beforehand what fits.
"""

from cpkv.host.cuda_registrar import CudaRegistrar
from cpkv.host.driver import Device, Driver
from cpkv.host.files import THIS_SYSTEM, Capacity, SystemFiles
from cpkv.host.limits import HostLimits, Limit, huge_page_bytes, lockable_bytes, read_limits, shown
from cpkv.host.memory import HostMemory
from cpkv.host.numa import device_folder, gpu_node, node_cpus, nodes
from cpkv.host.placement import SHARED_FOLDER, Placement
from cpkv.host.ranges import Range
from cpkv.host.registration import MlockRegistrar, Registrar
from cpkv.host.touching import Progress

__all__ = [
    "SHARED_FOLDER",
    "THIS_SYSTEM",
    "Capacity",
    "CudaRegistrar",
    "Device",
    "Driver",
    "HostLimits",
    "HostMemory",
    "Limit",
    "MlockRegistrar",
    "Placement",
    "Progress",
    "Range",
    "Registrar",
    "SystemFiles",
    "device_folder",
    "gpu_node",
    "huge_page_bytes",
    "lockable_bytes",
    "node_cpus",
    "nodes",
    "read_limits",
    "shown",
]
