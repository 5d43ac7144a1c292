"""Layer-end hooks on the decoder layers of a torch model."""

from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from cpkv.drivers.tier import HostTier
from cpkv.errors import ConfigError


class Removable(Protocol):
    """What `register_forward_hook` returns."""

    def remove(self) -> None:
        """Take the hook off."""


class Layer(Protocol):
    """The part of `torch.nn.Module` that is needed."""

    def register_forward_pre_hook(self, hook: Any, /) -> Removable:  # noqa: ANN401 - torch has its own type
        """Call `hook(module, args)` before each forward."""

    def register_forward_hook(self, hook: Any, /) -> Removable:  # noqa: ANN401 - torch has its own type
        """Call `hook(module, args, output)` after each forward."""


class LayerHooks:
    """Hooks on the layers of one model, the target or the draft: each copies its own components only.

    A context manager that takes them off at its end. Engines that know when a layer ends can call
    `HostTier.layer_begins` and `layer_ended` themselves.

    Args:
        tier: What is told.
        layers: The decoder layers in order, as the components of the layout number them.
        model: Whose they are.
        waits: Whether a layer waits, before it begins, for what is restored of it. Without, whoever reads its
            pages calls `HostTier.layer_begins`.

    Raises:
        ConfigError: The layout has more or fewer layers: the target's would stand for the draft's.
    """

    def __init__(
        self, tier: HostTier, layers: Iterable[Layer], *, model: Literal["target", "draft"], waits: bool = True
    ) -> None:
        layout = tier.host.layout
        first, wanted = (layout.target_layers, layout.draft_layers) if model == "draft" else (0, layout.target_layers)
        layers = list(layers)
        if len(layers) != wanted:
            message = f"the {model} has {len(layers)} layers to hook, want {wanted} as the layout has"
            raise ConfigError(message)
        self._handles: list[Removable] = []
        for layer, module in enumerate(layers, first):
            if waits:
                self._handles.append(module.register_forward_pre_hook(_before(tier, layer)))
            self._handles.append(module.register_forward_hook(_after(tier, layer)))

    def remove(self) -> None:
        """Take all hooks off. Idempotent."""
        while self._handles:
            self._handles.pop().remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()


def _before(tier: HostTier, layer: int) -> Any:  # noqa: ANN401 - torch has its own type
    def hook(_module: Any, _arguments: Any) -> None:  # noqa: ANN401 - torch has its own types
        tier.layer_begins(layer)

    return hook


def _after(tier: HostTier, layer: int) -> Any:  # noqa: ANN401 - torch has its own type
    def hook(_module: Any, _arguments: Any, _output: Any) -> None:  # noqa: ANN401 - torch has its own types
        tier.layer_ended(layer)

    return hook
