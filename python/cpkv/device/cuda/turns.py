"""The order of a layer's copies within its batch.

As a plan has them, all runs of one row come first, then all of the next one. Where pages lie one by one, the short
index rows of a page go better between its long KV rows than all at once: 54.9 instead of 54.1 GB/s to the host alone,
53.9 instead of 53.2 beside products, 50.0 instead of 48.5 beside memory traffic (H200, 2026-11-30; the tables are in
docs/architecture.md, "What was tried and left"). Where runs are long it is the other way round.
"""

from itertools import groupby, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cpkv.device.plan import CopyPlan

MOST_RUN_PAGES: Final = 2
"""Mean pages of a run from which on rows stay together."""


def are_better_in_turns(plan: CopyPlan) -> bool:
    """Whether a plan's copies go better page by page. Measured to the host only."""
    runs = plan.sizes.shape[1]
    return plan.direction == "to_host" and runs > 1 and len(plan.pages) < MOST_RUN_PAGES * runs


def in_turns(plan: CopyPlan, array: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an array of a plan with the runs of each layer in turns: all rows of the first run, then of the next.

    What layers are in a slice stays as it is; where in it does not.

    Args:
        plan: Whose rows they are.
        array: One of its arrays, shape `(rows, runs)`.
    """
    runs = array.shape[1]
    turned = np.empty_like(array)
    firsts = plan.layout.first_rows
    counts = [end - first for first, end in pairwise(firsts)]
    first = 0
    for count, layers in groupby(counts):
        end = first + count * len(list(layers))
        if count:
            block = array[first:end].reshape(-1, count, runs)
            turned[first:end] = block.transpose(0, 2, 1).reshape(-1, runs)
        first = end
    return turned
