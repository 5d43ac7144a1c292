"""When the layers, copies and commits of a rank were, in the format of Chrome's trace viewer and Perfetto."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from cpkv.demo.watching import COMMITS, COPIES, STEPS, Progress
from cpkv.device import BACKUP
from cpkv.engine import Engine
from cpkv.engine.engine import Backup

_ROWS = {"forward": 1, "layer": 2, "copy": 3, "restore": 4, "commit": 5}


class Recorder:
    """What has happened on a rank.

    Args:
        rank: Which one.
        name: Of the group it is in.
    """

    def __init__(self, rank: int, name: str) -> None:
        self.rank = rank
        self.events: list[dict[str, Any]] = []
        self._name = name
        self._layer_began = 0
        self._forward_began: int | None = None
        self._forwards: list[tuple[int, int]] = []
        self._copies: list[tuple[int, int]] = []
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._progress: Progress | None = None

    def attach(self, engine: Engine, progress: Progress) -> None:
        """Listen to an engine."""
        self._progress = progress
        layers = engine.config.model.layers + 1
        begins, ended = engine.model.layer_begins, engine.model.layer_ended

        def layer_begins(layer: int) -> None:
            begins(layer)
            self._layer_began = time.monotonic_ns()
            if self._forward_began is None:
                self._forward_began = self._layer_began

        def layer_ended(layer: int) -> None:
            now = time.monotonic_ns()
            ended(layer)
            progress.layer(layer)
            self._note("layer", f"{'draft' if layer == layers - 1 else 'layer'} {layer}", self._layer_began, now)
            if layer == layers - 1 and self._forward_began is not None:
                self._note("forward", "forward", self._forward_began, now)
                self._forwards.append((self._forward_began, now))
                self._forward_began = None
            for place, (wanted, act) in enumerate(self._waiting):
                if wanted == layer:
                    del self._waiting[place]
                    act()
                    break

        engine.model.layer_begins, engine.model.layer_ended = layer_begins, layer_ended

    def at_layer(self, layer: int, act: Callable[[], None]) -> None:
        """Do something once, when this layer ends next."""
        self._waiting.append((layer, act))

    def copied(self, stream: int, sequence: int, began_ns: int, ended_ns: int) -> None:
        """Note what the copy engine tells."""
        with self._lock:  # each stream has a thread
            if self._progress is not None:
                self._progress.add(COPIES)
        kind = "copy" if stream == BACKUP else "restore"
        self._note(kind, f"{kind} {sequence}", began_ns, ended_ns)
        if stream == BACKUP:
            self._copies.append((began_ns, ended_ns))

    def committed(self, backups: Sequence[Backup]) -> None:
        """Note what a tick has made visible."""
        if self._progress is not None:
            self._progress.add(STEPS)
            self._progress.add(COMMITS, len(backups))
        if backups:
            now = time.monotonic_ns()
            self._note("commit", f"commit of {len(backups)}", now, now)

    def backup_ns(self) -> tuple[int, int]:
        """Return how long backups were copied, and how much of it lies within forwards, in nanoseconds."""
        total = sum(end - begin for begin, end in self._copies)
        within = sum(
            max(min(end, forward_end) - max(begin, forward_begin), 0)
            for begin, end in self._copies
            for forward_begin, forward_end in self._forwards
        )
        return total, within

    def _note(self, kind: str, name: str, began_ns: int, ended_ns: int) -> None:
        self.events.append(
            {
                "name": name,
                "cat": kind,
                "ph": "X",
                "pid": f"{self._name}, rank {self.rank}",
                "tid": _ROWS[kind],
                "ts": began_ns / 1_000,
                "dur": (ended_ns - began_ns) / 1_000,
            }
        )
