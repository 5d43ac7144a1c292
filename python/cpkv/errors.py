"""The exceptions: everything that cpkv raises on purpose is a `CpkvError`."""

from cpkv._core import (
    ConfigError,
    CpkvError,
    InputError,
    InputTypeError,
    IntegrityError,
    LeaseError,
    LogError,
    PageError,
    RankError,
    RestoreError,
    TransactionError,
    UsageError,
)

__all__ = [
    "ConfigError",
    "CopyError",
    "CpkvError",
    "DirectWriteError",
    "DriverError",
    "HostMemoryError",
    "InputError",
    "InputTypeError",
    "IntegrityError",
    "LeaseError",
    "LogError",
    "PageError",
    "RankError",
    "RegistrationError",
    "RestoreError",
    "TraceError",
    "TransactionError",
    "UsageError",
]


class TraceError(CpkvError, ValueError):
    """A request trace cannot be read; the message names file, line, value seen and value wanted."""


class CopyError(CpkvError, RuntimeError):
    """A copy between device and host could not be queued, or has failed; the message says which."""


class DirectWriteError(CpkvError, RuntimeError):
    """A context-parallel rank may not write what it computes directly; the message names the first reason."""


class HostMemoryError(CpkvError, MemoryError):
    """Host memory does not fit, or cannot be had; the message has the figures and the limit that decides."""


class RegistrationError(CpkvError, RuntimeError):
    """Host memory cannot be registered with the device, or was not taken back by it."""


class DriverError(CpkvError, RuntimeError):
    """The CUDA driver is missing, or a call of it has failed.

    Attributes:
        code: What the call returned; `None` if there was none.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        """Say what has failed."""
        super().__init__(message)
        self.code = code
