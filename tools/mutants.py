"""Break the core and the data plane in small ways, and see that a test fails each time.

    python tools/mutants.py [--only WORDS ...] [--first NUMBER] [--sglang-python INTERPRETER]

The breaks are in `mutants.toml`: a file, a text that stands in it once, and what is put in its
place. A file of the core is tested by the tests of the core, one of the package (`.py`) by those of the
data plane, with the interpreter that runs this. A break of cpkv in SGLang names its own tests, which run with
the interpreter that has SGLang. Breaks are made in a copy under `target/mutants`, one at a
time, so that an interrupted run leaves the sources as they are. One that no test notices, or whose text is
not there any more, makes the run fail.
"""

import argparse
import fcntl
import filecmp
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutants"
COPIED = ("rust", "Cargo.toml", "Cargo.lock", ".config", "python", "tests", "pyproject.toml")
TESTS_FAILED = 1
"""What pytest returns if tests fail, or what is around them; if they cannot be run it is another number."""
SIGNALS = range(-64, 0)
SOURCES = Path("rust/cpkv-core/src")
TIMEOUT_S = 300
"""A break that makes the tests hang is noticed, too."""
STAGES = (
    ["--lib", "-E", "not test(model::)"],
    ["--test", "backups", "--test", "backup_edges", "--test", "restores", "--test", "against_oracle"],
    ["--lib", "-E", "test(model::)"],
    ["--test", "*"],
)
"""What is built in a moment and notices most comes first."""
PACKAGE_TESTS = (
    "tests/unit/test_layout.py",
    "tests/unit/test_copy_plan.py",
    "tests/unit/test_copy_engines.py",
    "tests/unit/test_host_tier.py",
    "tests/unit/test_opening.py",
    "tests/unit/test_cp_split.py",
    "tests/property/test_splits.py",
    "tests/property/test_bytes.py",
)


def make_copy() -> None:
    """Copy what the tests need.

    What did not change is left as it is, so that it is not built again. What an interrupted run has left
    broken gets a new time, so that it is.
    """
    for name in COPIED:
        source = ROOT / name
        files = [source] if source.is_file() else [path for path in source.rglob("*") if path.is_file()]
        files = [path.relative_to(ROOT) for path in files if "target" not in path.relative_to(ROOT).parts]
        for old in set((COPY / name).rglob("*")) - {COPY / file for file in files}:
            if old.is_file():
                old.unlink()
        for file in files:
            target = COPY / file
            if not target.exists() or not filecmp.cmp(ROOT / file, target, shallow=False):
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, target)


def test_core(timeout_s: int | None) -> tuple[str, str]:
    """Run the tests of the core: `caught`, `survived` or `does not build`, and what noticed it."""
    for stage in STAGES:
        # The first test that fails ends it.
        command = ["cargo", "nextest", "run", "--locked", "-p", "cpkv-core", "--fail-fast", *stage]
        status, output = run(command, timeout_s)
        if "could not compile" in output:
            return "does not build", next((line for line in output.splitlines() if line.startswith("error")), "")
        if status != 0:
            failures = (["FAIL"], ["TIMEOUT"], ["SIGABRT"])
            failed = [line.split()[-1] for line in output.splitlines() if line.split()[:1] in failures]
            return "caught", failed[0] if failed else output.splitlines()[-1]
    return "survived", ""


def test_package(timeout_s: int | None) -> tuple[str, str]:
    """Run the tests of the data plane."""
    return run_pytest(sys.executable, PACKAGE_TESTS, timeout_s)


