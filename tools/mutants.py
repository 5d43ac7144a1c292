"""Break the core in small ways, one at a time, and see that a test fails each time.

    python tools/mutants.py [--only WORDS ...]

The breaks are in `mutants.toml`: a file, a text that stands in it once, and what is put in its
place. They are made in a copy under `target/mutants`, so that an interrupted run leaves the sources
as they are. A break that no test notices, or whose text is not there any more, makes the run fail.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / "target" / "mutants"
COPIED = ("rust", "Cargo.toml", "Cargo.lock", ".config")
TIMEOUT_S = 180
"""A break that makes the tests hang is noticed, too."""


def make_copy() -> None:
    """Copy what the tests of the core need."""
    COPY.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source, target = ROOT / name, COPY / name
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            # With their times, so that what did not change is not built again.
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("target"))
        else:
            shutil.copy2(source, target)


def run_tests(timeout_s: int | None = TIMEOUT_S) -> tuple[str, str]:
    """Run the tests of the core: `caught`, `survived` or `does not build`, and what noticed it."""
    command = ["cargo", "test", "--locked", "--quiet", "-p", "cpkv-core", "--lib", "--tests"]
    environment = os.environ | {"CARGO_TARGET_DIR": str(COPY / "build"), "PROPTEST_FAILURE_PERSISTENCE": "off"}
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
        return "caught", f"nothing ended in {timeout_s} s"
    if process.returncode == 0:
        return "survived", ""
    if "could not compile" in output:
        return "does not build", next((line for line in output.splitlines() if line.startswith("error")), "")
    failed = [line.split()[1] for line in output.splitlines() if line.startswith("test ") and line.endswith("FAILED")]
    failed += [line.split()[0] for line in output.splitlines() if line.endswith("--- FAILED")]
    return "caught", failed[0] if failed else "a test"


def main() -> int:
    """Try all breaks; 1 if one of them was not caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", nargs="+", metavar="WORDS", help="try only the breaks with one of these in their name"
    )
    only = parser.parse_args().only
    with (ROOT / "tools" / "mutants.toml").open("rb") as file:
        mutants = tomllib.load(file)["mutant"]
    if only:
        mutants = [mutant for mutant in mutants if any(words in mutant["name"] for words in only)]
    make_copy()
    # Unbroken, so that what is caught is the break; the first build has no time limit.
    verdict, by = run_tests(None)
    if verdict != "survived":
        print(f"without any break: {verdict} ({by})", flush=True)
        return 1
    counts: dict[str, int] = {}
    for index, mutant in enumerate(mutants, 1):
        path = COPY / "rust" / "cpkv-core" / "src" / mutant["file"]
        source = path.read_text(encoding="utf-8")
        if source.count(mutant["before"]) != 1:
            verdict, by = "is not there", f"{source.count(mutant['before'])} times in {mutant['file']}"
        else:
            path.write_text(source.replace(mutant["before"], mutant["after"]), encoding="utf-8")
            verdict, by = run_tests()
            path.write_text(source, encoding="utf-8")
        counts[verdict] = counts.get(verdict, 0) + 1
        print(f"{index:3} of {len(mutants)}  {verdict:14} {mutant['name']}{by and f'  ({by})'}", flush=True)
    print(f"{len(mutants)} breaks: " + ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))
    return int(counts.get("caught", 0) != len(mutants) or not mutants)


if __name__ == "__main__":
    sys.exit(main())
