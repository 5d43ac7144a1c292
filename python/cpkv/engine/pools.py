"""A rank's pages: what each layer keeps of them, in tensors that the engine owns."""

import torch
from torch import Tensor

from cpkv.engine.config import EngineConfig
from cpkv.engine.state_rows import index_page_rows
from cpkv.errors import ConfigError
from cpkv.layout import Buffers, Component, PageLayout

SCRIBBLE = 0xEE


def check_device(config: EngineConfig) -> None:
    """Refuse a GPU that this machine does not have.

    Raises:
        ConfigError: Names the device, and how many there are.
    """
    gpus = torch.cuda.device_count() if config.is_on_gpu else 0
    if config.is_on_gpu and config.gpu >= gpus:
        message = f"device is {config.device!r}, and torch finds {gpus} GPUs"
        raise ConfigError(message)


def layout_of(config: EngineConfig) -> PageLayout:
    """Return what a page has: KV and indexer state of each layer of the target, and of the draft's."""
    model, size = config.model, config.page_size

    def component(name: str, of: str, layers: int, token_bytes: int, dtype: str) -> Component:
        return Component(
            name=f"{of}_{name}",
            model="target" if of == "target" else "draft",
            layers=tuple(range(layers)),
            row_bytes=size * token_bytes,
            dtype=dtype,
        )

    return PageLayout(
        page_size=size,
        target_layers=model.layers,
        draft_layers=1,
        components=(
            component("kv", "target", model.layers, model.kv_bytes, "bfloat16"),
            component("index", "target", model.layers, model.index_bytes, "uint8"),
            component("kv", "draft", 1, model.kv_bytes, "bfloat16"),
            component("index", "draft", 1, model.index_bytes, "uint8"),
        ),
    )


class Pools:
    """The pages of one rank's lane, layer by layer, `uint8`.

    Layers of a forward are those of the target, then the draft's.

    Args:
        config: Of the engine.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.layout = layout_of(config)
        self.tensors: dict[str, list[Tensor]] = {
            component.name: [
                torch.full((config.device_pages, component.row_bytes), SCRIBBLE, dtype=torch.uint8).to(config.device)
                for _ in component.layers
            ]
            for component in self.layout.components
        }

    def buffers(self) -> dict[str, Buffers]:
        """Describe the tensors to the host tier: addresses and strides, nothing is copied."""
        return {name: Buffers.of(tensors) for name, tensors in self.tensors.items()}

    def of_layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return KV and indexer pages of a layer of the forward."""
        model = "target" if layer < self.config.model.layers else "draft"
        own = layer if model == "target" else layer - self.config.model.layers
        return self.tensors[f"{model}_kv"][own], self.tensors[f"{model}_index"][own]

    def write(self, layer: int, locations: Tensor, kv: Tensor, index: Tensor) -> None:
        """Put tokens where they belong.

        Args:
            layer: Of the forward.
            locations: In this rank's pool, page and offset, shape `(n,)`.
            kv: Bytes of each, shape `(n, kv_bytes)`.
            index: Bytes of each, shape `(n, index_bytes)`.
        """
        size, dim = self.config.page_size, self.config.model.index_dim
        kv_pages, index_pages = self.of_layer(layer)
        kv_pages.view(-1, kv.shape[1])[locations] = kv
        pages, offsets = locations // size, locations % size
        # Views of the two places in a page; writing to them writes to the page.
        index_pages[:, : size * dim].unflatten(1, (size, dim))[pages, offsets] = index[:, :dim]
        index_pages[:, size * dim :].unflatten(1, (size, 4))[pages, offsets] = index[:, dim:]

    def read(self, layer: int, pages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pages of a layer, KV and indexer state, shapes `(n, row_bytes)`."""
        kv_pages, index_pages = self.of_layer(layer)
        return kv_pages[pages], index_pages[pages]

    def rows(self, kv: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Turn pages that were read into the bytes of their tokens."""
        model = self.config.model
        return kv.reshape(-1, model.kv_bytes), index_page_rows(index, model.index_dim)

    def scribble(self, pages: list[int]) -> None:
        """Overwrite pages whose bytes nobody may use any more."""
        if not pages:
            return
        for tensors in self.tensors.values():
            for tensor in tensors:
                tensor[pages] = SCRIBBLE
