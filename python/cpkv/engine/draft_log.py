"""What each rank does with the draft's state, on standard error if `CPKV_DEBUG_DRAFT_SHARED_KV=1`.

It shows that a draft over shared KV is sharded: a rank has buffers for its own lane only, writes to the pages of
its own lane only, and sends no row of what it can write directly.
"""

import logging
import os
import sys

from torch import Tensor

from cpkv._core import TickReport
from cpkv.engine.pools import Pools

VARIABLE = "CPKV_DEBUG_DRAFT_SHARED_KV"
logger = logging.getLogger("cpkv.draft")


class DraftLog:
    """Lines of one rank.

    Args:
        rank: Which one.
        cp_size: Ranks.
    """

    def __init__(self, rank: int, cp_size: int) -> None:
        self.is_on = os.environ.get(VARIABLE, "") not in {"", "0"}
        self._who = f"rank {rank} of {cp_size}"
        if self.is_on and not logger.handlers:
            logger.addHandler(logging.StreamHandler(sys.stderr))
            logger.setLevel(logging.INFO)

    def pool(self, pools: Pools) -> None:
        """Say what is there."""
        if not self.is_on:
            return
        draft = {name: tensors for name, tensors in pools.tensors.items() if name.startswith("draft_")}
        pages = len(next(iter(draft.values()))[0])
        sizes = ", ".join(f"{name} of {tensor.shape[1]} bytes a page" for name, (tensor,) in draft.items())
        logger.info("%s: draft pool of %d pages, buffers registered: %s", self._who, pages, sizes)

    def written(self, rows: Tensor, page_size: int, sent: int) -> None:
        """Say where the draft's rows were written.

        Args:
            rows: In the rank's own pool, page and offset.
            page_size: Tokens of a page.
            sent: Rows that this rank has sent, because they could not be written directly.
        """
        if not self.is_on:
            return
        pages = sorted(set((rows // page_size).tolist()))
        logger.info("%s: draft rows written: %d in own pages %s, rows sent: %d", self._who, len(rows), pages, sent)

    def ticked(self, report: TickReport) -> None:
        """Say what has become visible, or never will."""
        if self.is_on and (report.committed or report.rolled_back):
            logger.info("%s: committed %s, rolled back %s", self._who, report.committed, report.rolled_back)
