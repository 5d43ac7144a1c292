"""What belongs to a page: one component for each kind of per-page state."""

from dataclasses import dataclass
from typing import Literal

Model = Literal["target", "draft"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Component:
    """One kind of per-page state, such as `target_kv`, `target_index`, `draft_kv` or `draft_index`.

    Args:
        name: What it is called, on the device and on the host alike.
        model: Whose layers it belongs to.
        layers: The layers of that model that own rows, ascending. A layer that shares the indexer of
            another one is left out.
        row_bytes: Bytes that a page takes in one layer.
        dtype: What the bytes are, for people and for comparing two ends: `"bfloat16"`,
            `"float8_e4m3fn"`, `"uint8"` for what is packed.
        is_replicated: Every rank has a copy of every page, whatever lane the page is in.
    """

    name: str
    model: Model
    layers: tuple[int, ...]
    row_bytes: int
    dtype: str = "uint8"
    is_replicated: bool = False

    def conflicts(self, model_layers: int) -> list[str]:
        """Return what is wrong with it in a model with so many layers."""
        wrong = []
        if not self.name:
            wrong.append("a component has no name")
        if self.row_bytes < 1:
            wrong.append(f"{self.name} has rows of {self.row_bytes} bytes, want at least 1")
        if list(self.layers) != sorted(set(self.layers)):
            wrong.append(f"{self.name} has layers {list(self.layers)}, want each once and in order")
        outside = [layer for layer in self.layers if not 0 <= layer < model_layers]
        if outside:
            wrong.append(f"{self.name} has layers {outside}, want 0 to {model_layers - 1} as the {self.model} has them")
        return wrong
