"""What the compiler makes of the kernel for a Hopper GPU; none is needed for that."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ACCESS = {"16": "v2.b64", "8": "b64", "4": "b32", "1": "b8"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    script = Path(__file__).parents[1] / "compile_kernel.py"
    return json.loads(subprocess.check_output([sys.executable, script], env=environment))


def test_each_word_is_one_access(compiled):
    for each in compiled:
        accesses = each["accesses"]
        words = 4 * (2 if each["words"] == "16" else 1)  # four a thread, for one or two components
        assert accesses[f"st.global.{ACCESS[each['words']]}"] == words
        assert {name for name in accesses if name.startswith("st.")} == {f"st.global.{ACCESS[each['words']]}"}
        loads = {f"ld.global.{ACCESS[each['words']]}", "ld.global.b64"}  # words; table and ids
        assert {name for name in accesses if name.startswith("ld.")} == loads


def test_nothing_is_passed_in_32_bits(compiled):
    for each in compiled:
        assert [kind for kind in each["signature"] if kind != "constexpr"] == ["*i64", "*i64", "*i64", "i64"]


def test_another_number_of_pages_needs_no_other_kernel(compiled):
    """Three counts each, one of them 1 and one a multiple of 16, and lists at addresses of any alignment."""
    assert [each["variants"] for each in compiled] == list(range(1, len(compiled) + 1))
