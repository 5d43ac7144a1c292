"""What kind of memory is wanted, and where."""

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from cpkv.errors import ConfigError

Kind: TypeAlias = Literal["anonymous", "shared"]
Pages: TypeAlias = Literal["small", "transparent", "reserved"]

SHARED_FOLDER: Final = "/dev/shm"  # noqa: S108 - where shared memory is


@dataclass(frozen=True, slots=True)
class Placement:
    """What kind of memory is wanted, and where.

    Attributes:
        kind: `"anonymous"`, or `"shared"`: a file in `/dev/shm` that has no name any more.
        pages: `"small"`; `"transparent"`: huge pages as far as the kernel finds some; `"reserved"`: from the pool
            of reserved huge pages, or, if that has too few, as with `"transparent"`.
        node: The NUMA node that is preferred; `None` leaves it to the kernel.
    """

    kind: Kind = "anonymous"
    pages: Pages = "transparent"
    node: int | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be.

        Raises:
            ConfigError: With everything that is wrong.
        """
        conflicts = []
        if self.kind not in get_args(Kind):
            conflicts.append(f"kind is {self.kind!r}, want one of {', '.join(get_args(Kind))}")
        if self.pages not in get_args(Pages):
            conflicts.append(f"pages is {self.pages!r}, want one of {', '.join(get_args(Pages))}")
        if self.kind == "shared" and self.pages == "reserved":
            conflicts.append(
                f"pages is 'reserved' and kind 'shared', want others: {SHARED_FOLDER} has no reserved pages"
            )
        if self.node is not None and self.node < 0:
            conflicts.append(f"node is {self.node}, want at least 0, or None")
        if conflicts:
            raise ConfigError("; ".join(conflicts))
