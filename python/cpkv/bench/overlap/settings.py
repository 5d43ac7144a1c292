"""What the overlap is measured with."""

from dataclasses import dataclass, field
from typing import Final

from cpkv.bench.copy.settings import CopySettings
from cpkv.errors import ConfigError

DRAFT_LAYERS: Final = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class OverlapSettings:
    """The work to be measured.

    Args:
        shares: Percent of a layer's time that its copy takes, each number a set of rows.
        copies: What is copied, how, and how often; of its pages the largest number, its layers the target's.

    Raises:
        ConfigError: With everything that is wrong.
    """

    shares: tuple[int, ...] = (10, 50, 90)
    copies: CopySettings = field(default_factory=lambda: CopySettings(repeats=11, peers="none", seconds=120.0))

    def __post_init__(self) -> None:
        """Refuse shares that cannot be."""
        conflicts = [] if self.shares else ["shares is empty, want at least one number"]
        conflicts += [f"shares has {share}, want at least 1" for share in self.shares if share < 1]
        if len(set(self.shares)) < len(self.shares):
            conflicts.append(f"shares has a number twice: {', '.join(map(str, self.shares))}")
        if conflicts:
            raise ConfigError("; ".join(conflicts))