def run_pytest(python: str, tests: Sequence[str], timeout_s: int | None) -> tuple[str, str]:
    """Run tests of the package: `caught`, `survived` or `does not build`, and what noticed it."""
    command = [python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    status, output = run(command, timeout_s)
    if status == 0:
        return "survived", ""
    failed = [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if status in {TESTS_FAILED, *SIGNALS}:
        return "caught", failed[0].removeprefix("tests/") if failed else output
    return "does not build", output.splitlines()[-1]


def run(command: list[str], timeout_s: int | None) -> tuple[int, str]:
    """Run a command in the copy; a negative status if it was killed."""
    environment = os.environ | {
        "CARGO_TARGET_DIR": str(COPY / "build"),
        "CARGO_TERM_COLOR": "never",
        "PROPTEST_FAILURE_PERSISTENCE": "off",
        "PYTHONPATH": str(COPY / "python"),
    }
    process = subprocess.Popen(  # noqa: S603 - our own command
        command,
        cwd=COPY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return -signal.SIGKILL, f"nothing ended in {timeout_s} s"
    return process.returncode, output


def test_sglang(mutants: Sequence[dict[str, Any]], python: str, timeout_s: int | None) -> tuple[str, str]:
    """Run the tests that breaks of cpkv in SGLang name."""
    tests = dict.fromkeys(f"tests/with_sglang/{test}" for mutant in mutants for test in mutant["tests"])
    return run_pytest(python, [*tests], timeout_s)


def tests_of(mutants: Sequence[dict[str, Any]], python: str) -> list[Callable[[int | None], tuple[str, str]]]:
    """Return what runs the tests of the files that are broken."""
    in_sglang = [mutant for mutant in mutants if "tests" in mutant]
    others = {
        test_package if mutant["file"].endswith(".py") else test_core for mutant in mutants if mutant not in in_sglang
    }
    return [*others, *([partial(test_sglang, in_sglang, python)] if in_sglang else [])]


def main() -> int:
    """Try all breaks; 1 if one of them was not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="WORDS", help="try only the breaks with one of these in their name"
    )
    parser.add_argument("--first", type=int, default=1, metavar="NUMBER", help="go on with this one of the list")
    parser.add_argument(
        "--sglang-python",
        default=str(ROOT / ".venv-torch/bin/python"),
        metavar="INTERPRETER",
        help="that has SGLang (default: that of make test-sglang)",
    )
    arguments = parser.parse_args()
    only, first = arguments.only, arguments.first
    with (ROOT / "tools" / "mutants.toml").open("rb") as file:
        mutants = tomllib.load(file)["mutant"]
    if only:
        mutants = [mutant for mutant in mutants if any(words in mutant["name"] for words in only)]
    # Two runs in one copy would break it for each other.
    COPY.mkdir(parents=True, exist_ok=True)
    with (COPY / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another run has {COPY}: wait for it, or end it", flush=True)
            return 1
        return try_breaks(mutants, first, arguments.sglang_python)


def try_breaks(mutants: list[dict[str, Any]], first: int, sglang_python: str) -> int:
    """Try the breaks from one on; 1 if one of them was not caught."""
    make_copy()
    tried = list(enumerate(mutants, 1))[first - 1 :]
    # Unbroken, so that what is caught is the break; the first build has no time limit.
    for test in tests_of([mutant for _, mutant in tried], sglang_python):
        verdict, by = test(None)
        if verdict != "survived":
            print(f"without any break: {verdict} ({by})", flush=True)
            return 1
    counts: dict[str, int] = {}
    for index, mutant in tried:
        [test] = tests_of([mutant], sglang_python)
        path = COPY / (SOURCES / mutant["file"] if test is test_core else mutant["file"])
        source = path.read_text(encoding="utf-8")
        if source.count(mutant["before"]) != 1:
            verdict, by = "is not there", f"{source.count(mutant['before'])} times in {mutant['file']}"
        else:
            path.write_text(source.replace(mutant["before"], mutant["after"]), encoding="utf-8")
            verdict, by = test(TIMEOUT_S)
            path.write_text(source, encoding="utf-8")
        counts[verdict] = counts.get(verdict, 0) + 1
        noticed = f"  ({by})" if by else ""
        print(f"{index:3} of {len(mutants)}  {verdict:14} {mutant['name']}{noticed}", flush=True)
    print(f"{len(tried)} breaks: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return int(counts.get("caught", 0) != len(tried) or not tried)


if __name__ == "__main__":
    sys.exit(main())
