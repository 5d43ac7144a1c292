"""What the measurements are run with."""

from dataclasses import dataclass

from cpkv._core import MOST_RANKS
from cpkv.errors import ConfigError
from cpkv.replay import Request

MOST_OPERATIONS = 100_000
FEWEST_TICKS = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """The work to be measured.

    Args:
        requests: The requests to serve; empty if nothing is picked that serves requests.
        repeats: How often everything is measured, taking turns.
        ranks: Rank processes on one commit log.
        operations: Operations that are open during their ticks.
        ticks: Ticks of each rank for each skew and repeat.

    Raises:
        ConfigError: With everything that is wrong.
    """

    requests: tuple[Request, ...] = ()
    repeats: int = 5
    ranks: int = 8
    operations: int = 1_000
    ticks: int = 1_000

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be."""
        ranges = [
            ("repeats", self.repeats, 1, None),
            ("ranks", self.ranks, 1, MOST_RANKS),
            ("operations", self.operations, 1, MOST_OPERATIONS),
            ("ticks", self.ticks, FEWEST_TICKS, None),
        ]
        conflicts = []
        for name, value, least, most in ranges:
            if value < least or (most is not None and value > most):
                wanted = f"at least {least}" if most is None else f"{least} to {most}"
                conflicts.append(f"{name} is {value}, want {wanted}")
        if conflicts:
            raise ConfigError("; ".join(conflicts))
