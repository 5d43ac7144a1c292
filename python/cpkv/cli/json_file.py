"""A file that a command writes: there when it is whole, and never before."""

import json
import os
import tempfile
from pathlib import Path

from cpkv.errors import InputError


class JsonFile:
    """A file to be written at the end of long work, checked at its start.

    A regular file appears, or is replaced, in one step. What is no regular file (a pipe, a device)
    is written to. A link is followed.
    """

    def __init__(self, name: str, *, source: str | None, option: str = "--json") -> None:
        """Refuse before the work what could not be written after it.

        Args:
            name: The file.
            source: A file that is read in the same work, and must not be replaced.
            option: Which option has named it.

        Raises:
            InputError: The file cannot be written, or is the source.
        """
        self._name = name
        self._option = option
        self._path = Path(os.path.realpath(name))
        reason = self._refusal(source)
        if reason is not None:
            message = f"{option}: {reason}"
            raise InputError(message)

    def write(self, content: dict[str, object]) -> None:
        """Write the content as JSON.

        Raises:
            InputError: The file cannot be written after all.
        """
        self.write_bytes((json.dumps(content, indent=2) + "\n").encode())

    def write_bytes(self, content: bytes) -> None:
        """Write the content as it is.

        Raises:
            InputError: The file cannot be written after all.
        """
        try:
            if self._is_replaced():
                self._replace(content)
            else:
                self._path.write_bytes(content)
        except OSError as error:
            message = f"{self._option}: {self._name}: {error.strerror}, want a file that can be written"
            raise InputError(message) from None

    def _is_replaced(self) -> bool:
        return self._path.is_file() or not self._path.exists()

    def _refusal(self, source: str | None) -> str | None:
        path, folder = self._path, self._path.parent
        if path.is_dir():
            return f"{self._name} is a folder, want a file"
        if not folder.is_dir():
            return f"{folder} is no folder, want one that exists"
        if source is not None and path.exists() and Path(source).exists() and path.samefile(source):
            return f"{self._name} is the trace, want another file"
        if path.exists() and not os.access(path, os.W_OK):
            return f"{self._name} cannot be written, want a file that can"
        if self._is_replaced() and not os.access(folder, os.W_OK):
            return f"{folder} cannot be written, want a folder that can"
        return None

    def _replace(self, content: bytes) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=f".{self._path.name}.")
        part = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            part.chmod(self._mode())
            part.replace(self._path)
        finally:
            part.unlink(missing_ok=True)

    def _mode(self) -> int:
        """The mode of the file that is replaced, or of any new file."""
        if self._path.exists():
            return self._path.stat().st_mode & 0o7777
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
