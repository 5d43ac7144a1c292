"""Which versions of CUDA cpkv was made for, and what is missing before them. Nothing else knows."""

from typing import Final, TypeAlias

from cpkv.doctor.check import State

CudaVersion: TypeAlias = tuple[int, int]

SUPPORTED: Final = "12.8, 12.9 or 13.x"
OLDEST: Final[CudaVersion] = (12, 0)
"""The oldest with the 64-bit writes of streams that acknowledgements are made of, under the name they have today."""
NEWEST_MAJOR: Final = 13

FEATURES: Final[dict[CudaVersion, str]] = {
    (12, 8): "batched copies (cudaMemcpyBatchAsync)",
}
"""What comes with a version and is done without before it."""


def judged(version: CudaVersion) -> tuple[State, str]:
    """Return what a version is good for, and what is missing."""
    major, _ = version
    if version < OLDEST:
        return "fail", f"older than {shown_version(OLDEST)}: the cuda engine does not run"
    missing = [feature for since, feature in FEATURES.items() if version < since]
    if missing:
        return "warn", f"missing: {', '.join(missing)}"
    if major > NEWEST_MAJOR:
        return "warn", f"newer than anything cpkv was tried with, which is {NEWEST_MAJOR}.x"
    return "ok", ""


def shown_version(version: CudaVersion) -> str:
    """Return a version as people write it."""
    return f"{version[0]}.{version[1]}"
