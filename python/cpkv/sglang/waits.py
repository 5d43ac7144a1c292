"""SGLang's layer counter: a forward reads a layer of its pools, and waits for what is restored of that layer."""

from cpkv.drivers import HostTier


class LayerWaits:
    """What SGLang's pools ask before they hand out a layer (its `LayerDoneCounter`).

    Args:
        tier: Knows what the forward has to wait for.
    """

    consumer_index = 0
    """SGLang asks whether anything is on its way, which the tier tells itself."""

    def __init__(self, tier: HostTier) -> None:
        self._tier = tier
        self.num_layers = tier.host.layout.target_layers
        """Before a whole forward is replayed, SGLang waits for the last of them."""
        layout = tier.host.layout
        self._last = layout.target_layers - 1
        self._draft = range(layout.target_layers, layout.layers)

    def wait_until(self, layer: int) -> None:
        """Let the forward wait for a layer of the target; with the last one for all of the draft, too."""
        self._tier.layer_begins(layer)
        if layer == self._last:
            for draft_layer in self._draft:
                self._tier.layer_begins(draft_layer)

    def set_consumer(self, index: int) -> None:
        """Do nothing: what a forward waits for goes with its requests."""

    def reset(self) -> None:
        """Do nothing: there is nothing of the last forward."""
