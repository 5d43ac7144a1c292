"""Run tests of cpkv in the engines of several versions of SGLang, on the CPU.

A version is put into a folder of its own, target/sglang/VERSION, in front of the SGLang that is installed: for the time
of the tests alone, and with the torch that is there. If it asks for another transformers it gets that in the same
folder. What pytest has printed is there as well, in tests.log.

    python tools/sglang_versions.py [VERSION...] [-k EXPRESSION]

Without versions it is all that cpkv knows. The python is that of the environment of `make test-sglang`.
"""

import argparse
import os
import re
import subprocess
import sys
from importlib.metadata import distributions, version
from pathlib import Path

from cpkv.sglang.versions import INTERFACES

HERE = Path(__file__).resolve().parent.parent
FOLDER = HERE / "target" / "sglang"
FILES = ("tokens", "namespaces", "aborts", "retraction", "restores", "pauses")
"""Of tests/with_sglang: what every version has to do, with both tiers, in an engine."""
ALONE = "not ranks"
"""By default. What ranks agree on does not depend on the version."""
WITH_TRANSFORMERS = ("tokenizers", "huggingface-hub")
"""Transformers takes some versions of these only, and looks at once."""


def main() -> int:
    """Run them, print a line for each version, and return the worst exit code of pytest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", metavar="VERSION", default=list(INTERFACES))
    parser.add_argument("-k", dest="expression", default=ALONE, help=f"which tests, as in pytest ({ALONE})")
    arguments = parser.parse_args()
    codes = []
    for one in arguments.versions:
        codes.append(run_tests(folder_of(one), arguments.expression))
        log = (FOLDER / one / "tests.log").read_text(encoding="utf-8").splitlines()
        print(f"{one:8} {log[-1].strip('= ') if log else f'exit code {codes[-1]}'}", flush=True)
    return max(codes)


def folder_of(release: str) -> Path:
    """Return the folder of a version of SGLang, and install what is not there."""
    folder = FOLDER / release
    if "sglang" not in asked_by_packages(folder):
        install(folder, f"sglang=={release}")
    asked = asked_by_packages(folder)
    wanted = asked["sglang"]["transformers"]
    if wanted != f"=={version('transformers')}" and "transformers" not in asked:
        install(folder, f"transformers{wanted}")
        asked = asked_by_packages(folder)
        install(folder, *(name + asked["transformers"][name] for name in WITH_TRANSFORMERS))
    return folder


def asked_by_packages(folder: Path) -> dict[str, dict[str, str]]:
    """Return what each package in a folder asks for: versions by name, of what is not optional."""
    found = {}
    for package in distributions(path=[str(folder)]):
        asked = (re.fullmatch(r"([\w.-]+) *([^;\[]*?) *", line) for line in package.requires or ())
        found[package.name] = {match[1]: match[2] for match in asked if match}
    return found


def install(folder: Path, *packages: str) -> None:
    """Put packages into a folder, without what they ask for."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--upgrade", "--target", folder, *packages], check=True)  # noqa: S603 - this Python


def run_tests(folder: Path, expression: str) -> int:
    """Run the tests with what is in a folder in front, and return pytest's exit code."""
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))
    files = [f"tests/with_sglang/test_sglang_{name}.py" for name in FILES]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "not slow", "-k", expression, *files]
    with (folder / "tests.log").open("w", encoding="utf-8") as log:
        return subprocess.run(  # noqa: S603 - this Python
            command, cwd=HERE, env=os.environ | {"PYTHONPATH": path}, stdout=log, stderr=log, check=False
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
