"""KV-cache manager for long-context LLM prefill.

`CacheManager` keeps one prefix index over device pages and host slots. A request goes through it
in a few calls: `match` what is cached, `lock` it, make room with `evict_for`, `allocate` pages,
`restore` what is on the host only, `insert` what the forward has filled, and release the lease.

The index, the pools and the eviction are Rust (`cpkv._core`); this package adds the trace replay
(`cpkv.replay`) and the command line (`cpkv.cli`).
"""

import warnings
from typing import TYPE_CHECKING, Any

from cpkv._core import (
    IS_DEBUG_BUILD,
    POLICIES,
    AckWords,
    CacheEvent,
    CacheManager,
    CommitLog,
    Hit,
    Inserted,
    Lease,
    PageIds,
    PageTable,
    Restored,
    Stats,
    TickReport,
    Transaction,
    __version__,
)
from cpkv.errors import (
    ConfigError,
    CopyError,
    CpkvError,
    DirectWriteError,
    DriverError,
    HostMemoryError,
    InputError,
    InputTypeError,
    IntegrityError,
    LeaseError,
    LogError,
    PageError,
    RankError,
    RegistrationError,
    RestoreError,
    TraceError,
    TransactionError,
    UsageError,
)
from cpkv.types import Int64s, Namespace

if TYPE_CHECKING:
    from cpkv.config import CacheConfig

__all__ = [
    "POLICIES",
    "AckWords",
    "CacheConfig",
    "CacheEvent",
    "CacheManager",
    "CommitLog",
    "ConfigError",
    "CopyError",
    "CpkvError",
    "DirectWriteError",
    "DriverError",
    "Hit",
    "HostMemoryError",
    "InputError",
    "InputTypeError",
    "Inserted",
    "Int64s",
    "IntegrityError",
    "Lease",
    "LeaseError",
    "LogError",
    "Namespace",
    "PageError",
    "PageIds",
    "PageTable",
    "RankError",
    "RegistrationError",
    "RestoreError",
    "Restored",
    "Stats",
    "TickReport",
    "TraceError",
    "Transaction",
    "TransactionError",
    "UsageError",
    "__version__",
]

if IS_DEBUG_BUILD:
    warnings.warn("cpkv is a debug build: many times slower than a release build", RuntimeWarning, stacklevel=2)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever is asked for
    """Import `CacheConfig` when it is asked for: it brings in more than everything else together."""
    if name != "CacheConfig":
        message = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(message)
    from cpkv.config import CacheConfig  # noqa: PLC0415 - see above

    globals()[name] = CacheConfig
    return CacheConfig
