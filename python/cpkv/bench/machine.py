"""What the figures were measured on."""

import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cpkv._core import __version__


def cores() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine() -> dict[str, str | int]:
    """Return date, processor, versions and command: what a number is nothing without."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": _processor(),
        "cores": cores(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "cpkv": __version__,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
