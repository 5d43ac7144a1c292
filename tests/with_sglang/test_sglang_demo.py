"""The page about SGLang shows what `make sglang-demo` prints."""

import re
import subprocess
import sys
from pathlib import Path

from engines import START_SECONDS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs/sglang.md"


def test_the_page_shows_what_the_demo_prints():
    """Down to the tokens found on the host, since the demo ends with an error without any."""
    shown = re.search(r"<!-- sglang-demo -->\n```\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL).group(1)
    done = subprocess.run(
        [sys.executable, HERE / "demo.py"], capture_output=True, text=True, timeout=START_SECONDS, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", shown)
