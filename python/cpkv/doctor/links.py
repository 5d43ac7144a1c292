"""The links between host and GPUs: what they could carry at most."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cpkv.doctor.check import Check
from cpkv.host import SystemFiles, device_folder

_LANE_GBIT_S: Final = {
    2.5: 2.5 * 8 / 10,
    5.0: 5.0 * 8 / 10,
    8.0: 8.0 * 128 / 130,
    16.0: 16.0 * 128 / 130,
    32.0: 32.0 * 128 / 130,
    64.0: 64.0 * 242 / 256,
}
"""By the transfers of a lane, in GT/s, what is left of them after the encoding."""
GENERATIONS: Final = {rate: generation for generation, rate in enumerate(_LANE_GBIT_S, start=1)}


@dataclass(frozen=True, slots=True)
class Link:
    """A PCIe link at a speed: transfers of each lane, and lanes."""

    gigatransfers_s: float
    lanes: int

    @property
    def peak_gb_s(self) -> float:
        """What it carries in one direction, in 1e9 bytes a second, before the headers of packets."""
        return _LANE_GBIT_S.get(self.gigatransfers_s, self.gigatransfers_s) * self.lanes / 8

    def __str__(self) -> str:
        generation = GENERATIONS.get(self.gigatransfers_s, "?")
        return f"PCIe {generation} x{self.lanes}"


def link_checks(pci_addresses: list[str], files: SystemFiles) -> Iterator[Check]:
    """Look at the link of each device, in the order of the GPUs."""
    for ordinal, address in enumerate(pci_addresses):
        yield _link_check(
            f"link of GPU {ordinal}", read_link(address, "current", files), read_link(address, "max", files)
        )


def read_link(pci_address: str, which: str, files: SystemFiles) -> Link | None:
    """Return the `"current"` or `"max"` link of a device, `None` if the machine does not say."""
    folder = device_folder(pci_address)
    speed = re.match(r"[\d.]+", files.text(f"{folder}/{which}_link_speed") or "")
    lanes = files.number(f"{folder}/{which}_link_width")
    return Link(float(speed[0]), lanes) if speed and lanes else None


def _link_check(name: str, now: Link | None, most: Link | None) -> Check:
    if now is None:
        return Check(name, "ok", "unknown", hint="the machine does not say: measure it")
    seen = f"{now}, peak {now.peak_gb_s:.1f} GB/s each way"
    if most is None or now == most:
        return Check(name, "ok", seen)
    wanted = f"{most}, peak {most.peak_gb_s:.1f} GB/s"
    if now.lanes < most.lanes:
        return Check(name, "warn", seen, wanted, "the GPU has lanes that are not connected: try another slot")
    return Check(name, "ok", seen, wanted, "an idle GPU slows its link down: look again while it copies")
