"""Benchmarks of the copies: how fast pages reach the host and come back, and what that costs everyone else.

Each measurement goes through a real cache and host tier (`site`), with transactions, hooks and ticks; a
`platform` gives it memory, streams and loads. Peers copy the same pages in the same run (`peers`, `sglang`).
`COPY_MEASUREMENTS` names the measurements; they pass or fail nothing.
"""

from cpkv.bench.copy.counts import measure_counts
from cpkv.bench.copy.figure import ABSENT, CopyFigure, Peer
from cpkv.bench.copy.machine import machine_of
from cpkv.bench.copy.measurements import COPY_MEASUREMENTS, VISIBILITY, CopyMeasurement
from cpkv.bench.copy.picture import check_drawable, draw
from cpkv.bench.copy.run import Run, said
from cpkv.bench.copy.settings import CopySettings
from cpkv.bench.copy.start import choose_engine, started
from cpkv.bench.copy.timeline import Timeline
from cpkv.bench.copy.timeline_check import faults

__all__ = [
    "ABSENT",
    "COPY_MEASUREMENTS",
    "VISIBILITY",
    "CopyFigure",
    "CopyMeasurement",
    "CopySettings",
    "Peer",
    "Run",
    "Timeline",
    "check_drawable",
    "choose_engine",
    "draw",
    "faults",
    "machine_of",
    "measure_counts",
    "said",
    "started",
]
