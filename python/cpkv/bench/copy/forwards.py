"""Forwards of synthetic layers: copied layer by layer, all layers at once behind the last one, or not at all.

The thread queues all layers, inserts the prompt, and ticks in steps of a scheduler until the transaction is
committed. Times are marks of the platform; the thread's own are compared with them by `Platform.align`.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from time import perf_counter_ns, sleep
from typing import Final

from cpkv._core import Transaction
from cpkv.bench.copy.backup_copier import BackupCopier
from cpkv.bench.copy.layers import SyntheticLayer
from cpkv.bench.copy.platform import Mark, Platform
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.timeline import Forward
from cpkv.device import BACKUP
from cpkv.errors import CopyError

ASKED: Final = "asked for"
"""Why layers are copied all at once where that is what is measured."""
TICK_NS: Final = 200_000
"""From the beginning of a scheduler's step to that of the next."""
TICKS_SHOWN: Final = 3
PATIENCE_NS: Final = 60 * 10**9


def plain_forward(platform: Platform, layers: Sequence[SyntheticLayer]) -> int:
    """Run layers that nothing is copied of; return the nanoseconds from the first one's begin to the last one's end."""
    marks = [platform.mark("compute"), *(layer() for layer in layers)]
    platform.synchronize()
    return platform.elapsed_ns(marks[0], marks[-1])


def hooked_forward(site: Site, copier: BackupCopier, layers: Sequence[SyntheticLayer]) -> Forward:
    """Run a forward that was begun, whose hooks copy each layer; return it when it is visible on the host.

    Raises:
        CopyError: It does not become visible.
    """
    platform = site.platform
    marks = [platform.mark("compute")]
    copied, sequences = [], []
    for layer in layers:
        marks.append(layer())
        sequences.append(copier.last_sequence())
        copied.append(platform.copied(site.engine, BACKUP, sequences[-1]))
    return _visible(site, copier.bind(), marks, copied, sequences, copier.bytes // site.layers)


def all_layer_forward(site: Site, copier: BackupCopier, layers: Sequence[SyntheticLayer]) -> Forward:
    """Run a forward that was begun, copied all layers at once at its end; return it as one of a single layer.

    Args:
        site: Where.
        copier: The pages.
        layers: Without hooks.

    Raises:
        CopyError: It does not become visible.
    """
    platform = site.platform
    marks = [platform.mark("compute"), *(layer() for layer in layers)]
    with _no_warnings():
        transaction = copier.bind(reason=ASKED)
    sequence = copier.last_sequence()
    copied = platform.copied(site.engine, BACKUP, sequence)
    return _visible(site, transaction, [marks[0], marks[-1]], [copied], [sequence], copier.bytes)


def _visible(  # noqa: PLR0913, PLR0917 - what a forward leaves behind
    site: Site, transaction: Transaction, marks: list[Mark], copied: list[Mark], sequences: list[int], size: int
) -> Forward:
    """Tick until a forward is committed; return its times."""
    platform, engine = site.platform, site.engine
    acked: list[int] = []
    ticks: list[tuple[int, int]] = []
    next_tick = started = perf_counter_ns()
    while transaction.status != "committed":
        while len(acked) < len(sequences) and engine.acks.load(BACKUP) >= sequences[len(acked)]:
            acked.append(perf_counter_ns())
        now = perf_counter_ns()
        if now >= next_tick:
            site.tick()
            ticks.append((now, perf_counter_ns()))
            next_tick = now + TICK_NS
        sleep(0)  # for threads that compute, where there are some
        if now > started + PATIENCE_NS or transaction.status == "rolled_back":
            message = f"a backup is {transaction.status} ({transaction.reason}), want committed"
            raise CopyError(message)
    # What the last tick has seen has come by then.
    acked += [ticks[-1][0]] * (len(sequences) - len(acked))
    platform.synchronize()
    times = [platform.host_ns(mark) for mark in marks]
    return Forward(
        layers=tuple(pairwise(times)),
        copied=tuple(platform.host_ns(mark) for mark in copied),
        acked=tuple(acked),
        ticks=tuple(ticks[-TICKS_SHOWN:]),
        bytes=size,
    )


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Keep the drivers from warning of what is asked of them."""
    logger = logging.getLogger("cpkv")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
