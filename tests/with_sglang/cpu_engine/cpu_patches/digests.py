"""What a page holds when its host copy becomes visible, and what comes back, component by component.

Tokens do not show everything: on a CPU, sparse attention attends to all tokens, whatever the indexer has kept.
"""

import hashlib
from collections import Counter

import torch

from cpkv.drivers import HostTier
from cpkv.drivers.backup import BackupDriver
from cpkv.drivers.restore import RestoreDriver

_take = BackupDriver._take
_start_late = BackupDriver.start_late
_start = RestoreDriver.start
_tick = HostTier.tick


class Digests:
    """Of one scheduler, from its start on."""

    def __init__(self):
        self.counts = Counter(compared_pages=0)
        self._plans = {}
        self._of_slots = {}

    def watch(self):
        """Install everything."""

        def take(driver, forward, transactions):
            self._note(transactions)
            _take(driver, forward, transactions)

        def start_late(driver, transactions, compute):
            self._note(transactions)
            _start_late(driver, transactions, compute)

        def start(driver, operations, compute):
            self._note(operations)
            _start(driver, operations, compute)

        def tick(tier, *arguments, **named):
            report = _tick(tier, *arguments, **named)
            for identity in report.committed:
                self._keep(tier, *self._plans.pop(identity))
            for identity in report.restored:
                self._compare(tier, *self._plans.pop(identity))
            return report

        BackupDriver._take, BackupDriver.start_late, RestoreDriver.start, HostTier.tick = take, start_late, start, tick

    def _note(self, operations):
        for operation in operations:
            self._plans[operation.id] = [numbers.tolist() for numbers in map(memoryview, operation.plan())]

    def _keep(self, tier, pages, slots):
        for page, slot in zip(pages, slots, strict=True):
            self._of_slots[slot] = digests(tier, page)

    def _compare(self, tier, pages, slots):
        for page, slot in zip(pages, slots, strict=True):
            self.counts["compared_pages"] += 1
            for component, digest in digests(tier, page).items():
                self.counts[f"wrong_{component}"] += digest != self._of_slots[slot][component]


def digests(tier, page):
    """For each component what all of its layers hold of a page."""
    return {
        name: hashlib.blake2b(
            b"".join(bytes_of(tensor.view(buffers.pages, -1)[page]) for tensor in buffers.owners)
        ).digest()
        for name, buffers in tier._restore.device.buffers.items()
    }


def bytes_of(tensor):
    """The bytes of a tensor whose numbers lie one behind the other; NumPy does not know all of their types."""
    return tensor.view(torch.uint8).numpy().tobytes()
