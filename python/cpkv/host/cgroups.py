"""What control groups leave: every level from the own group to the one that is mounted, of version 1 and 2.

A limit of any level holds, so each is told; a container often sees its own group as the root. Page cache that
nobody has used lately is counted as room: the kernel gives it up before it kills.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from cpkv.host.files import SystemFiles

_NEWER: Final = 2
_UNLIMITED: Final = 1 << 60
"""Version 1 has no word for "no limit" but the largest number of pages."""


@dataclass(frozen=True, slots=True)
class Headroom:
    """What one file of one group leaves."""

    file: str
    limit_bytes: int
    free_bytes: int


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    root: str
    folder: str
    options: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Counter:
    """A limit, what counts against it, and the field of `memory.stat` that is reclaimable."""

    limit: str
    current: str
    reclaimable: str = ""


def memory_headrooms(files: SystemFiles) -> list[Headroom]:
    """Return what the memory controller leaves; `memory.high` too, beyond which a process is stopped for long."""
    counters = {
        1: (_Counter("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),),
        2: (
            _Counter("memory.max", "memory.current", "inactive_file"),
            _Counter("memory.high", "memory.current", "inactive_file"),
        ),
    }
    return list(_headrooms(files, "memory", counters))


def huge_page_headrooms(files: SystemFiles, page_bytes: int) -> list[Headroom]:
    """Return what the controller of reserved huge pages leaves; a page too many would be a SIGBUS."""
    name = f"hugetlb.{_size_name(page_bytes)}"
    counters = {
        1: tuple(
            _Counter(f"{kind}.limit_in_bytes", f"{kind}.usage_in_bytes") for kind in (name, f"{name}.rsvd")
        ),
        2: tuple(_Counter(f"{kind}.max", f"{kind}.current") for kind in (name, f"{name}.rsvd")),
    }  # fmt: skip
    return list(_headrooms(files, "hugetlb", counters))


def counts_huge_pages_as_memory(files: SystemFiles) -> bool:
    """Whether reserved huge pages count against the memory controller, a choice at the mount of version 2."""
    return any("memory_hugetlb_accounting" in mount.options for mount in _mounts(files, "memory"))


def _headrooms(
    files: SystemFiles, controller: str, counters: dict[int, tuple[_Counter, ...]]
) -> Iterator[Headroom]:  # fmt: skip
    for version, folder in _levels(files, controller):
        for counter in counters[version]:
            limit = files.number(f"{folder}/{counter.limit}")
            if limit is None or limit >= _UNLIMITED:  # "max" is no number
                continue
            used = files.number(f"{folder}/{counter.current}") or 0
            if counter.reclaimable:
                used -= files.fields(f"{folder}/memory.stat").get(counter.reclaimable, 0)
            yield Headroom(f"{folder}/{counter.limit}", limit, max(limit - max(used, 0), 0))


def _levels(files: SystemFiles, controller: str) -> Iterator[tuple[int, str]]:
    """Give version and folder of the own group and its ancestors, in every hierarchy of a controller."""
    for mount in _mounts(files, controller):
        group = _own_group(files, mount.version, controller)
        top = PurePosixPath(mount.folder)
        folder = top
        if group is not None and ".." not in group.parts and group.is_relative_to(mount.root):
            folder = top / group.relative_to(mount.root)
        # Else the group lies outside of what is mounted here, and the mount is the nearest that can be seen.
        while True:
            yield mount.version, str(folder)
            if folder == top:
                break
            folder = folder.parent


def _own_group(files: SystemFiles, version: int, controller: str) -> PurePosixPath | None:
    for line in (files.text("/proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        # The one hierarchy of version 2 has number 0 and names no controllers.
        names = ["0", ""] if version == _NEWER else [hierarchy, controller]
        if hierarchy == names[0] and names[1] in controllers.split(","):
            return PurePosixPath(path)
    return None


def _mounts(files: SystemFiles, controller: str) -> Iterator[_Mount]:
    for line in (files.text("/proc/self/mountinfo") or "").splitlines():
        about_mount, _, about_system = line.partition(" - ")
        here, system = about_mount.split(), about_system.split()
        if len(here) < 5 or len(system) < 3:  # noqa: PLR2004 - the fields read below
            continue
        options = frozenset(system[2].split(","))
        if system[0] == "cgroup2":
            yield _Mount(_NEWER, _unescaped(here[3]), _unescaped(here[4]), options)
        elif system[0] == "cgroup" and controller in options:
            yield _Mount(1, _unescaped(here[3]), _unescaped(here[4]), options)


def _unescaped(name: str) -> str:
    """Undo how the kernel writes space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), name)


def _size_name(size_bytes: int) -> str:
    for shift, name in ((30, "GB"), (20, "MB")):
        if size_bytes >> shift:
            return f"{size_bytes >> shift}{name}"
    return f"{size_bytes >> 10}KB"
