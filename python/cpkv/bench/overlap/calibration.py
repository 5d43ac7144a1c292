"""How much a layer has to compute to take as long as is wanted."""

from collections.abc import Callable
from typing import Final

from cpkv.bench.copy.platform import LAYER_UNITS
from cpkv.bench.overlap.formulas import next_units

TRIES: Final = 5
CLOSE_ENOUGH: Final = 0.005
"""Of the wanted time. Whole units may not come so near: then the nearest of the tries is taken."""


def calibrated_units(layer_ns: Callable[[int], float], wanted_ns: float) -> int:
    """Return the units of a layer that takes a wanted time.

    Args:
        layer_ns: Measures a layer of so many units, in a forward of such layers.
        wanted_ns: What it has to take.
    """
    units, errors = LAYER_UNITS, dict[int, float]()
    while units not in errors and len(errors) < TRIES:
        taken_ns = layer_ns(units)
        errors[units] = abs(taken_ns - wanted_ns)
        if errors[units] <= CLOSE_ENOUGH * wanted_ns:
            break
        units = next_units(units, taken_ns, wanted_ns)
    return min(errors, key=errors.__getitem__)
