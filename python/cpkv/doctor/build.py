"""Python, and how cpkv was built."""

import platform
import sys
from collections.abc import Iterator

from cpkv._core import IS_DEBUG_BUILD, __version__
from cpkv.doctor.check import Check


def build_checks() -> Iterator[Check]:
    """Look at what runs here."""
    seen = f"{platform.python_implementation()} {platform.python_version()} on {sys.platform} {platform.machine()}"
    yield Check(
        "python",
        "ok" if sys.platform == "linux" else "warn",
        seen,
        "Linux",
        "" if sys.platform == "linux" else "cpkv is made for Linux",
    )
    if IS_DEBUG_BUILD:
        hint = "build with --release: a debug build is many times slower"
        yield Check("cpkv", "warn", f"{__version__}, debug build", "a release build", hint)
    else:
        yield Check("cpkv", "ok", f"{__version__}, release build", "a release build")
