"""Context parallelism: which rank computes which tokens, and whose pages they are in.

Pure functions of the lengths of a batch, so that all ranks come to the same without talking. `zigzag_split`
and `interleave_split` make a `CpSplit`; `split.view(rank)` has everything that one rank needs of it.
`page_owners` says which lanes to allocate pages from, `direct_writes` whether a rank may write what it
computes where it lies. `cpkv.cp.tensors` has the same for torch.
"""

from cpkv.cp.batch import ExtendBatch
from cpkv.cp.group import CpGroups
from cpkv.cp.interleave import interleave_split
from cpkv.cp.last_token import (
    HiddenGather,
    LastHidden,
    as_last_hidden,
    choose_hidden_gather,
    collect_last_token_hidden,
    narrow_bytes,
    own_last_hidden,
    pick_last_hidden,
)
from cpkv.cp.owners import DirectWrites, direct_writes, page_owners
from cpkv.cp.split import CpSplit, Mode
from cpkv.cp.view import LocalView, Part
from cpkv.cp.zigzag import UNKNOWN, zigzag_split

__all__ = [
    "UNKNOWN",
    "CpGroups",
    "CpSplit",
    "DirectWrites",
    "ExtendBatch",
    "HiddenGather",
    "LastHidden",
    "LocalView",
    "Mode",
    "Part",
    "as_last_hidden",
    "choose_hidden_gather",
    "collect_last_token_hidden",
    "direct_writes",
    "interleave_split",
    "narrow_bytes",
    "own_last_hidden",
    "page_owners",
    "pick_last_hidden",
    "zigzag_split",
]
