"""What `tools/demo.sh` says before it installs anything, with a python, a torch and a make that do nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PYTHON = """#!/bin/sh
case "$*" in
  "-m venv"*) mkdir -p "$4/bin" "$4/site"; cp FOLDER/own-python "$4/bin/python" ;;
  *) PYTHONPATH=FOLDER/packages exec EXECUTABLE -S "$@" ;;
esac
"""
OWN_PYTHON = """#!/bin/sh
case "$*" in
  *sysconfig*) echo "$(dirname "$0")/../site" ;;
  *) echo "$0 $*" ;;
esac
"""
MAKE = """#!/bin/sh
echo "make $*"
mkdir -p .venv-torch/bin
cp FOLDER/own-python .venv-torch/bin/python
touch .venv-torch/.installed
"""


@pytest.fixture
def demo(tmp_path):
    """Return what runs the script in a copy of what it reads, with a torch of some version."""
    for name in ("tools/demo.sh", "pyproject.toml", "requirements/run.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    for name, text in (("bin/python3", PYTHON), ("own-python", OWN_PYTHON), ("bin/make", MAKE)):
        (tmp_path / name).write_text(text.replace("FOLDER", str(tmp_path)).replace("EXECUTABLE", sys.executable))
        (tmp_path / name).chmod(0o755)

    def run(torch=None, **environment):
        packages = tmp_path / "packages"
        shutil.rmtree(packages, ignore_errors=True)
        if torch is not None:
            (packages / "torch").mkdir(parents=True)
            (packages / "torch/__init__.py").touch()
            (packages / f"torch-{torch}.dist-info").mkdir()
            (packages / f"torch-{torch}.dist-info/METADATA").write_text(f"Name: torch\nVersion: {torch}\n")
        inherited = {
            name: value for name, value in os.environ.items() if name not in {"PYTHON", "PYTHONPATH", "TORCH_INDEX_URL"}
        }
        path = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(
            [tmp_path / "tools/demo.sh", "--ranks", "2"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
            env=inherited | path | environment,
        )

    return run


def test_a_torch_that_is_new_enough_is_used(demo):
    ran = demo("2.11.0+cpu")
    assert ran.stderr == "cpkv: the demo runs with the torch of python3, in .venv-demo\n"
    assert "make" not in ran.stdout
    assert ran.stdout.splitlines()[-1] == ".venv-demo/bin/python -m cpkv demo --ranks 2"
    assert demo("2.11.0+cpu").stderr == "", "it is there"


@pytest.mark.parametrize(("torch", "has"), [(None, "none"), ("2.4.1+cu121", "2.4.1+cu121"), ("1.13.0", "1.13.0")])
def test_another_is_installed_after_it_was_said(demo, torch, has):
    ran = demo(torch)
    assert ran.stderr.splitlines() == [
        f"cpkv: the demo needs torch 2.11 or newer, and python3 has {has}: installing it into .venv-torch, once",
        "cpkv: that takes 2.3 GB of disk; TORCH_INDEX_URL names another index than PyPI, such as one of CPU builds",
    ]
    assert ran.stdout.splitlines() == [
        "make .venv-torch/.installed",
        ".venv-torch/bin/python -m cpkv demo --ranks 2",
    ]
    assert demo(torch).stderr == "", "it is there"


def test_nothing_is_said_about_the_size_of_what_another_index_has(demo):
    told = demo(TORCH_INDEX_URL="https://example.org/cpu").stderr
    assert "cpkv: from TORCH_INDEX_URL, with all that it needs; how much disk that takes depends" in told
    assert "GB" not in told
