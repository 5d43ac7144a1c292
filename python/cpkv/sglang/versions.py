"""Which versions of SGLang there is an adapter for."""

import re
from enum import Enum
from typing import Final

from cpkv.errors import ConfigError


class Interface(Enum):
    """What SGLang's scheduler calls to keep what a request has computed."""

    CACHE_REQ = "cache_finished_req and cache_unfinished_req"
    INSERT_REQ = "insert_req and cache_unfinished_req"
    CHECKPOINT = "checkpoint"


INTERFACES: Final = {
    "0.5.17": Interface.CACHE_REQ,
    "0.5.18": Interface.CACHE_REQ,
    "0.5.19": Interface.CACHE_REQ,
    "0.5.20": Interface.CACHE_REQ,
    "0.5.21": Interface.INSERT_REQ,
    "0.5.22": Interface.CHECKPOINT,
    "0.5.23": Interface.CHECKPOINT,
}

WAITS_BEFORE_GRAPHS: Final = ("0.5.23",)
"""Those that wait for what comes back from the host before they replay a whole forward from one graph."""


def release_of(version: str) -> str | None:
    """Return the release that a version is, or follows; `None` if it is none."""
    release = re.fullmatch(r"(\d+\.\d+\.\d+)(\.post\d+)?(\+.*)?", version)
    return release[1] if release else None


def interface_of(version: str) -> Interface:
    """Return what a version of SGLang expects. A post release is like the one that it follows.

    Raises:
        ConfigError: The version is not known.
    """
    interface = INTERFACES.get(release_of(version) or "")
    if interface is None:
        known = list(INTERFACES)
        message = (
            f"SGLang is {version}, want {known[0]} to {known[-1]}: install one of these, "
            "or start without --radix-cache-backend cpkv"
        )
        raise ConfigError(message)
    return interface
