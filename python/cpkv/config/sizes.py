"""Sizes that ranks have measured differently, agreed on as the least of them."""

import json
import logging
from array import array
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, Final, TypeAlias

from cpkv._core import __version__
from cpkv.errors import ConfigError, InputTypeError, LogError
from cpkv.types import Int64s

Reduce: TypeAlias = Callable[[Any], Int64s | Callable[[], Int64s]]
"""What `CacheManager.attach_reduction` takes."""

SIZES: Final = ("device_pages", "host_slots")
NUMBERS: Final = 128
"""How many numbers are reduced: more than there are to tell, and alike in every version."""

_logger: Final = logging.getLogger("cpkv.config")


def agreed_sizes(settings: Mapping[str, Any], reduce: Reduce) -> dict[str, int]:
    """Return the least of each size over all ranks.

    Raises:
        ConfigError: Naming everything else that is not alike on all ranks.
        InputTypeError, LogError: What `reduce` returns cannot be the minimum over all ranks.
    """
    alike = _alike(settings)
    numbers = array("q")
    for digest in map(_digest, (f"cpkv {__version__}: {' '.join(alike)}", *alike.values())):
        # The minimum of what is negative is the maximum: both are the digest if it is everybody's.
        numbers.extend((digest, -digest))
    first_size = len(numbers)
    numbers.extend(settings[name] or 0 for name in SIZES)
    numbers.extend([0] * (NUMBERS - len(numbers)))
    least = _reduced(numbers, reduce)

    is_alike = [low == -high for low, high in zip(least[:first_size:2], least[1:first_size:2], strict=True)]
    if not is_alike[0]:
        message = f"cpkv is {__version__} on this rank and another version on another, want one on all ranks"
        raise ConfigError(message)
    differing = [told for told, same in zip(alike.values(), is_alike[1:], strict=True) if not same]
    if differing:
        message = "; ".join(f"{told} on this rank and differs on another, want it alike on all" for told in differing)
        raise ConfigError(message)
    return {name: size for name, size in zip(SIZES, least[first_size:], strict=False) if settings[name] is not None}


def tell_reduced(settings: Mapping[str, Any], agreed: Mapping[str, int]) -> None:
    """Log what this rank has to do without."""
    for name, size in agreed.items():
        if size != settings[name]:
            _logger.warning("%s is %d instead of %d: another rank has no more", name, size, settings[name])


def _alike(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return what has to be alike on all ranks, in words, by the name of its setting."""
    words = {name: f"{name} is {json.dumps(value)}" for name, value in settings.items()}
    return words | {name: f"{name} is {'none' if settings[name] is None else 'given'}" for name in SIZES}


def _digest(text: str) -> int:
    """Return 62 bits, which can be negative as well."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") >> 2


def _reduced(numbers: "array[int]", reduce: Reduce) -> list[int]:
    reduced = reduce(numbers)
    if callable(reduced):
        reduced = reduced()
    try:
        least = [int(reduced[place]) for place in range(len(reduced))]
    except (TypeError, ValueError) as error:
        message = f"reduced sizes: got {type(reduced).__name__}, want {NUMBERS} integers"
        raise InputTypeError(message) from error
    if len(least) != len(numbers) or any(low > own for low, own in zip(least, numbers, strict=True)):
        message = f"the reduced sizes are not the minimum of the {NUMBERS} numbers of each rank"
        raise LogError(message)
    return least
