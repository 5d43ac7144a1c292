"""Make the torch of this interpreter's environment importable without NVIDIA's libraries.

    .venv-torch/bin/python tools/stand_in_cuda.py          # needs cc, nm and readelf

PyPI's torch for Linux is a CUDA build. It links cuBLAS, cuDNN, NCCL and others, 3 GB of them, and does
not import where one is missing, though tests on the CPU call none of their functions. This puts a small
library of the same name, with the same functions, beside torch for each one that is missing. All of
these functions return 1, an error in every CUDA library, so torch sees a machine without a GPU.

What is missing and what it has to contain is read from torch's own files; no list is kept here.
"""

import ctypes
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = Path(sysconfig.get_paths()["purelib"]) / "torch" / "lib"
LOADED_BY_IMPORT = ("libtorch_global_deps.so", "libtorch_python.so")
"""What `import torch` opens. Everything else is opened because one of these needs it."""
MARK = "cpkv_stand_in"
"""A function that every stand-in has and nothing else."""


def run(*command: str | Path) -> str:
    """Run a command and return what it prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603 - our own


def remove_stand_ins() -> None:
    """Remove what an earlier run, perhaps an interrupted one, has left."""
    for library in LIBRARIES.glob("lib*.so*"):
        if library.stat().st_size < 1 << 20 and MARK in run("nm", "--dynamic", library):
            library.unlink()


def open_outside(name: str) -> ctypes.CDLL | None:
    """Open a library that is not torch's: from one of NVIDIA's packages or where the loader looks."""
    packaged = sorted((LIBRARIES.parents[1] / "nvidia").rglob(name))
    try:
        return ctypes.CDLL(str(packaged[0]) if packaged else name)
    except OSError:
        return None


def walk() -> tuple[list[Path], list[ctypes.CDLL], list[str]]:
    """Follow what the import opens: torch's own libraries, those from outside, and the missing names."""
    own: list[Path] = []
    outside = [ctypes.CDLL(None)]  # what Python brings
    missing: list[str] = []
    waiting = list(LOADED_BY_IMPORT)
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        file = LIBRARIES / name
        if file.is_file():
            own.append(file)
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "--dynamic", file)))
            waiting.extend(needed - seen)
            seen |= needed
        elif library := open_outside(name):
            outside.append(library)
        else:
            missing.append(name)
    return own, outside, sorted(missing)


def versions_of(library: Path) -> Iterator[tuple[str, str]]:
    """Tell which version of symbols a library wants from which other library."""
    provider = ""
    for line in run("readelf", "--version-info", "--wide", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            provider = found[1]
        if found := re.search(r"Name: (\S+)", line):
            yield provider, found[1]


def wanted_symbols(own: list[Path], outside: list[ctypes.CDLL]) -> dict[str, set[str]]:
    """Collect the functions that torch wants from elsewhere, by symbol version ("" for none)."""
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    defined: set[str] = set()
    for library in own:
        for line in run("nm", "--dynamic", "--format=posix", library).splitlines():
            symbol, kind = line.split()[:2]
            name, _, version = symbol.partition("@")
            if kind == "U":
                wanted[version].add(name)
            else:
                defined.add(name)
    wanted[""] = {name for name in wanted[""] - defined if not any(hasattr(library, name) for library in outside)}
    return wanted


def build(name: str, version: str, symbols: set[str], folder: Path) -> None:
    """Compile a library `name` whose functions all return 1."""
    source, script = folder / "stand_in.c", folder / "stand_in.map"
    source.write_text("".join(f"int {symbol}(void) {{ return 1; }}\n" for symbol in sorted({MARK, *symbols})), "ascii")
    script.write_text(f"{version} {{ *; }};\n", "ascii")
    versioned = [f"-Wl,--version-script={script}"] if version else []
    run("cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{name}", *versioned, "-o", LIBRARIES / name, source)


def main() -> None:
    """Build all that is missing."""
    absent = [tool for tool in ("cc", "nm", "readelf") if not shutil.which(tool)]
    if absent:
        sys.exit(f"stand_in_cuda: {', '.join(absent)} missing: install a C compiler and binutils")
    if not LIBRARIES.is_dir():
        sys.exit(f"stand_in_cuda: no torch at {LIBRARIES}: run me with the Python of its environment")
    remove_stand_ins()
    own, outside, missing = walk()
    version_of = dict(pair for library in own for pair in versions_of(library))
    symbols = wanted_symbols(own, outside)
    with tempfile.TemporaryDirectory() as folder:
        for name in missing:
            # Symbols without a version do not tell whose they are: every library without versions gets them all.
            version = version_of.get(name, "")
            build(name, version, symbols[version], Path(folder))
    print(f"stand-ins beside torch: {', '.join(missing) or 'none needed'}")


if __name__ == "__main__":
    main()
