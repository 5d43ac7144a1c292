"""Beginnings of layers, where SGLang replays a prompt's forward from the pieces of a graph.

Modules are not called then, and their hooks do not fire; but attention is computed between the pieces, by the same
call as without graphs. When the attention of a layer begins, all of the layer before it is queued.
"""

from functools import wraps
from typing import Any

from cpkv.drivers import HostTier


class AttentionBreaks:
    """Lets each layer's attention copy the layers before it, as far as no layer end has.

    Args:
        tier: What is told.
        backend: What computes the attention of a model (SGLang's `AttentionBackend`).
        first: The model's first layer in SGLang's count, which is not 0 behind the first pipeline stage.
        start: Its first layer among those of the forward: 0 for the target, behind the target's for a draft.
        layers: How many the model has.
    """

    def __init__(self, tier: HostTier, backend: Any, *, first: int, start: int, layers: int) -> None:  # noqa: ANN401 - SGLang's
        self._tier = tier
        self._backend = backend
        self._start, self._end = start, start + layers
        self._is_at_last = False
        """Whether the last layer has begun since the forward has."""
        shift, last = start - first, self._end - 1
        forward = backend.forward

        @wraps(forward)
        def reaching(q: Any, k: Any, v: Any, layer: Any, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - SGLang's
            reached = layer.layer_id + shift
            tier.layer_reached(reached)
            self._is_at_last = reached == last
            return forward(q, k, v, layer, *arguments, **named)

        backend.forward = reaching

    def begin(self) -> None:
        """A forward begins."""
        self._is_at_last = False

    def end(self) -> None:
        """A forward has ended: if its last layer began it is there as well."""
        if self._is_at_last:
            self._tier.layer_reached(self._end)

    def remove(self) -> None:
        """Leave the attention as it was. Idempotent."""
        vars(self._backend).pop("forward", None)
