"""What all tests share."""

import os
from pathlib import Path

import pytest


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
