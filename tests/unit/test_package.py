"""The shape of the package: what imports what, and what may be told apart."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cpkv

PACKAGE = Path(cpkv.__file__).parent

ALLOWED = {
    "_core": {"types"},
    "types": set(),
    "errors": {"_core"},
    "config": {"_core", "errors", "types"},
    "": {"_core", "config", "errors", "types"},
    "layout": {"_core", "errors", "types"},
    "device": {"_core", "errors", "types", "layout"},
    "drivers": {"_core", "errors", "types", "layout", "device", "host"},
    "host": {"errors", "types"},
    "cp": {"errors", "types"},
    "doctor": {"_core", "errors", "types", "host", "device", "sglang"},
    "replay": {"_core", "errors", "types"},
    "kernels": {"errors", "types", "layout"},
    "engine": {"_core", "errors", "types", "layout", "device", "drivers", "cp"},
    "demo": {"_core", "errors", "types", "cp", "device", "engine"},
    "bench": {"_core", "errors", "types", "replay", "cp", "layout", "device", "drivers", "host"},
    "sglang": {"_core", "", "errors", "types", "layout", "device", "drivers"},
    "cli": {"_core", "errors", "types", "replay", "bench", "doctor", "demo"},
    "__main__": {"cli"},
}
"""Each part of the package, and the parts that it may import besides its own."""


def part_of(module):
    """`cpkv.replay.trace` is in part `replay`; `cpkv` itself in the empty one."""
    return module.removeprefix("cpkv").removeprefix(".").split(".")[0]


def imported_modules(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield node.module


def source_files():
    return sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.pyi")])


@pytest.mark.parametrize("file", source_files(), ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_downwards(file):
    parts = [part for part in file.relative_to(PACKAGE).with_suffix("").parts if part != "__init__"]
    part = parts[0] if parts else ""
    for module in imported_modules(file):
        if module == "cpkv" or module.startswith("cpkv."):
            assert part_of(module) in ALLOWED[part] | {part}, f"{part or 'cpkv'} imports {module}"


def test_import_needs_little():
    """`import cpkv` brings in neither the command line's packages nor anything heavy."""
    code = "import sys, cpkv; print(sorted({name.split('.')[0] for name in sys.modules}))"
    modules = ast.literal_eval(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert {"typer", "rich", "torch", "triton", "matplotlib"}.isdisjoint(modules)


def test_what_is_slow_to_import_is_imported_when_it_is_asked_for():
    code = (
        "import sys, cpkv; print('cpkv.config' in sys.modules, cpkv.CacheConfig().lanes, 'cpkv.config' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False 1 True\n"
    with pytest.raises(AttributeError, match="module 'cpkv' has no attribute 'CacheConfi'"):
        cpkv.CacheConfi  # noqa: B018 - it is the look-up


def test_every_exception_is_a_cpkv_error_and_a_builtin():
    builtins = {
        cpkv.ConfigError: ValueError,
        cpkv.InputError: ValueError,
        cpkv.InputTypeError: TypeError,
        cpkv.PageError: ValueError,
        cpkv.LeaseError: RuntimeError,
        cpkv.UsageError: RuntimeError,
        cpkv.TransactionError: RuntimeError,
        cpkv.RestoreError: RuntimeError,
        cpkv.LogError: RuntimeError,
        cpkv.RankError: RuntimeError,
        cpkv.IntegrityError: RuntimeError,
        cpkv.TraceError: ValueError,
        cpkv.CopyError: RuntimeError,
        cpkv.DirectWriteError: RuntimeError,
        cpkv.HostMemoryError: MemoryError,
        cpkv.RegistrationError: RuntimeError,
        cpkv.DriverError: RuntimeError,
    }
    errors = {value for value in vars(cpkv).values() if isinstance(value, type) and issubclass(value, Exception)}
    assert errors == {cpkv.CpkvError, *builtins}
    for error, builtin in builtins.items():
        assert issubclass(error, cpkv.CpkvError)
        assert issubclass(error, builtin)
        assert error.__doc__


def test_the_public_names_exist():
    assert sorted(cpkv.__all__) == sorted(set(cpkv.__all__))
    for name in cpkv.__all__:
        assert hasattr(cpkv, name), name
    assert (PACKAGE / "py.typed").is_file()
