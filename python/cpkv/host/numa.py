"""Which NUMA node a GPU hangs on, and which pages are there. A refusal is a warning: copies get slower, not wrong."""

import logging
import os
import re
from typing import Final

from cpkv.host import libc
from cpkv.host.files import THIS_SYSTEM, SystemFiles

SAMPLES: Final = 1_000

_logger: Final = logging.getLogger("cpkv.host")


def gpu_node(pci_address: str, files: SystemFiles = THIS_SYSTEM) -> int | None:
    """Return the NUMA node of a PCI device, `None` if the machine does not say."""
    node = files.number(f"{device_folder(pci_address)}/numa_node")
    return None if node is None or node < 0 else node


def device_folder(pci_address: str) -> str:
    """Return where a PCI device is described; some tools write its domain with eight digits."""
    domain, _, rest = pci_address.lower().strip().partition(":")
    return f"/sys/bus/pci/devices/{domain[-4:]:0>4}:{rest}"


def nodes(files: SystemFiles = THIS_SYSTEM) -> list[int]:
    """Return the NUMA nodes of this machine."""
    names = files.names("/sys/devices/system/node")
    return sorted(int(name[4:]) for name in names if name.startswith("node") and name[4:].isdecimal())


def node_cpus(node: int, files: SystemFiles = THIS_SYSTEM) -> frozenset[int]:
    """Return the processors of a node, from a list such as `0-3,8`."""
    cpus: set[int] = set()
    for part in (files.text(f"/sys/devices/system/node/node{node}/cpulist") or "").split(","):
        if found := re.fullmatch(r"(\d+)(?:-(\d+))?", part):
            cpus |= set(range(int(found[1]), int(found[2] or found[1]) + 1))
    return frozenset(cpus)


def allowed_cpus(node: int | None, files: SystemFiles = THIS_SYSTEM) -> frozenset[int]:
    """Return the processors of a node that this thread may use; all that it may use if none of them is."""
    allowed = frozenset(os.sched_getaffinity(0))
    if node is None:
        return allowed
    near = allowed & node_cpus(node, files)
    if not near:
        _logger.warning("no processor of NUMA node %d may be used: pages are touched from others", node)
    return near or allowed


def place(address: int, size_bytes: int, node: int) -> None:
    """Ask for pages on a node, before the first is touched."""
    try:
        libc.prefer_node(address, size_bytes, node)
    except OSError as error:
        _logger.warning("host memory is not placed on NUMA node %d (%s): copies may be slower", node, error.strerror)


def tell_misplaced(address: int, size_bytes: int, page_bytes: int, node: int) -> None:
    """Look at some pages that were touched, and warn if they are elsewhere."""
    pages = -(-size_bytes // page_bytes)
    sampled = min(pages, SAMPLES)
    addresses = [address + pages * sample // sampled * page_bytes for sample in range(sampled)]
    try:
        found = libc.nodes_of(addresses)
    except OSError as error:
        _logger.info("nobody knows on which NUMA node host memory is (%s)", error.strerror)
        return
    if found[node] < sampled:
        elsewhere = ", ".join(f"{count} on node {other}" for other, count in sorted(found.items()) if other != node)
        _logger.warning("of %d pages, %d are on NUMA node %d, %s", sampled, found[node], node, elsewhere)
