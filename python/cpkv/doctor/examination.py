"""All checks, in the order in which they are shown."""

from cpkv.doctor.build import build_checks
from cpkv.doctor.check import Check
from cpkv.doctor.copy_path import copy_path_checks, started_driver
from cpkv.doctor.cuda import cuda_checks
from cpkv.doctor.links import link_checks
from cpkv.doctor.memory import memory_checks
from cpkv.doctor.sglang import sglang_checks
from cpkv.errors import DriverError
from cpkv.host import THIS_SYSTEM, Driver, SystemFiles


def examine(ranks_on_host: int = 1, files: SystemFiles = THIS_SYSTEM) -> list[Check]:
    """Look at everything.

    Args:
        ranks_on_host: How many ranks share the memory of this host.
        files: What the kernel tells.
    """
    driver = started_driver()
    return [
        *build_checks(),
        *sglang_checks(),
        *cuda_checks(driver, files),
        *link_checks(_addresses(driver), files),
        *memory_checks(ranks_on_host, files),
        *copy_path_checks(driver, files=files),
    ]


def _addresses(driver: Driver | DriverError) -> list[str]:
    if isinstance(driver, DriverError):
        return []
    try:
        return [device.pci_address for device in driver.devices()]
    except DriverError:  # told by the check of the driver
        return []
