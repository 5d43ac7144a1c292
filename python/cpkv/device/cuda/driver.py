"""The functions of the CUDA driver, found by name and version in `libcuda.so.1`.

Nothing is loaded before `load_driver`. Each function returns the driver's code: 0, or an error that the
caller has to look at. The interpreter lets other threads run during a call.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Final

from cpkv.device.cuda.abi import (
    BATCH_VERSION,
    BATCH_WITHOUT_INDEX_VERSION,
    LEGACY_STREAM_SYMBOLS,
    OLDEST_VERSION,
)
from cpkv.errors import ConfigError

LIBRARY: Final = "libcuda.so.1"
Call = Callable[..., int]

_ADDRESS = ctypes.c_void_p
_HANDLE = ctypes.c_void_p
_DEVICE_ADDRESS = ctypes.c_uint64
_INT = ctypes.c_int
_UINT = ctypes.c_uint
_SIZE = ctypes.c_size_t

ARGUMENTS: Final[dict[str, tuple[type, ...]]] = {
    "cuGetErrorName": (_INT, _ADDRESS),
    "cuGetErrorString": (_INT, _ADDRESS),
    "cuDeviceGet": (_ADDRESS, _INT),
    "cuDeviceGetName": (_ADDRESS, _INT, _INT),
    "cuDeviceGetPCIBusId": (_ADDRESS, _INT, _INT),
    "cuDeviceGetAttribute": (_ADDRESS, _INT, _INT),
    "cuDevicePrimaryCtxRetain": (_ADDRESS, _INT),
    "cuDevicePrimaryCtxRelease": (_INT,),
    "cuCtxGetCurrent": (_ADDRESS,),
    "cuCtxGetDevice": (_ADDRESS,),
    "cuCtxPushCurrent": (_HANDLE,),
    "cuCtxPopCurrent": (_ADDRESS,),
    "cuCtxGetStreamPriorityRange": (_ADDRESS, _ADDRESS),
    "cuThreadExchangeStreamCaptureMode": (_ADDRESS,),
    "cuStreamCreateWithPriority": (_ADDRESS, _UINT, _INT),
    "cuStreamDestroy": (_HANDLE,),
    "cuStreamQuery": (_HANDLE,),
    "cuStreamSynchronize": (_HANDLE,),
    "cuStreamWaitEvent": (_HANDLE, _HANDLE, _UINT),
    "cuStreamIsCapturing": (_HANDLE, _ADDRESS),
    "cuStreamWriteValue64": (_HANDLE, _DEVICE_ADDRESS, ctypes.c_uint64, _UINT),
    "cuEventCreate": (_ADDRESS, _UINT),
    "cuEventDestroy": (_HANDLE,),
    "cuEventRecord": (_HANDLE, _HANDLE),
    "cuEventQuery": (_HANDLE,),
    "cuEventSynchronize": (_HANDLE,),
    "cuEventElapsedTime": (_ADDRESS, _HANDLE, _HANDLE),
    "cuMemHostRegister": (_ADDRESS, _SIZE, _UINT),
    "cuMemHostUnregister": (_ADDRESS,),
    "cuMemHostGetDevicePointer": (_ADDRESS, _ADDRESS, _UINT),
    "cuPointerGetAttribute": (_ADDRESS, _INT, _DEVICE_ADDRESS),
    "cuMemHostAlloc": (_ADDRESS, _SIZE, _UINT),
    "cuMemFreeHost": (_ADDRESS,),
    "cuMemAlloc": (_ADDRESS, _SIZE),
    "cuMemFree": (_DEVICE_ADDRESS,),
    "cuMemcpyAsync": (_DEVICE_ADDRESS, _DEVICE_ADDRESS, _SIZE, _HANDLE),
    "cuMemcpy2DAsync": (_ADDRESS, _HANDLE),
    "cuModuleLoadData": (_ADDRESS, _ADDRESS),
    "cuModuleUnload": (_HANDLE,),
    "cuModuleGetFunction": (_ADDRESS, _HANDLE, ctypes.c_char_p),
    "cuFuncGetAttribute": (_ADDRESS, _INT, _HANDLE),
    "cuLaunchKernel": (_HANDLE, *[_UINT] * 7, _HANDLE, _ADDRESS, _ADDRESS),
}
"""The functions, in the form that `OLDEST_VERSION` gave them, and their arguments."""

_BATCH: Final = (_ADDRESS, _ADDRESS, _ADDRESS, _SIZE, _ADDRESS, _ADDRESS, _SIZE)


class Driver:
    """A loaded and initialised driver.

    Args:
        library: What is loaded.

    Raises:
        ConfigError: There is no driver, no device, or the driver is too old.
    """

    version: int
    """The version of CUDA that the driver has, as 1000 · major + 10 · minor."""
    cuMemcpyBatchAsync: Call | None
    """The batch copy in the form of `version`; `None` if the driver has none."""

    cuGetErrorName: Call
    cuGetErrorString: Call
    cuDeviceGet: Call
    cuDeviceGetName: Call
    cuDeviceGetPCIBusId: Call
    cuDeviceGetAttribute: Call
    cuDevicePrimaryCtxRetain: Call
    cuDevicePrimaryCtxRelease: Call
    cuCtxGetCurrent: Call
    cuCtxGetDevice: Call
    cuCtxPushCurrent: Call
    cuCtxPopCurrent: Call
    cuCtxGetStreamPriorityRange: Call
    cuThreadExchangeStreamCaptureMode: Call
    cuStreamCreateWithPriority: Call
    cuStreamDestroy: Call
    cuStreamQuery: Call
    cuStreamSynchronize: Call
    cuStreamWaitEvent: Call
    cuStreamIsCapturing: Call
    cuStreamWriteValue64: Call
    cuEventCreate: Call
    cuEventDestroy: Call
    cuEventRecord: Call
    cuEventQuery: Call
    cuEventSynchronize: Call
    cuEventElapsedTime: Call
    cuMemHostRegister: Call
    cuMemHostUnregister: Call
    cuMemHostGetDevicePointer: Call
    cuPointerGetAttribute: Call
    cuMemHostAlloc: Call
    cuMemFreeHost: Call
    cuMemAlloc: Call
    cuMemFree: Call
    cuMemcpyAsync: Call
    cuMemcpy2DAsync: Call
    cuModuleLoadData: Call
    cuModuleUnload: Call
    cuModuleGetFunction: Call
    cuFuncGetAttribute: Call
    cuLaunchKernel: Call

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            message = (
                f"the CUDA driver cannot be loaded ({error}): the engine 'cuda' needs an NVIDIA GPU and its driver"
            )
            raise ConfigError(message) from error
        code = self._library.cuInit(0)
        if code:
            message = f"the CUDA driver cannot be initialised: cuInit returned {code} (100: there is no device)"
            raise ConfigError(message)
        version = ctypes.c_int()
        code = self._library.cuDriverGetVersion(ctypes.byref(version))
        self.version = version.value
        if code or self.version < OLDEST_VERSION:
            message = f"the driver has CUDA {self.version} (cuDriverGetVersion returned {code}), want {OLDEST_VERSION}"
            raise ConfigError(message)
        for name, arguments in ARGUMENTS.items():
            setattr(self, name, self._bind(name, OLDEST_VERSION, arguments))
        self.cuMemcpyBatchAsync = self._bind_batch()

    def _bind_batch(self) -> Call | None:
        if self.version >= BATCH_WITHOUT_INDEX_VERSION:
            return self._bind("cuMemcpyBatchAsync", BATCH_WITHOUT_INDEX_VERSION, (*_BATCH, _HANDLE))
        if self.version >= BATCH_VERSION:
            return self._bind("cuMemcpyBatchAsync", BATCH_VERSION, (*_BATCH, _ADDRESS, _HANDLE))
        return None

    def _bind(self, name: str, version: int, arguments: tuple[type, ...]) -> Call:
        """Find a function in the form that a version of CUDA gave it, whatever came later."""
        found, status = ctypes.c_void_p(), ctypes.c_int()
        code = self._library.cuGetProcAddress_v2(
            name.encode(),
            ctypes.byref(found),
            ctypes.c_int(version),
            ctypes.c_uint64(LEGACY_STREAM_SYMBOLS),
            ctypes.byref(status),
        )
        if code or not found.value:
            message = f"the driver (CUDA {self.version}) has no {name} of CUDA {version}: code {code}, {status.value}"
            raise ConfigError(message)
        return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(found.value)


@cache
def load_driver() -> Driver:
    """Load the driver, once in a process.

    Raises:
        ConfigError: There is no driver, no device, or the driver is too old.
    """
    return Driver()
