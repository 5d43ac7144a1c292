"""The CUDA driver, the CUDA runtime, and the GPUs. None of them is needed: without, the cpu engine copies."""

import ctypes
import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from cpkv.doctor.check import Check
from cpkv.doctor.cuda_support import SUPPORTED, CudaVersion, judged, shown_version
from cpkv.errors import DriverError
from cpkv.host import Device, Driver, SystemFiles, gpu_node, nodes

_NVIDIA: Final = "0x10de"
_DISPLAY: Final = "0x03"
_DRIVER_HINT: Final = "install a newer driver"

PACKAGES: Final = ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime-cu12", "cuda-bindings")
"""Packages whose version is that of CUDA."""
LIBRARIES: Final = ("libcudart.so.13", "libcudart.so.12")


def cuda_checks(driver: Driver | DriverError, files: SystemFiles) -> Iterator[Check]:
    """Look at the driver, given as what came of starting it, and at what it finds."""
    if isinstance(driver, DriverError):
        yield _no_driver(driver, files)
        return
    try:
        driver_version, devices = driver.version, driver.devices()
    except DriverError as error:
        yield Check("CUDA driver", "fail", str(error), "a driver that answers", "see whether nvidia-smi works")
        return
    state, missing = judged(driver_version)
    hint = f"{missing}; {_DRIVER_HINT}" if missing else ""
    yield Check("CUDA driver", state, f"for CUDA {shown_version(driver_version)}", SUPPORTED, hint)
    yield _runtime(driver_version)
    if not devices:
        hint = "see CUDA_VISIBLE_DEVICES, and what the container was given"
        yield Check("GPUs", "warn", "none: the cpu engine is used", "at least one", hint)
    for device in devices:
        yield _gpu(device, files)


def nvidia_devices(files: SystemFiles) -> list[str]:
    """Return the PCI addresses of all NVIDIA GPUs of the machine, whether this process may use them or not."""
    folder = "/sys/bus/pci/devices"
    return [
        name
        for name in files.names(folder)
        if files.text(f"{folder}/{name}/vendor") == _NVIDIA
        and (files.text(f"{folder}/{name}/class") or "").startswith(_DISPLAY)
    ]


def _no_driver(error: DriverError, files: SystemFiles) -> Check:
    # A driver that is there and does not start says more than that it is not used.
    reason = "no CUDA driver" if error.code is None else f"the CUDA driver does not start ({error})"
    seen = f"{reason}: the cpu engine is used"
    found = nvidia_devices(files)
    if not found:
        return Check("CUDA driver", "ok", seen, f"{SUPPORTED} where there is a GPU")
    hint = f"the machine has {len(found)} NVIDIA GPU(s), the first at {found[0]}: give the container its driver"
    return Check("CUDA driver", "warn", seen, SUPPORTED, hint)


def _runtime(driver_version: CudaVersion) -> Check:
    found = _found_runtime()
    if found is None:
        hint = "install torch, or nvidia-cuda-runtime"
        return Check("CUDA runtime", "warn", "none found", SUPPORTED, hint)
    runtime_version, where = found
    seen = f"{shown_version(runtime_version)} ({where})"
    if runtime_version[0] > driver_version[0]:
        hint = f"the driver is for CUDA {shown_version(driver_version)}: install a newer driver or an older runtime"
        return Check("CUDA runtime", "fail", seen, f"{driver_version[0]}.x", hint)
    state, missing = judged(runtime_version)
    return Check("CUDA runtime", state, seen, SUPPORTED, f"{missing}; install another runtime" if missing else "")


def _found_runtime() -> tuple[CudaVersion, str] | None:
    """Return the version of the runtime and where it is from. Loads no package: torch alone takes seconds."""
    for package in PACKAGES:
        try:
            found = re.match(r"(\d+)\.(\d+)", version(package))
        except PackageNotFoundError:
            continue
        if found:
            return (int(found[1]), int(found[2])), package
    for name in LIBRARIES:
        try:
            library, number = ctypes.CDLL(name), ctypes.c_int()
            if library.cudaRuntimeGetVersion(ctypes.byref(number)) == 0:
                return (number.value // 1000, number.value % 1000 // 10), name
        except (OSError, AttributeError):
            continue
    return None


def _gpu(device: Device, files: SystemFiles) -> Check:
    name, node = f"GPU {device.ordinal}", gpu_node(device.pci_address, files)
    seen = f"{device.name} at {device.pci_address}, NUMA node {'unknown' if node is None else node}"
    if node is None and len(nodes(files)) > 1:
        hint = "host memory cannot be placed near to it: see numa_node of its device in /sys, and the virtual machine"
        return Check(name, "warn", seen, "a known NUMA node", hint)
    return Check(name, "ok", seen)
