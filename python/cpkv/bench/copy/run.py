"""What all measurements of one run share: the machine, the settings, the peers, and the time that is left."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, Literal

from cpkv.bench.copy.figure import CopyFigure
from cpkv.bench.copy.peers import PeerCopies
from cpkv.bench.copy.platform import Platform
from cpkv.bench.copy.pools import Pools, mla_layout
from cpkv.bench.copy.settings import CopySettings
from cpkv.bench.copy.site import Site
from cpkv.bench.copy.targets import Targets
from cpkv.bench.copy.timeline import Timeline
from cpkv.errors import CpkvError

if TYPE_CHECKING:
    from cpkv.bench.copy.outcome import Outcomes
    from cpkv.device import Direction

MOST_SAID = 300
FEWER_REPEATS: Final = 3
"""Of what nothing is wanted of, and of peers that are slow."""
_PATH = re.compile(r"(?<![\w.:])/[^\s:'\",;)]*/")


def without_paths(text: str) -> str:
    """Return a text with the last parts of the paths in it only."""
    return _PATH.sub("", text)


def said(error: BaseException) -> str:
    """Return an error in one line, without paths."""
    lines = str(error).strip().splitlines() or [""]
    name = "" if isinstance(error, CpkvError) else f"{type(error).__name__}: "
    return without_paths(name + lines[0])[:MOST_SAID]


@dataclass
class Run:
    """One run of the benchmark.

    Args:
        platform: The machine.
        settings: With all sizes.
        peers: Whom we are compared to.
        missing: Peers that are not there, and why.
        targets: What is wanted.
    """

    platform: Platform
    settings: CopySettings
    peers: Sequence[PeerCopies]
    missing: Mapping[str, str]
    targets: Targets
    timeline: Timeline = field(default_factory=Timeline)
    totals: Counter[str] = field(default_factory=Counter)
    """What all tiers of the run have counted."""
    explained: dict[str, str] = field(default_factory=dict)
    """How the engine copies, and why."""
    outcomes: "dict[tuple[Direction, int], Outcomes]" = field(default_factory=dict)
    """What the peers did so far on scattered pages, by direction and pages."""
    has_led: list[bool] = field(default_factory=list)
    """Of forwards that are not in the timeline: whether a copy had ended before the last layer did."""
    started_s: float = field(default_factory=time.monotonic)

    @property
    def pages(self) -> tuple[int, ...]:
        """Pages of a layer, ascending."""
        return self.settings.pages or ()

    @property
    def layers(self) -> int:
        """Layers of a forward."""
        return self.settings.layers or 1

    @property
    def repeats(self) -> int:
        """How often everything is measured that something is wanted of."""
        return self.settings.repeats

    @property
    def fewer_repeats(self) -> int:
        """How often the rest is."""
        return min(self.repeats, FEWER_REPEATS)

    def is_wanted(self, pages: int) -> bool:
        """Whether bandwidths and slowdowns of so many pages of a layer may have targets: those of the most have."""
        return pages == self.pages[-1]

    def check_time(self) -> None:
        """Refuse to begin something when the time is over.

        Raises:
            CpkvError: It is.
        """
        if time.monotonic() - self.started_s > self.settings.seconds:
            message = f"not begun: the run has taken its {self.settings.seconds:g} s"
            raise CpkvError(message)

    @contextmanager
    def site(
        self,
        *,
        pages: int,
        slots: int,
        layers: int | None = None,
        draft_layers: int = 0,
        device_pool: Literal["owned", "external"] = "external",
    ) -> Iterator[Site]:
        """Give a tier on the platform's memory, and add to the totals what it has counted."""
        layout = mla_layout(layers or self.layers, draft_layers=draft_layers)
        pools = Pools(self.platform, layout, pages=pages, slots=slots)
        with Site(pools, device_pool=device_pool) as site:
            try:
                yield site
            finally:
                counts = site.tier.counts
                self.totals.update(counts.as_dict())
                self.explained.update({what: without_paths(why) for what, why in site.engine.explain().items()})

    def figures(self, measure: Callable[[], Sequence[CopyFigure]], rows: Sequence[CopyFigure]) -> list[CopyFigure]:
        """Return figures, or each of `rows`, which have no samples, as failed: the others go on."""
        try:
            self.check_time()
            return list(measure())
        except Exception as error:  # noqa: BLE001 - told in the figures
            return [replace(row, error=said(error)) for row in rows]
