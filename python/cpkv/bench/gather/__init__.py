"""Benchmark of the last tokens' hidden states: collected alone, beside the gather of all of them.

Rank processes do both in turns, on one GPU each with NCCL, or without a GPU with gloo, and compare what they got bit
by bit. It passes or fails nothing.
"""

from cpkv.bench.gather.figures import TARGET_US, RankReport, figures_of
from cpkv.bench.gather.measure import Measured, choose_device, measure_gather
from cpkv.bench.gather.settings import GatherCase, GatherSettings

__all__ = [
    "TARGET_US",
    "GatherCase",
    "GatherSettings",
    "Measured",
    "RankReport",
    "choose_device",
    "figures_of",
    "measure_gather",
]
