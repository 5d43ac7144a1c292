"""What the link of each GPU carries, which way copies take there, and why."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from cpkv.device import Direction
from cpkv.device.cuda import CudaEngine
from cpkv.doctor.check import Check
from cpkv.doctor.link_rate import link_rates
from cpkv.doctor.links import Link, read_link
from cpkv.errors import CpkvError, DriverError
from cpkv.host import THIS_SYSTEM, Device, Driver, SystemFiles

PEAK_SHARE: Final = 0.8
"""Of the peak of a link, what large copies have to reach. Headers of packets take an eighth of it."""


def copy_path_checks(
    driver: Driver | DriverError | None = None,
    open_cuda: Callable[[int], CudaEngine] = CudaEngine,
    measure: Callable[[int], Mapping[Direction, float]] = link_rates,
    files: SystemFiles = THIS_SYSTEM,
) -> list[Check]:
    """Return the engine that `auto` takes, and for each GPU what its link carries and how it copies.

    That measures for a moment: the links each time, the paths unless it was done on such a GPU before.

    Args:
        driver: What came of starting the CUDA driver, if that was done already.
        open_cuda: Makes the engine of a GPU.
        measure: Measures the link of a GPU, in GB/s.
        files: What the kernel tells.
    """
    if driver is None:
        driver = started_driver()
    engine, devices = _engine(driver)
    checks = [Check("copy engine", "ok", engine)]
    for device in devices:
        checks.append(_link_check(device, measure, files))
        checks.extend(_paths(device, open_cuda))
    return checks


def _link_check(device: Device, measure: Callable[[int], Mapping[Direction, float]], files: SystemFiles) -> Check:
    name = f"link of GPU {device.ordinal}, measured"
    try:
        rates = measure(device.ordinal)
    except CpkvError as error:
        return Check(name, "warn", str(error), "copies that can be measured", "look at the driver's log")
    seen = ", ".join(f"{rate:.1f} GB/s {way.replace('_', ' ')}" for way, rate in rates.items())
    link = read_link(device.pci_address, "max", files) or read_link(device.pci_address, "current", files)
    return _compared(name, seen, min(rates.values()), link)


def _compared(name: str, seen: str, slower: float, link: Link | None) -> Check:
    if link is None:
        return Check(name, "ok", f"{seen}; the machine does not say what its peak is")
    peak = link.peak_gb_s
    seen = f"{seen}: {slower / peak:.0%} of the {peak:.1f} GB/s of {link}"
    wanted = f"at least {PEAK_SHARE:.0%} of it, {PEAK_SHARE * peak:.1f} GB/s"
    if slower >= PEAK_SHARE * peak:
        return Check(name, "ok", seen, wanted)
    hint = "see whether others use the link now, whether all of its lanes are connected, and the NUMA node of the GPU"
    return Check(name, "warn", seen, wanted, hint)


def _paths(device: Device, open_cuda: Callable[[int], CudaEngine]) -> Iterator[Check]:
    name = f"copy path of GPU {device.ordinal}"
    try:
        engine = open_cuda(device.ordinal)
    except CpkvError as error:
        hint = "the engine 'auto' takes the CPU instead"
        yield Check(name, "warn", str(error), wanted="an engine that starts", hint=hint)
        return
    try:
        engine.calibrate()
        for what, why in engine.explain().items():
            yield Check(name, "ok", f"{what}: {why}")
    except CpkvError as error:
        yield Check(name, "warn", str(error), wanted="copies that can be measured", hint="look at the driver's log")
    finally:
        engine.close()


def started_driver() -> Driver | DriverError:
    """Start the CUDA driver, and return why not if it does not."""
    try:
        return Driver()
    except DriverError as error:
        return error


def _engine(driver: Driver | DriverError) -> tuple[str, list[Device]]:
    """Return which engine is taken and why, and the GPUs that it copies for."""
    if isinstance(driver, DriverError):
        return f"cpu: {driver}", []
    try:
        devices = driver.devices()
    except DriverError as error:
        return f"cpu: {error}", []
    if not devices:
        return "cpu: the CUDA driver finds no GPU", []
    return f"cuda: the driver runs and finds {len(devices)} GPU{'' if len(devices) == 1 else 's'}", devices
