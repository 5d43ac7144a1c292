"""Which context-parallel rank a process is, said once, so that nothing asks another group by mistake."""

from dataclasses import dataclass

from cpkv.cp.batch import check_sizes
from cpkv.errors import ConfigError, InputError


@dataclass(frozen=True, slots=True)
class CpGroups:
    """The context-parallel groups of a server.

    Processes in a row share the attention heads of one context-parallel rank; ranks in a row make a group; a
    server has a group for each data-parallel replica of its attention. That is SGLang's order.

    Args:
        world_size: Processes (`--tp-size`).
        cp_size: Context-parallel ranks of a group.
        dp_size: Groups.

    Raises:
        ConfigError: The processes cannot be divided so.
    """

    world_size: int
    cp_size: int
    dp_size: int = 1

    def __post_init__(self) -> None:
        """Refuse what does not divide."""
        check_sizes(world_size=self.world_size, cp_size=self.cp_size, dp_size=self.dp_size)
        if self.world_size % (self.cp_size * self.dp_size):
            message = (
                f"world_size is {self.world_size}, want a multiple of "
                f"{self.cp_size} context-parallel ranks x {self.dp_size} groups"
            )
            raise ConfigError(message)

    @property
    def heads_size(self) -> int:
        """Processes that share the attention heads of one context-parallel rank, and hold equal pages."""
        return self.world_size // (self.cp_size * self.dp_size)

    def cp_rank(self, process: int) -> int:
        """Return the context-parallel rank of a process: the lane whose pages it keeps.

        Raises:
            InputError: There is no such process.
        """
        return self._known(process) // self.heads_size % self.cp_size

    def members(self, process: int) -> tuple[int, ...]:
        """Return the processes of its context-parallel group, by rank.

        Raises:
            InputError: There is no such process.
        """
        group = self.heads_size * self.cp_size
        first = self._known(process) // group * group + process % self.heads_size
        return tuple(range(first, first + group, self.heads_size))

    def _known(self, process: int) -> int:
        if not 0 <= process < self.world_size:
            message = f"process is {process}, want 0 to {self.world_size - 1}"
            raise InputError(message)
        return process
