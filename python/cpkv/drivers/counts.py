"""What the drivers have done, and warnings that do not flood a log."""

import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

logger = logging.getLogger("cpkv")

WARNING_INTERVAL_S = 60.0


@dataclass(slots=True)
class Counts:
    """Totals since the tier was made."""

    hooked_forwards: int = 0
    """Forwards whose layers were all submitted by their hooks."""
    hooked_layers: int = 0
    """Layers submitted by hooks."""
    repeated_layers: int = 0
    """Layers whose hook came again in the same forward, and that were copied again."""
    all_layer_forwards: Counter[str] = field(default_factory=Counter)
    """Forwards with layers that no hook had submitted at their end, by reason."""
    late_operations: int = 0
    """Late backups submitted."""
    restores: int = 0
    """Restores submitted."""
    failed_submissions: int = 0
    """Submissions that could not be queued, or whose copies failed."""
    backup_bytes: int = 0
    """Submitted during forwards or at their end."""
    late_bytes: int = 0
    """Submitted late."""
    restore_bytes: int = 0
    """Submitted for restores."""

    def as_dict(self) -> dict[str, int]:
        """Return all totals by name; forwards by reason are `all_layer_forwards_<reason>`."""
        names = [name for name in self.__slots__ if name != "all_layer_forwards"]
        totals = {name: getattr(self, name) for name in names}
        totals["all_layer_forwards"] = self.all_layer_forwards.total()
        return totals | {f"all_layer_forwards_{reason}": n for reason, n in sorted(self.all_layer_forwards.items())}


class RateLimit:
    """Says a thing at most once in an interval, and how often it has happened since."""

    def __init__(self, interval_s: float = WARNING_INTERVAL_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = interval_s
        self._clock = clock
        self._said: dict[str, float] = {}
        self._unsaid: Counter[str] = Counter()

    def warn(self, kind: str, message: str) -> None:
        """Log a warning, unless one of its kind was logged a moment ago."""
        now = self._clock()
        if kind in self._said and now - self._said[kind] < self._interval_s:
            self._unsaid[kind] += 1
            return
        self._said[kind] = now
        more = self._unsaid.pop(kind, 0)
        logger.warning("%s%s", message, f" ({more} more since the last warning)" if more else "")
