"""The calls of the CUDA runtime that torch does not pass on, made by the library that torch has loaded."""

import ctypes
from pathlib import Path
from typing import Final

from cpkv.errors import ConfigError, CopyError

MEMCPY_DEFAULT: Final = 4
"""Which way is seen from the addresses."""
REGISTER_PORTABLE: Final = 1
REGISTER_MAPPED: Final = 2
_NAMES: Final = ("libcudart.so.13", "libcudart.so.12", "libcudart.so")
_MAPS: Final = Path("/proc/self/maps")


class CudaRuntime:
    """The loaded library.

    Raises:
        ConfigError: There is none.
    """

    def __init__(self) -> None:
        self._library = library = _loaded()
        self._copy = library.cudaMemcpyAsync
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
        self._register = library.cudaHostRegister
        self._register.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._unregister = library.cudaHostUnregister
        self._unregister.argtypes = (ctypes.c_void_p,)

    def copy(self, destination: int, source: int, size: int, stream: int) -> None:
        """Queue `cudaMemcpyAsync`.

        Raises:
            CopyError: The runtime refuses.
        """
        code = self._copy(destination, source, size, MEMCPY_DEFAULT, stream)
        if code:
            message = f"cudaMemcpyAsync of {size} bytes returned {code}"
            raise CopyError(message)

    def register(self, address: int, size: int) -> None:
        """Pin memory.

        Raises:
            ConfigError: The runtime refuses.
        """
        code = self._register(address, size, REGISTER_PORTABLE | REGISTER_MAPPED)
        if code:
            message = f"cudaHostRegister of {size} bytes returned {code}"
            raise ConfigError(message)

    def unregister(self, address: int) -> None:
        """Let memory go that was pinned."""
        self._unregister(address)


def _loaded() -> ctypes.CDLL:
    mapped = []
    if _MAPS.exists():
        lines = _MAPS.read_text(encoding="utf-8", errors="replace").splitlines()
        mapped = [line.split(maxsplit=5)[5] for line in lines if "libcudart" in line]
    for name in (*dict.fromkeys(mapped), *_NAMES):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    message = f"no CUDA runtime is loaded or found, want one of {', '.join(_NAMES)}"
    raise ConfigError(message)
