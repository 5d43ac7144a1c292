"""`cpkv` as somebody at a terminal starts it: a process of its own, with everything that it says."""

import subprocess
import sys


def cpkv_command(*words):
    """What is started, for tests that watch it while it runs."""
    return [sys.executable, "-m", "cpkv", *map(str, words)]


def run_command(*words, timeout=30, **options):
    """Run it to its end."""
    return subprocess.run(cpkv_command(*words), capture_output=True, text=True, timeout=timeout, check=False, **options)
