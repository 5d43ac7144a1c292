"""The example in the document runs, on the CPU."""

import re
from pathlib import Path

import pytest

from cpkv.kernels.layer import INTERPRETED


@pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 is not set: see make test-torch")
def test_the_example_runs():
    document = (Path(__file__).parents[2] / "docs/kernels.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"^```py\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    on_the_cpu = example.replace('"cuda"', '"cpu"').replace(", pin_memory=True", "")
    names = {}
    exec(on_the_cpu, names)  # noqa: S102 - our own
    assert names["layer"].words == (16, 16)
    assert len(names["pairs"]) == 3
