"""When layers have ended and copies were made, by one clock."""

import time
from collections import Counter
from types import SimpleNamespace

from cpkv.device import BACKUP
from cpkv.device.cpu import CpuEngine
from cpkv.drivers import HostTier

_make = CpuEngine.__init__
_begin = HostTier.begin_forward
_layer_ended = HostTier.layer_ended
_end = HostTier.end_forward


class Timeline:
    """Of the forwards of one scheduler, from its start on."""

    def __init__(self):
        self._forwards = []
        self._copies = {}

    def watch(self):
        """Install everything."""
        forwards, copies = self._forwards, self._copies

        def make(engine, *arguments, **named):
            _make(engine, *arguments, **named)
            engine._on_copied = copied

        def copied(stream, sequence, began_ns, ended_ns):
            if stream == BACKUP:
                copies[sequence] = began_ns, ended_ns

        def begin(tier, *arguments):
            first = tier.engine.next_sequence(BACKUP)
            # Where a graph is replayed no layer ends are heard.
            forwards.append(SimpleNamespace(began_ns=time.monotonic_ns(), first=first, layer_ended_ns=0))
            _begin(tier, *arguments)

        def layer_ended(tier, layer):
            if forwards:
                forwards[-1].layer_ended_ns = time.monotonic_ns()
            _layer_ended(tier, layer)

        def end(tier, **named):
            forwards[-1].ended_ns = time.monotonic_ns()
            _end(tier, **named)
            forwards[-1].stop = tier.engine.next_sequence(BACKUP)

        CpuEngine.__init__ = make
        HostTier.begin_forward, HostTier.layer_ended, HostTier.end_forward = begin, layer_ended, end

    def figures(self):
        """Forwards with copies, those whose first copy began before the last layer ended, nanoseconds of copies."""
        figures = Counter(copied_forwards=0, early_forwards=0, copy_ns=0, copy_within_ns=0)
        for forward in self._forwards:
            copies = [self._copies[number] for number in range(forward.first, forward.stop) if number in self._copies]
            if not copies:
                continue
            figures["copied_forwards"] += 1
            figures["early_forwards"] += copies[0][0] < forward.layer_ended_ns
            for began, ended in copies:
                figures["copy_ns"] += ended - began
                figures["copy_within_ns"] += max(min(ended, forward.ended_ns) - max(began, forward.began_ns), 0)
        return figures
