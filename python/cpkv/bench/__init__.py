"""Benchmarks of the control path: what the calls of a request's life cost, beside a target.

Each measurement is a file and a function from `BenchSettings` to `Figure`s; `MEASUREMENTS` names them.
They measure and say what was wanted; they pass or fail nothing. What an engine does between the calls
is left out, bytes of pages are not moved. Where a target is a multiple of what memory allows, that
floor is measured in the same process, the two taking turns.
"""

from cpkv.bench.figure import Figure
from cpkv.bench.machine import machine
from cpkv.bench.measurements import MEASUREMENTS, Measurement
from cpkv.bench.settings import BenchSettings

__all__ = ["MEASUREMENTS", "BenchSettings", "Figure", "Measurement", "machine"]
