"""What each rank does with the draft's state, on standard error if `CPKV_DEBUG_DRAFT_SHARED_KV=1`.

It shows that a draft over shared KV is sharded: a rank has buffers for its own lane only, writes to the pages of
its own lane only, and sends no row of what it can write directly.
"""

import logging
import os
import sys
from collections.abc import Iterable, Sequence

from torch import Tensor

from cpkv._core import TickReport, Transaction
from cpkv.cp import LocalView
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
        self._backups: dict[int, str] = {}
        """What those are of that are under way, by operation."""
        self._computed: list[int] = []
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

    def split(self, view: LocalView, tables: Sequence[Sequence[int]]) -> None:
        """Keep which pages the rows of a forward belong to: they are sent if they cannot be written directly.

        Args:
            view: The rank's rows.
            tables: The page ids of each request.
        """
        if self.is_on:
            pages = (view.positions // view.split.page_size).tolist()
            self._computed = sorted({tables[request][page] for request, page in zip(view.requests, pages, strict=True)})

    def written(self, rows: Tensor, page_size: int, sent: int) -> None:
        """Say where the draft's rows were written.

        Args:
            rows: In the rank's own pool, page and offset, shape `(n,)`.
            page_size: Tokens of a page.
            sent: Rows of the last split that this rank has sent, because they could not be written directly.
        """
        if not self.is_on:
            return
        physical = sorted(rows.tolist())
        logger.info(
            "%s: draft rows written: %d, physical rows %s, own pages %s, rows sent: %d, of pages %s",
            self._who,
            len(physical),
            _ranges(physical),
            _ranges(sorted({row // page_size for row in physical})),
            sent,
            _ranges(self._computed if sent else []),
        )

    def reserved(self, transaction: Transaction) -> None:
        """Keep what a backup is of, for the time when it becomes visible."""
        if self.is_on and transaction.id is not None:
            pages, slots = (ids.tolist() for ids in transaction.plan())
            kind = "late backup" if transaction.kind == "late" else "backup"
            places = _ranges(range(transaction.first_page, transaction.first_page + len(pages)))
            what = f"{kind} of a sequence's pages {places}"
            self._backups[transaction.id] = f"{what}, device pages {_ranges(pages)}, host slots {_ranges(slots)}"

    def ticked(self, report: TickReport) -> None:
        """Say what has become visible, or never will."""
        if not self.is_on:
            return
        ended = [("committed", operation) for operation in report.committed]
        ended += [(f"rolled back ({reason})", operation) for operation, reason in report.rolled_back]
        for how, operation in ended:
            what = self._backups.pop(operation, "a restore")
            logger.info("%s: %s: operation %d, %s", self._who, how, operation, what)
        for transaction in report.started:
            self.reserved(transaction)


def _ranges(numbers: Iterable[int]) -> str:
    """Return runs of consecutive numbers, such as `0-15, 32`; `none` if there are none."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{first}-{last}" if last > first else f"{first}" for first, last in runs) or "none"
