"""SGLang's layer counter: a forward reads a layer of its pools, and waits for what is restored of that layer."""

from collections.abc import Iterable
from typing import Any

from cpkv.drivers import HostTier


class LayerWaits:
    """What one of SGLang's pools asks before it hands out a layer (its `LayerDoneCounter`).

    Each pool has its own: the target's, and those of its draft, which the draft reads after the target has run.

    Args:
        tier: Knows what the forward has to wait for.
        layers: Those of the pool, as the forward counts them.
    """

    consumer_index = 0
    """SGLang asks whether anything is on its way, which the tier tells itself."""

    def __init__(self, tier: HostTier, layers: range) -> None:
        self._tier = tier
        self._layers = layers
        self.num_layers = len(layers)
        """Before a whole forward is replayed, SGLang waits for the last of them."""

    def wait_until(self, layer: int) -> None:
        """Let the forward wait for a layer of the pool."""
        self._tier.layer_begins(self._layers[layer])

    def set_consumer(self, index: int) -> None:
        """Do nothing: what a forward waits for goes with its requests."""

    def reset(self) -> None:
        """Do nothing: there is nothing of the last forward."""


def let_wait(draft_pools: Iterable[Any], tier: HostTier) -> None:
    """Let the draft's pools, one for each depth, wait for what is restored of their layers."""
    first = tier.host.layout.target_layers
    for pool in draft_pools:
        layers = range(first, first + pool.layer_num)
        pool.register_layer_transfer_counter(LayerWaits(tier, layers))
        first = layers.stop
