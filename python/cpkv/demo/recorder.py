"""When the layers, copies and commits of a rank were, in the format of Chrome's trace viewer and Perfetto."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from cpkv.demo.timed_engine import TimedCudaEngine
from cpkv.demo.watching import COMMITS, STEPS, Progress
from cpkv.device import BACKUP, LATE, RESTORE, CopyEngine
from cpkv.engine import Engine
from cpkv.engine.backups import Backup

_ROWS = {"forward": 1, "layer": 2, "copy": 3, "late": 4, "restore": 5, "commit": 6}
_TITLES = {
    "forward": "forwards",
    "layer": "layers",
    "copy": "backups",
    "late": "late backups",
    "restore": "restores",
    "commit": "commits",
}
_KINDS = {BACKUP: "copy", LATE: "late", RESTORE: "restore"}

Moment = Any
"""On the host in nanoseconds, or a mark of a GPU's clock."""


class Recorder:
    """What has happened on a rank.

    Layers and forwards are taken where they are computed: in the calling thread, or in the stream of a GPU.

    Args:
        rank: Which one.
        name: Of the group it is in.
        gpu: What copies, if that is a GPU; else `copied` is told.
    """

    def __init__(self, rank: int, name: str, gpu: TimedCudaEngine | None = None) -> None:
        self.rank = rank
        self._name = name
        self._gpu = gpu
        self._spans: list[tuple[str, str, Moment, Moment]] = []
        """What, its name, begin and end."""
        self._layer_began: Moment = 0
        self._forward_began: Moment | None = None
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._progress: Progress | None = None
        self._copier: CopyEngine | None = None
        self._layers: dict[int, int] = {}
        """Of each submission of a backup during a forward, by its number."""
        self._acked = 0

    def attach(self, engine: Engine, progress: Progress) -> None:
        """Listen to an engine."""
        self._progress = progress
        if self._gpu is not None:
            self._gpu.clock.align()
        layers = engine.config.model.layers + 1
        begins, ended = engine.model.layer_begins, engine.model.layer_ended
        copier = self._copier = engine.tier.engine if engine.tier is not None else None

        def layer_begins(layer: int) -> None:
            begins(layer)
            self._layer_began = self._now()
            if self._forward_began is None:
                self._forward_began = self._layer_began

        def layer_ended(layer: int) -> None:
            now = self._now()
            first = copier.next_sequence(BACKUP) if copier is not None else 0
            ended(layer)
            if copier is not None:
                self._layers.update(dict.fromkeys(range(first, copier.next_sequence(BACKUP)), layer))
            progress.computed(layer)
            self._look_at_copies()
            self._note("layer", f"{'draft' if layer == layers - 1 else 'layer'} {layer}", self._layer_began, now)
            if layer == layers - 1 and self._forward_began is not None:
                self._note("forward", "forward", self._forward_began, now)
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
        kind = _KINDS[stream]
        with self._lock:  # each stream has a thread
            self._note(kind, f"{kind} {sequence}", began_ns, ended_ns)

    def committed(self, backups: Sequence[Backup]) -> None:
        """Note what a tick has made visible."""
        if self._progress is not None:
            self._progress.add(STEPS)
            self._progress.add(COMMITS, len(backups))
            self._look_at_copies()
        if backups:
            now = time.monotonic_ns()
            late = sum(backup.is_late for backup in backups)
            self._note("commit", f"commit of {len(backups)}, {late} late", now, now)

    def _look_at_copies(self) -> None:
        """Tell which layers' copies have ended since the last look."""
        acked = self._copier.acks.load(BACKUP) if self._copier is not None else 0
        while self._acked < acked:
            self._acked += 1
            if self._acked in self._layers and self._progress is not None:
                self._progress.copied(self._layers[self._acked])

    def finish(self) -> None:
        """Take what a GPU has copied; waits for it."""
        if self._gpu is not None:
            for copy in self._gpu.copies():
                self.copied(*copy)
            self._spans = [
                (kind, name, self._nanoseconds(began), self._nanoseconds(ended))
                for kind, name, began, ended in self._spans
            ]

    def events(self) -> list[dict[str, Any]]:
        """Return the timeline, after `finish`."""
        whose = {"pid": f"{self._name}, rank {self.rank}"}
        titles = [
            {"name": "thread_name", "ph": "M", "tid": row, "args": {"name": _TITLES[kind]}} | whose
            for kind, row in _ROWS.items()
        ]
        return titles + [
            {
                "name": name,
                "cat": kind,
                "ph": "X",
                "tid": _ROWS[kind],
                "ts": began_ns / 1_000,
                "dur": (ended_ns - began_ns) / 1_000,
            }
            | whose
            for kind, name, began_ns, ended_ns in self._spans
        ]

    def backup_ns(self) -> tuple[int, int]:
        """Return how long backups were copied, and how much of it lies within forwards, in nanoseconds.

        Late ones are not behind the forward that has computed their pages, and are left out.
        """
        copies, forwards = (
            [(began, ended) for kind, _, began, ended in self._spans if kind == wanted]
            for wanted in ("copy", "forward")
        )
        total = sum(end - begin for begin, end in copies)
        within = sum(
            max(min(end, forward_end) - max(begin, forward_begin), 0)
            for begin, end in copies
            for forward_begin, forward_end in forwards
        )
        return total, within

    def _now(self) -> Moment:
        return time.monotonic_ns() if self._gpu is None else self._gpu.mark()

    def _nanoseconds(self, moment: Moment) -> int:
        return moment if isinstance(moment, int) or self._gpu is None else self._gpu.clock.nanoseconds(moment)

    def _note(self, kind: str, name: str, began: Moment, ended: Moment) -> None:
        self._spans.append((kind, name, began, ended))
