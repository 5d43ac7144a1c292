"""The command line: `cpkv`."""

from cpkv.cli.entry import main

__all__ = ["main"]
