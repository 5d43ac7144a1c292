"""What the host can give, and which limit decides. Nothing is mapped here.

Every limit but that on locked memory is one for all ranks of a host: each has its part of it. What others take
between the reading and the mapping is not seen, so ranks read before any of them maps.
"""

import re
import resource
from dataclasses import dataclass
from typing import Final

from cpkv.errors import HostMemoryError
from cpkv.host.cgroups import counts_huge_pages_as_memory, huge_page_headrooms, memory_headrooms
from cpkv.host.files import THIS_SYSTEM, SystemFiles
from cpkv.host.placement import SHARED_FOLDER, Placement

_CAP_IPC_LOCK: Final = 1 << 14


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: where it stands, what it leaves now, and what to do about it."""

    name: str
    free_bytes: int
    hint: str
    is_per_process: bool = False

    def share_bytes(self, ranks_on_host: int) -> int:
        """Return what is left for one of so many ranks."""
        return self.free_bytes if self.is_per_process else self.free_bytes // ranks_on_host


@dataclass(frozen=True, slots=True)
class HostLimits:
    """All limits that were found for one kind of memory, for one of `ranks_on_host` ranks."""

    limits: tuple[Limit, ...]
    ranks_on_host: int = 1

    @property
    def deciding(self) -> Limit | None:
        """The one that leaves least; `None` if none is known."""
        return min(self.limits, key=lambda limit: limit.share_bytes(self.ranks_on_host), default=None)

    @property
    def available_bytes(self) -> int | None:
        """What this rank may take; `None` if no limit is known."""
        limit = self.deciding
        return None if limit is None else limit.share_bytes(self.ranks_on_host)

    def refusal(self, asked_bytes: int) -> str | None:
        """Return why so much does not fit, `None` if it does."""
        limit = self.deciding
        if limit is None or asked_bytes <= limit.share_bytes(self.ranks_on_host):
            return None
        share = limit.share_bytes(self.ranks_on_host)
        ranks = f"{self.ranks_on_host} rank{'' if self.ranks_on_host == 1 else 's'}"
        shared = "for this process" if limit.is_per_process else f"for {ranks} of this host"
        return (
            f"host memory: asked for {shown(asked_bytes)}, want at most {shown(share)}: "
            f"{limit.name} leaves {shown(limit.free_bytes)} {shared}; {limit.hint}"
        )

    def check(self, asked_bytes: int) -> None:
        """Refuse what does not fit.

        Raises:
            HostMemoryError: With the figures, the limit that decides, and who shares it.
        """
        refusal = self.refusal(asked_bytes)
        if refusal is not None:
            raise HostMemoryError(refusal)


def read_limits(
    placement: Placement, ranks_on_host: int = 1, *, is_locked: bool = False, files: SystemFiles = THIS_SYSTEM
) -> HostLimits:
    """Read what is left for memory of this kind; `is_locked` if it will be locked by `mlock`."""
    memory = files.fields("/proc/meminfo")
    limits: list[Limit] = []
    if placement.pages == "reserved":
        limits += _reserved_limits(files, memory)
    elif "MemAvailable" in memory:
        limits.append(Limit("MemAvailable in /proc/meminfo", memory["MemAvailable"], "free memory or ask for less"))
    if placement.pages != "reserved" or counts_huge_pages_as_memory(files):
        hint = "raise the limit of the container or ask for less"
        limits += [Limit(room.file, room.free_bytes, hint) for room in memory_headrooms(files)]
    if placement.kind == "shared":
        capacity = files.capacity(SHARED_FOLDER)
        if capacity is not None and capacity.free_bytes is not None:
            limits.append(Limit(SHARED_FOLDER, capacity.free_bytes, f"make {SHARED_FOLDER} larger or ask for less"))
    if is_locked:
        locked = lockable_bytes(files)
        if locked is not None:
            hint = "raise it (ulimit -l) or ask for less"
            limits.append(Limit("RLIMIT_MEMLOCK", locked, hint, is_per_process=True))
    return HostLimits(tuple(limits), ranks_on_host)


def huge_page_bytes(files: SystemFiles = THIS_SYSTEM) -> int | None:
    """Return the size of a reserved huge page, `None` where there are none."""
    return files.fields("/proc/meminfo").get("Hugepagesize") or None


def lockable_bytes(files: SystemFiles = THIS_SYSTEM) -> int | None:
    """Return how much more this process may lock by `mlock`, `None` if that has no limit."""
    most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if most == resource.RLIM_INFINITY or _may_lock_all(files):
        return None
    return max(most - files.fields("/proc/self/status").get("VmLck", 0), 0)


def _may_lock_all(files: SystemFiles) -> bool:
    for line in (files.text("/proc/self/status") or "").splitlines():
        if found := re.fullmatch(r"CapEff:\s*([0-9a-f]+)", line):
            return bool(int(found[1], 16) & _CAP_IPC_LOCK)
    return False


def _reserved_limits(files: SystemFiles, memory: dict[str, int]) -> list[Limit]:
    """Return what is left of reserved huge pages, which `MemAvailable` does not count."""
    page_bytes = huge_page_bytes(files) or 0
    # What others have mapped and not touched yet is free and promised.
    pages = max(memory.get("HugePages_Free", 0) - memory.get("HugePages_Rsvd", 0), 0)
    name = "HugePages_Free - HugePages_Rsvd in /proc/meminfo"
    limits = [Limit(name, pages * page_bytes, "reserve more huge pages (vm.nr_hugepages) or ask for less")]
    hint = "raise the limit of the container on huge pages or ask for less"
    return limits + [Limit(room.file, room.free_bytes, hint) for room in huge_page_headrooms(files, page_bytes)]


def shown(size_bytes: int) -> str:
    """Return a size for people, exact and readable."""
    size, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:  # noqa: PLR2004 - of the unit in front
            break
        size, unit = size / 1024, larger
    return f"{size_bytes:,} B" if unit == "B" else f"{size_bytes:,} B ({size:.2f} {unit})"
