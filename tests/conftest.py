"""What all tests share."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

HAS_TORCH = find_spec("torch") is not None
HAS_SGLANG = HAS_TORCH and find_spec("sglang") is not None
collect_ignore = ["with_torch", "gpu"] * (not HAS_TORCH) + ["with_sglang"] * (not HAS_SGLANG)


def pytest_report_header():
    left_out = []
    if not HAS_TORCH:
        left_out.append("torch is not installed: tests/with_torch and tests/gpu are left out, see make test-torch")
    if not HAS_SGLANG:
        left_out.append("SGLang is not installed: tests/with_sglang is left out, see make test-sglang")
    return left_out


@pytest.fixture(scope="session")
def trace_file():
    """Find a real trace by name in the folder that `CPKV_TRACES` names, or skip."""

    def find(name: str) -> Path:
        folder = os.environ.get("CPKV_TRACES")
        if not folder:
            pytest.skip("CPKV_TRACES does not name a folder with the public traces")
        file = Path(folder) / name
        if not file.is_file():
            pytest.skip(f"{file} is not there")
        return file

    return find


@pytest.fixture
def tell(capsys):
    """Print a line past pytest's capturing: what was seen, for who runs the tests."""

    def line(text):
        with capsys.disabled():
            print(text, flush=True)  # noqa: T201 - is the point

    return line
