"""What the kernel tells in files: `/proc`, `/sys`, and how full a file system is.

Whatever is missing, unreadable or not what was expected is `None` or empty: a kernel that tells less is no error.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_KIB: Final = 1024


@dataclass(frozen=True, slots=True)
class Capacity:
    """The size of a file system, and how much of it is free; `None` where it has no limit."""

    total_bytes: int | None
    free_bytes: int | None


class SystemFiles:
    """The files below a root, which is another one in tests."""

    def __init__(self, root: str | os.PathLike[str] = "/") -> None:
        """Read below `root`; names are given as they are below `/`."""
        self._root = Path(root)

    def path(self, name: str) -> Path:
        """Return where a file is."""
        return self._root / name.lstrip("/")

    def text(self, name: str) -> str | None:
        """Return the text of a file without space around it."""
        try:
            return self.path(name).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """Return the whole number that a file consists of."""
        try:
            return int(self.text(name) or "")
        except ValueError:
            return None

    def fields(self, name: str) -> dict[str, int]:
        """Return what lines such as `Name: 12 kB` or `name 12` say; those in kB as bytes."""
        fields = {}
        for line in (self.text(name) or "").splitlines():
            match line.split():
                case [key, number, *unit] if number.isdecimal():
                    fields[key.rstrip(":")] = int(number) * (_KIB if unit == ["kB"] else 1)
        return fields

    def names(self, folder: str) -> list[str]:
        """Return what a folder holds, in order."""
        try:
            return sorted(entry.name for entry in self.path(folder).iterdir())
        except OSError:
            return []

    def capacity(self, folder: str) -> Capacity | None:
        """Return how full the file system of a folder is."""
        try:
            status = os.statvfs(self.path(folder))
        except OSError:
            return None
        if status.f_blocks == 0:  # a tmpfs without a size
            return Capacity(None, None)
        return Capacity(status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize)


THIS_SYSTEM: Final = SystemFiles()
