"""What is measured alike, ours and the peers': one round of copies between two marks."""

from typing import Protocol

from cpkv.bench.copy.platform import Mark


class Copier(Protocol):
    """Copies the same pages once in each round: `begin`, `submit`, `ended`, and `finish` when all has come."""

    @property
    def bytes(self) -> int:
        """What a round copies."""

    @property
    def layers(self) -> int:
        """Of how many layers."""

    def begin(self) -> None:
        """Do what comes before the copies and is no part of their time."""

    def submit(self) -> None:
        """Queue all copies behind what is queued on `compute` by now."""

    def ended(self) -> Mark:
        """Mark the end of the last copy. To be called right after `submit`."""

    def finish(self) -> None:
        """Clean up. Everything queued has ended."""
