"""What `import cpkv` costs beyond `import numpy`, in processes of its own."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from cpkv.bench.figure import Figure
from cpkv.bench.settings import BenchSettings
from cpkv.errors import CpkvError

TARGET_MS: Final = 30.0
_CODE: Final = """
import numpy
from time import process_time_ns
started = process_time_ns()
import cpkv
print(process_time_ns() - started)
"""


def measure_import(settings: BenchSettings) -> Iterator[Figure]:
    """Import it in a new process for each repeat."""
    samples = tuple(_import_ms() for _ in range(settings.repeats))
    yield Figure(name="import cpkv, after numpy", unit="ms", samples=samples, target=TARGET_MS)


def _import_ms() -> float:
    # The package of this process: what is in the working directory is none of it.
    done = subprocess.run(  # noqa: S603 - this very interpreter
        [sys.executable, "-P", "-c", _CODE], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode:
        message = f"import cpkv: {(done.stderr.splitlines() or ['ended without a word'])[-1]}"
        raise CpkvError(message)
    return int(done.stdout) / 1e6
