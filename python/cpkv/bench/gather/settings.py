"""What is gathered, and how often."""

from dataclasses import dataclass, replace
from typing import Final, Literal, Self, cast

from cpkv._core import MOST_RANKS
from cpkv.cp import CpSplit, Mode, interleave_split, zigzag_split
from cpkv.errors import ConfigError

DeviceName = Literal["cuda", "cpu"]
DEVICES: Final = ("auto", "cuda", "cpu")
SPLITS: Final = ("zigzag", "interleave")
ELEMENT_BYTES: Final = 2
"""Of bf16."""
PAGE_SIZE: Final = 64
FEWEST_RANKS: Final = 2
FEWEST_TOKENS: Final = 2
"""Of a request for each rank: lengths differ by less than there are ranks."""
SETTINGS_FILE: Final = "settings.json"
"""What the ranks read their settings from."""

_TOKENS: Final[dict[DeviceName, int]] = {"cuda": 8_192, "cpu": 256}
_HIDDEN: Final[dict[DeviceName, int]] = {"cuda": 7_168, "cpu": 256}
_REPEATS: Final[dict[DeviceName, int]] = {"cuda": 200, "cpu": 20}


@dataclass(frozen=True, slots=True)
class GatherCase:
    """One batch to gather.

    Args:
        mode: How it is split.
        batch: Requests.
    """

    mode: Mode
    batch: int

    def __str__(self) -> str:
        return f"{self.mode}, batch {self.batch}"

    def split(self, ranks: int, tokens: int) -> CpSplit:
        """Return a batch of `ranks * tokens` tokens over the ranks.

        Its requests differ in length by some tokens, so that with the interleaved split several ranks have last tokens.
        """
        length, longer = divmod(ranks * tokens, self.batch)
        lengths = [length + (request < longer) for request in range(self.batch)]
        for pair in range(self.batch // 2):
            lengths[2 * pair] += pair % ranks
            lengths[2 * pair + 1] -= pair % ranks
        split_batch = zigzag_split if self.mode == "zigzag" else interleave_split
        return split_batch([0] * self.batch, lengths, cp_size=ranks, page_size=PAGE_SIZE)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatherSettings:
    """The work to be measured.

    Args:
        device: Where the ranks are; "auto" for GPUs if each rank can have one.
        ranks: Context-parallel rank processes.
        tokens: Tokens of a batch for each rank; `None` for what fits the device.
        hidden: Elements of a hidden state, bf16; `None` for what fits the device.
        batches: Requests of a batch, each number a set of rows.
        splits: How batches are split, each a set of rows.
        repeats: How often each gather is timed, in turns; `None` for what fits the device.

    Raises:
        ConfigError: With everything that is wrong.
    """

    device: str = "auto"
    ranks: int = 2
    tokens: int | None = None
    hidden: int | None = None
    batches: tuple[int, ...] = (1, 8)
    splits: tuple[str, ...] = SPLITS
    repeats: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be."""
        conflicts = []
        if self.device not in DEVICES:
            conflicts.append(f"device is {self.device!r}, want one of {', '.join(DEVICES)}")
        if not FEWEST_RANKS <= self.ranks <= MOST_RANKS:
            conflicts.append(f"ranks is {self.ranks}, want {FEWEST_RANKS} to {MOST_RANKS}")
        least = FEWEST_TOKENS * max(self.batches, default=1)
        if self.tokens is not None and self.tokens < least:
            conflicts.append(f"tokens is {self.tokens}, want at least {least}, {FEWEST_TOKENS} for each request")
        if self.hidden is not None and self.hidden < 1:
            conflicts.append(f"hidden is {self.hidden}, want at least 1")
        if not self.batches:
            conflicts.append("batches is empty, want at least one number")
        conflicts += [f"batch is {batch}, want at least 1" for batch in self.batches if batch < 1]
        if not self.splits or set(self.splits) - set(SPLITS):
            conflicts.append(f"splits are {', '.join(self.splits) or 'none'}, want some of {', '.join(SPLITS)}")
        if self.repeats is not None and self.repeats < 1:
            conflicts.append(f"repeats is {self.repeats}, want at least 1")
        if conflicts:
            raise ConfigError("; ".join(conflicts))

    def fitted(self, device: DeviceName) -> Self:
        """Return the settings for a device, with the sizes that were left open.

        Raises:
            ConfigError: There are too few tokens for the requests.
        """
        return replace(
            self,
            device=device,
            tokens=self.tokens or _TOKENS[device],
            hidden=self.hidden or _HIDDEN[device],
            repeats=self.repeats or _REPEATS[device],
        )

    @property
    def cases(self) -> list[GatherCase]:
        """All batches, in the order of the table."""
        return [GatherCase(cast("Mode", split), batch) for split in self.splits for batch in self.batches]
