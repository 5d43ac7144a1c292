"""Layers that only compute, with hooks as those of a torch model: what a forward is made of here."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cpkv.bench.copy.platform import LAYER_UNITS, Mark, Platform
from cpkv.bench.copy.site import Site
from cpkv.drivers import LayerHooks

Hook = Callable[..., None]


class SyntheticLayer:
    """A layer of a model, as `LayerHooks` takes it.

    Args:
        platform: Where it computes.
        units: How much of it, see `Platform.layer`.
    """

    def __init__(self, platform: Platform, units: int = LAYER_UNITS) -> None:
        self._platform = platform
        self._units = units
        self._before: list[Hook] = []
        self._after: list[Hook] = []

    def register_forward_pre_hook(self, hook: Hook, /) -> "Registered":
        """Call `hook(layer, arguments)` before each forward."""
        return Registered(self._before, hook)

    def register_forward_hook(self, hook: Hook, /) -> "Registered":
        """Call `hook(layer, arguments, output)` after each forward."""
        return Registered(self._after, hook)

    def __call__(self) -> Mark:
        """Queue the layer, with its hooks; return the mark of its end."""
        for hook in self._before:
            hook(self, ())
        self._platform.layer(self._units)
        end = self._platform.mark("compute")
        for hook in self._after:
            hook(self, (), None)
        return end


class Registered:
    """A hook that is in its place until it is removed."""

    def __init__(self, hooks: list[Any], hook: Hook) -> None:
        self._hooks = hooks
        self._hook = hook
        hooks.append(hook)

    def remove(self) -> None:
        """Take the hook off."""
        self._hooks.remove(self._hook)


def plain_layers(site: Site, units: int = LAYER_UNITS) -> list[SyntheticLayer]:
    """Return the layers of a forward, those of the target and then those of the draft, without hooks."""
    return [SyntheticLayer(site.platform, units) for _ in range(site.layers)]


@contextmanager
def hooked_layers(site: Site, units: int = LAYER_UNITS) -> Iterator[Sequence[SyntheticLayer]]:
    """Give the layers of a forward, with hooks for the target and for the draft."""
    layers, targets = plain_layers(site, units), site.pools.layout.target_layers
    with (
        LayerHooks(site.tier, layers[:targets], model="target"),
        LayerHooks(site.tier, layers[targets:], model="draft"),
    ):
        yield layers
