"""How large the model is, and how an engine runs it."""

import re
from dataclasses import dataclass, field
from typing import Literal

from cpkv.cp.batch import check_sizes
from cpkv.engine.exact import MOST_INPUTS, MOST_KEYS
from cpkv.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """A model of the DeepSeek-V3.2 kind, small: latent attention over the tokens that an indexer selects.

    Args:
        vocab: Token ids go from 0 to one less.
        hidden: Width between layers.
        layers: Of the target. The draft has one more of its own.
        heads: Of attention.
        latent: Width of the latent that is kept for each token; it is key and value.
        rope: Width of the part of a key that carries the position.
        index_heads: Of the indexer.
        index_dim: Width of an indexer key, one byte each; 128 as in DeepSeek-V3.2.
        top_k: Tokens that attention reads.
        seed: Of the weights.
    """

    vocab: int = 128
    hidden: int = 64
    layers: int = 3
    heads: int = 2
    latent: int = 32
    rope: int = 16
    index_heads: int = 2
    index_dim: int = 128
    top_k: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what is not positive."""
        check_sizes(**{name: getattr(self, name) for name in self.__slots__ if name != "seed"})
        if self.top_k > MOST_KEYS:
            message = f"top_k is {self.top_k}, want {MOST_KEYS} at most, so that sums over keys are exact"
            raise ConfigError(message)
        if self.rope % 2:
            message = f"rope is {self.rope}, want an even number"
            raise ConfigError(message)
        inputs = max(2 * self.hidden, self.heads * self.latent)
        if inputs > MOST_INPUTS:
            message = f"a sum has {inputs} products, want {MOST_INPUTS} at most, so that it is exact"
            raise ConfigError(message)

    @property
    def kv_bytes(self) -> int:
        """Bytes of a token's latent and key in a layer, in bfloat16."""
        return 2 * (self.latent + self.rope)

    @property
    def index_bytes(self) -> int:
        """Bytes of a token's indexer key and scale in a layer."""
        return self.index_dim + 4


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """How a group of ranks serves.

    Args:
        model: What is served.
        page_size: Tokens of a page.
        device_pages: Device pages of each rank.
        host_slots: Host slots of each rank; 0 for no host tier.
        segment_pages: Host slots of a segment.
        chunk_tokens: Tokens of a prompt that a forward computes at most, of all its requests.
        max_requests: Requests in a forward.
        split: How the ranks share a prompt.
        draft_tokens: Tokens that the draft proposes before each verification.
        device: Where tensors are: "cpu", "cuda", or one of several GPUs, "cuda:1". The ranks of a group share
            all GPUs with "cuda". Copies are made by the engine that fits.
        is_cached: Whether there is a cache; without, every prompt is computed whole.
        gathers_all_hidden: Whether the hidden states of all tokens are gathered, as if a request wanted them back.
        keeps_logits: Whether requests keep the logits of their tokens, to compare them.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    page_size: int = 16
    device_pages: int = 256
    host_slots: int = 256
    segment_pages: int = 4
    chunk_tokens: int = 256
    max_requests: int = 4
    split: Literal["zigzag", "interleave"] = "zigzag"
    draft_tokens: int = 4
    device: str = "cpu"
    is_cached: bool = True
    gathers_all_hidden: bool = False
    keeps_logits: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be served."""
        names = ("page_size", "device_pages", "segment_pages", "chunk_tokens", "max_requests", "draft_tokens")
        check_sizes(**{name: getattr(self, name) for name in names})
        if not isinstance(self.model, ModelConfig):
            message = f"model is {self.model!r}, want a ModelConfig"
            raise ConfigError(message)
        check_sizes(least=0, host_slots=self.host_slots)
        if not isinstance(self.device, str) or not re.fullmatch(r"cpu|cuda(:\d+)?", self.device):
            message = f"device is {self.device!r}, want 'cpu', 'cuda' or 'cuda:' and a number"
            raise ConfigError(message)
        if not isinstance(self.split, str) or self.split not in {"zigzag", "interleave"}:
            message = f"split is {self.split!r}, want 'zigzag' or 'interleave'"
            raise ConfigError(message)

    @property
    def is_on_gpu(self) -> bool:
        """Whether tensors are on a GPU."""
        return self.device.startswith("cuda")

    @property
    def gpu(self) -> int:
        """Which GPU, as the process counts them; 0 if it is not said."""
        return int(self.device.partition(":")[2] or 0)
