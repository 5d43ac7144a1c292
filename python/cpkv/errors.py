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
    "CpkvError",
    "InputError",
    "InputTypeError",
    "IntegrityError",
    "LeaseError",
    "LogError",
    "PageError",
    "RankError",
    "RestoreError",
    "TraceError",
    "TransactionError",
    "UsageError",
]


class TraceError(CpkvError, ValueError):
    """A request trace cannot be read; the message names file, line, value seen and value wanted."""
