"""Benchmark of the overlap: how much of a backup's time a forward hides, and what it costs the forward.

Forwards of synthetic layers run without a backup, with one layer by layer, and with one of all layers behind the
forward, in turns and through a real cache and host tier: the parts are those of `cpkv.bench.copy`. Each share is
the time of a layer's copy alone to the time of the layer alone.
"""

from cpkv.bench.overlap.settings import OverlapSettings
from cpkv.bench.overlap.shares import measure_share
from cpkv.bench.overlap.start import started

__all__ = ["OverlapSettings", "measure_share", "started"]
