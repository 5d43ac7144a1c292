"""The drivers: a forward's layers leave for the host as they end, and come back as they are needed.

`HostTier` is one rank's: a cache, its pools and a copy engine; `open_tier` makes all of that for an
engine's tensors. `LayerHooks` tells it when the layers of a torch model begin and end.
"""

from cpkv.drivers.backup import BackupDriver
from cpkv.drivers.counts import Counts
from cpkv.drivers.hooks import LayerHooks
from cpkv.drivers.opening import open_tier
from cpkv.drivers.restore import RestoreDriver
from cpkv.drivers.share import Share
from cpkv.drivers.tier import HostTier
from cpkv.drivers.torch_stream import torch_stream

__all__ = ["BackupDriver", "Counts", "HostTier", "LayerHooks", "RestoreDriver", "Share", "open_tier", "torch_stream"]
