"""What the copies are measured with."""

from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from cpkv.errors import ConfigError
from cpkv.replay import Request

EngineName = Literal["cuda", "cpu"]
ENGINES: Final = ("auto", "cuda", "cpu")
COPY_PATHS: Final = ("auto", "batch", "blocks", "kernel", "each")
PEERS: Final = ("all", "plain", "none")
SEGMENT_PAGES: Final = 32
PAGE_SIZE: Final = 64
RESTORED_LAYERS: Final = 78
"""As many as GLM-5 has."""

_PAGES: Final[dict[EngineName, tuple[int, ...]]] = {"cuda": (16, 128, 512), "cpu": (4, 16)}
_LAYERS: Final[dict[EngineName, int]] = {"cuda": 61, "cpu": 4}


@dataclass(frozen=True, kw_only=True, slots=True)
class CopySettings:
    """The work to be measured.

    Args:
        pages: Pages that a forward copies in each layer, each number a set of rows; `None` for what fits
            the engine.
        layers: Layers of a forward; `None` for what fits the engine.
        repeats: How often what something is wanted of is measured, in turns with what it is compared to.
        copy_path: How the engine `cuda` copies; `None` leaves it the choice.
        peers: Whom we are compared to: `"plain"` leaves out other projects' code.
        seconds: What would begin later is not measured.
        requests: What fragments the host pool.
        source: Where they are from.

    Raises:
        ConfigError: With everything that is wrong.
    """

    pages: tuple[int, ...] | None = None
    layers: int | None = None
    repeats: int = 7
    copy_path: str | None = None
    peers: str = "all"
    seconds: float = 240.0
    requests: tuple[Request, ...] = ()
    source: str = "nowhere"

    def __post_init__(self) -> None:
        """Refuse sizes that cannot be."""
        conflicts = []
        if self.pages is not None and not self.pages:
            conflicts.append("pages is empty, want at least one number")
        conflicts += [f"pages is {count}, want at least 1" for count in self.pages or () if count < 1]
        if self.layers is not None and self.layers < 1:
            conflicts.append(f"layers is {self.layers}, want at least 1")
        if self.repeats < 1:
            conflicts.append(f"repeats is {self.repeats}, want at least 1")
        if self.copy_path is not None and self.copy_path not in COPY_PATHS:
            conflicts.append(f"copy_path is {self.copy_path!r}, want one of {', '.join(COPY_PATHS)}")
        if self.peers not in PEERS:
            conflicts.append(f"peers is {self.peers!r}, want one of {', '.join(PEERS)}")
        if not self.seconds > 0:
            conflicts.append(f"seconds is {self.seconds:g}, want more than 0")
        if conflicts:
            raise ConfigError("; ".join(conflicts))

    def fitted(self, engine: EngineName) -> Self:
        """Return the settings with the sizes that were left open.

        Raises:
            ConfigError: The engine has no choice of paths.
        """
        if engine == "cpu" and self.copy_path is not None:
            message = f"copy_path is {self.copy_path!r}, which the engine 'cpu' does not have: want none"
            raise ConfigError(message)
        return replace(
            self, pages=tuple(sorted(set(self.pages or _PAGES[engine]))), layers=self.layers or _LAYERS[engine]
        )

    def with_requests(self, requests: tuple[Request, ...], source: str) -> Self:
        """Return the settings with what fragments the host pool, and where it is from."""
        return replace(self, requests=requests, source=source)
