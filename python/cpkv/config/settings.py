"""The settings of a cache, as one value that is right or was never made."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

from cpkv._core import CacheManager, CommitLog
from cpkv.config import layers
from cpkv.config.checks import KINDS, joint_conflicts, manager_keywords, single_conflicts
from cpkv.config.sizes import Reduce, agreed_sizes, tell_reduced
from cpkv.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """Everything that makes a cache and is alike on all ranks.

    Of several sources the first one that has a setting counts: code, then the environment, then JSON,
    then the defaults, which are those of `CacheManager`.

    Args:
        device_pages: As for `CacheManager`; `None` until the engine has measured it.
        page_size, key, lanes, device_pool, host_slots, segment_pages, policy, copies, draft, events,
            write, write_uses, clean_pages: As for `CacheManager`.
        copy_deadline_s: Its `copy_deadline`, in seconds.
        engine: What copies pages, for `cpkv.device.open_engine`: `"cuda"`, `"cpu"`, `"manual"` for tests,
            or `"auto"` for what the machine has.
        log_warning_s: Seconds of waiting for a rank after which a warning is logged.
        log_deadline_s: Seconds of waiting for a rank after which an error is raised.

    Raises:
        ConfigError: With everything that is wrong.
    """

    device_pages: int | None = None
    page_size: int = 64
    key: Literal["token", "pair"] = "token"
    lanes: int = 1
    device_pool: Literal["owned", "external"] = "owned"
    host_slots: int | None = None
    segment_pages: int = 32
    policy: str = "lru"
    copies: Literal["assumed", "tracked"] = "assumed"
    draft: bool = False
    copy_deadline_s: float = 300.0
    events: bool = False
    write: Literal["through", "selective", "back"] = "through"
    write_uses: int = 2
    clean_pages: int = 0
    engine: Literal["auto", "cuda", "cpu", "manual"] = "auto"
    log_warning_s: float = 5.0
    log_deadline_s: float = 300.0

    def __post_init__(self) -> None:
        """Refuse what is wrong, and keep numbers in their own type."""
        values = self.as_dict()
        conflicts = [*single_conflicts(values), *joint_conflicts(values)]
        if conflicts:
            raise ConfigError("; ".join(conflict.text for conflict in conflicts))
        for name, value in values.items():
            object.__setattr__(self, name, KINDS[name].kept(value))

    @classmethod
    def load(
        cls,
        json: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
        **explicit: Any,  # noqa: ANN401 - one of each kind
    ) -> Self:
        """Put the sources together: `explicit` before `environ` before `json` before the defaults.

        Args:
            json: See `from_json`.
            environ: See `from_environment`.
            explicit: Settings by name.

        Raises:
            ConfigError: With everything that is wrong and where it comes from. What one source is wrong
                about is told even if another one covers it; whether settings go together is asked of
                what is left.
        """
        below = [] if json is None else [layers.from_json(json)]
        return cls(**layers.combined(_defaults(), *below, layers.from_environment(environ), layers.explicit(explicit)))

    @classmethod
    def from_json(cls, source: str | os.PathLike[str]) -> Self:
        """Read JSON: an object with settings by name. A string is the text, a path that of a file.

        Raises:
            ConfigError: It cannot be read, or with everything that is wrong and its key.
        """
        return cls(**layers.combined(_defaults(), layers.from_json(source)))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, base: Self | None = None) -> Self:
        """Read `CPKV_<SETTING>` variables, such as `CPKV_COPY_DEADLINE_S`, over `base` or the defaults.

        Flags are `true` or `false` (or 1, 0, yes, no, on, off), and `none` is none. Other variables
        that begin with `CPKV_` are wrong, unless they are for debugging or tests.

        Raises:
            ConfigError: With everything that is wrong and its variable.
        """
        below = _defaults() if base is None else base.as_dict()
        return cls(**layers.combined(below, layers.from_environment(environ)))

    def replace(self, **changes: Any) -> Self:  # noqa: ANN401 - one of each kind
        """Return a copy with other values for the settings that are given.

        Raises:
            ConfigError: With everything that is wrong.
        """
        return type(self)(**layers.combined(self.as_dict(), layers.explicit(changes)))

    def as_dict(self) -> dict[str, Any]:
        """Return all settings by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_json(self) -> str:
        """Return the settings as `from_json` reads them."""
        return json.dumps(self.as_dict(), indent=2)

    def agreed(self, reduce: Reduce) -> Self:
        """Agree with the other ranks on sizes that each has measured: the least counts.

        A size that is reduced on this rank is logged. To be called once on every rank.

        Args:
            reduce: Called once with an `array` of 128 integers of 64 bits. Returns their minimum over
                all ranks, or something that is called and returns it, as for
                `CacheManager.attach_reduction`.

        Raises:
            ConfigError: On every rank alike, naming each other setting that differs between ranks.
            InputTypeError, LogError: What `reduce` returns cannot be the minimum over all ranks.
        """
        settings = self.as_dict()
        sizes = agreed_sizes(settings, reduce)
        tell_reduced(settings, sizes)
        return self.replace(**sizes)

    def create(self, *, own_lane: int | None = None) -> CacheManager:
        """Make the cache.

        Args:
            own_lane: The lane whose pages this rank copies, the only setting in which ranks differ.

        Raises:
            ConfigError: `device_pages` is not known yet, or there is no such lane.
        """
        if self.device_pages is None:
            message = "device_pages is None, want the number that the engine has"
            raise ConfigError(message)
        return CacheManager(**manager_keywords(self.as_dict()), own_lane=own_lane)

    def attach_log(self, cache: CacheManager, log: CommitLog) -> None:
        """Let a cache agree with other ranks through `log`, waiting for them as these settings say.

        Raises:
            LogError: See `CacheManager.attach_log`.
        """
        log.set_patience(warning=self.log_warning_s, deadline=self.log_deadline_s)
        cache.attach_log(log)


def _defaults() -> dict[str, Any]:
    return CacheConfig().as_dict()
