"""Numbers and layouts of the CUDA driver's interface, as `cuda.h` has them.

Only what this package uses. Enumerations are C `int`s, handles are pointers, device addresses and sizes
have 64 bits.
"""

import ctypes
from typing import Final

SUCCESS: Final = 0
DEINITIALIZED: Final = 4
"""The process is ending, and the driver has let go of everything."""
NOT_READY: Final = 600
HOST_MEMORY_ALREADY_REGISTERED: Final = 712
STREAM_CAPTURE_ERRORS: Final = range(900, 909)
"""What is said about calls that do not go together with a capture into a graph."""

OLDEST_VERSION: Final = 12_000
"""Of the driver, as 1000 · major + 10 · minor. The functions that are bound have had their form since then."""
BATCH_VERSION: Final = 12_080
"""Has the batch copy, with a place for the index of the copy that failed."""
BATCH_WITHOUT_INDEX_VERSION: Final = 13_000
"""Has the batch copy without that place."""

LEGACY_STREAM_SYMBOLS: Final = 1
"""Functions for which the handle 0 is the legacy default stream, as torch has it."""

FUNCTION_REGISTERS: Final = 4
POINTER_RANGE_START: Final = 11
POINTER_RANGE_SIZE: Final = 12

ATTRIBUTE_MAX_PITCH: Final = 11
ATTRIBUTE_HOST_POINTERS_IN_KERNELS: Final = 91
"""Kernels may use the host's own address of registered memory."""
ATTRIBUTE_64_BIT_STREAM_WRITES: Final = 122

STREAM_NON_BLOCKING: Final = 1
EVENT_DEFAULT: Final = 0
EVENT_DISABLE_TIMING: Final = 2
STREAM_WRITE_WITH_FENCE: Final = 0
"""What the stream has written before is seen before the word is."""
CAPTURE_MODE_RELAXED: Final = 2
HOST_MEMORY_PORTABLE: Final = 1
HOST_MEMORY_DEVICE_MAP: Final = 2

MEMORY_HOST: Final = 1
MEMORY_DEVICE: Final = 2
SOURCE_IN_STREAM_ORDER: Final = 1


class CopyAttributes(ctypes.Structure):
    """`CUmemcpyAttributes`: hints of locations are for managed memory only, and stay 0."""

    _fields_ = (
        ("source_access_order", ctypes.c_int),
        ("source_location_type", ctypes.c_int),
        ("source_location_id", ctypes.c_int),
        ("destination_location_type", ctypes.c_int),
        ("destination_location_id", ctypes.c_int),
        ("flags", ctypes.c_uint),
    )


class Copy2D(ctypes.Structure):
    """`CUDA_MEMCPY2D`: `height` lines of `width` bytes, each side with a pitch."""

    _fields_ = (
        ("source_x", ctypes.c_size_t),
        ("source_y", ctypes.c_size_t),
        ("source_memory", ctypes.c_int),
        ("source_host", ctypes.c_void_p),
        ("source_device", ctypes.c_uint64),
        ("source_array", ctypes.c_void_p),
        ("source_pitch", ctypes.c_size_t),
        ("destination_x", ctypes.c_size_t),
        ("destination_y", ctypes.c_size_t),
        ("destination_memory", ctypes.c_int),
        ("destination_host", ctypes.c_void_p),
        ("destination_device", ctypes.c_uint64),
        ("destination_array", ctypes.c_void_p),
        ("destination_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )
