"""Host memory: how much a rank may take, and what it can be made of."""

import resource
from collections.abc import Iterator
from typing import Final

from cpkv.doctor.check import Check
from cpkv.host import SHARED_FOLDER, Placement, SystemFiles, huge_page_bytes, lockable_bytes, read_limits, shown
from cpkv.host.cgroups import memory_headrooms

LOG_BYTES: Final = 1 << 20
"""What the commit log of eight ranks takes."""
_SMALL_SHARED_BYTES: Final = 1 << 30


def memory_checks(ranks_on_host: int, files: SystemFiles) -> Iterator[Check]:
    """Look at everything that host memory is limited by."""
    yield _available(ranks_on_host, files)
    yield _control_group(files)
    yield _locked(files)
    yield _shared(files)
    yield _huge_pages(files)


def _available(ranks_on_host: int, files: SystemFiles) -> Check:
    limits = read_limits(Placement(), ranks_on_host, files=files)
    limit, share = limits.deciding, limits.available_bytes
    if limit is None or share is None:
        return Check("host memory", "warn", "unknown", "limits that can be read", "is /proc mounted?")
    ranks = f"for each of {ranks_on_host} ranks" if ranks_on_host > 1 else "for one rank"
    return Check("host memory", "ok", f"{shown(share)} {ranks}, decided by {limit.name}")


def _control_group(files: SystemFiles) -> Check:
    rooms = memory_headrooms(files)
    if not rooms:
        return Check("container limit", "ok", "none")
    least = min(rooms, key=lambda room: room.free_bytes)
    return Check("container limit", "ok", f"{shown(least.limit_bytes)} in {least.file}, {shown(least.free_bytes)} left")


def _locked(files: SystemFiles) -> Check:
    most, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if most == resource.RLIM_INFINITY:
        return Check("locked memory", "ok", "unlimited", "unlimited")
    if lockable_bytes(files) is None:
        return Check("locked memory", "ok", f"{shown(most)}, which does not hold for this user", "unlimited")
    hint = "CUDA pins memory in spite of it, network cards and mlock do not: ulimit -l unlimited"
    return Check("locked memory", "warn", shown(most), "unlimited", hint)


def _shared(files: SystemFiles) -> Check:
    capacity, wanted = files.capacity(SHARED_FOLDER), f"{shown(LOG_BYTES)} free for the commit log"
    if capacity is None:
        hint = f"mount a tmpfs on {SHARED_FOLDER}"
        return Check("shared memory", "fail", f"no {SHARED_FOLDER}", wanted, hint)
    if capacity.free_bytes is None or capacity.total_bytes is None:
        return Check("shared memory", "ok", "no limit of its own", wanted)
    seen = f"{shown(capacity.free_bytes)} free of {shown(capacity.total_bytes)}"
    if capacity.free_bytes < LOG_BYTES:
        return Check("shared memory", "fail", seen, wanted, f"make {SHARED_FOLDER} larger, or remove what is there")
    if capacity.total_bytes < _SMALL_SHARED_BYTES:
        hint = "only the log fits, and no host memory of kind 'shared': --shm-size or --ipc=host"
        return Check("shared memory", "warn", seen, f"{shown(_SMALL_SHARED_BYTES)} or more", hint)
    return Check("shared memory", "ok", seen, wanted)


def _huge_pages(files: SystemFiles) -> Check:
    memory, size = files.fields("/proc/meminfo"), huge_page_bytes(files)
    total, free = memory.get("HugePages_Total", 0), memory.get("HugePages_Free", 0)
    promised = memory.get("HugePages_Rsvd", 0)
    reserved = "none reserved"
    if total and size is not None:
        reserved = f"{total} of {shown(size)} reserved, {max(free - promised, 0)} of them to be had"
    setting = files.text("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = setting.partition("[")[2].partition("]")[0] or "unknown"
    seen, wanted = f"{reserved}; transparent: {chosen}", "some reserved, or transparent: madvise or always"
    if total or chosen in ("madvise", "always"):
        return Check("huge pages", "ok", seen, wanted)
    hint = "small pages are touched and pinned more slowly: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return Check("huge pages", "warn", seen, wanted, hint)
