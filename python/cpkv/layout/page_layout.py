"""All the state of a page: which rows it has, and where they lie in the host slot of one page."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cpkv.errors import ConfigError
from cpkv.layout.component import Component
from cpkv.layout.formats import INDEX_BYTES_PER_TOKEN, MLA_BYTES_PER_TOKEN, attention_bytes_per_token

MOST_BYTES = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Row:
    """What a page has of one component in one layer: the unit of every copy."""

    component: Component
    layer: int
    """Of the component's own model."""
    offset: int
    """Bytes of a slot in front of it."""


@dataclass(frozen=True, kw_only=True)
class PageLayout:
    """The components of a page.

    The layers of a forward are those of the target, then those of the draft: layer `target_layers` is
    the draft's first. The rows of a page are in the order in which a forward fills them: by layer,
    within a layer in the order of `components`. A layer may own none.

    Args:
        page_size: Tokens in a page.
        target_layers, draft_layers: Layers of the models.
        components: Every kind of state of a page.

    Raises:
        ConfigError: With everything that is wrong.
    """

    page_size: int
    target_layers: int
    draft_layers: int = 0
    components: tuple[Component, ...]
    rows: tuple[Row, ...] = field(init=False)
    slot_bytes: int = field(init=False)
    row_bytes: NDArray[np.int64] = field(init=False, compare=False, repr=False)
    row_offsets: NDArray[np.int64] = field(init=False, compare=False, repr=False)
    first_rows: tuple[int, ...] = field(init=False)
    """For each layer of the forward its first row, and at the end the number of rows."""
    first_bytes: tuple[int, ...] = field(init=False)
    """For each layer of the forward the bytes of a slot in front of it, and at the end those of a slot."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, and find the place of each row."""
        conflicts = list(self._conflicts())
        if conflicts:
            raise ConfigError("; ".join(conflicts))
        rows: list[Row] = []
        first_rows, first_bytes = [0], [0]
        offset = 0
        for layer in range(self.layers):
            for component, own_layer in self._owners(layer):
                rows.append(Row(component, own_layer, offset))
                offset += component.row_bytes
            first_rows.append(len(rows))
            first_bytes.append(offset)
        if offset > MOST_BYTES:
            message = f"a page has {offset} bytes, want at most {MOST_BYTES}"
            raise ConfigError(message)
        object.__setattr__(self, "rows", tuple(rows))
        object.__setattr__(self, "slot_bytes", offset)
        object.__setattr__(self, "row_bytes", _frozen(row.component.row_bytes for row in rows))
        object.__setattr__(self, "row_offsets", _frozen(row.offset for row in rows))
        object.__setattr__(self, "first_rows", tuple(first_rows))
        object.__setattr__(self, "first_bytes", tuple(first_bytes))

    def _conflicts(self) -> Iterable[str]:
        if self.page_size < 1:
            yield f"page_size is {self.page_size}, want at least 1"
        if self.target_layers < 1:
            yield f"target_layers is {self.target_layers}, want at least 1"
        if self.draft_layers < 0:
            yield f"draft_layers is {self.draft_layers}, want at least 0"
        names = [component.name for component in self.components]
        for name in sorted({name for name in names if names.count(name) > 1}):
            yield f"two components are called {name!r}"
        if not self.components:
            yield "there are no components, want at least one"
        for component in self.components:
            if component.model not in ("target", "draft"):
                yield f"{component.name} is of model {component.model!r}, want 'target' or 'draft'"
            else:
                yield from component.conflicts(self._layers_of(component.model))

    def _layers_of(self, model: str) -> int:
        return self.target_layers if model == "target" else self.draft_layers

    def _owners(self, layer: int) -> Iterable[tuple[Component, int]]:
        is_draft = layer >= self.target_layers
        own_layer = layer - self.target_layers if is_draft else layer
        for component in self.components:
            if (component.model == "draft") == is_draft and own_layer in component.layers:
                yield component, own_layer

    @property
    def layers(self) -> int:
        """Layers of a forward: those of the target, then those of the draft."""
        return self.target_layers + self.draft_layers

    def rows_of(self, layer: int) -> tuple[Row, ...]:
        """Return the rows of one layer of the forward."""
        return self.rows[self.first_rows[layer] : self.first_rows[layer + 1]]

    def component(self, name: str) -> Component:
        """Return a component by its name.

        Raises:
            ConfigError: There is none of that name.
        """
        for component in self.components:
            if component.name == name:
                return component
        message = f"component is {name!r}, want one of {', '.join(one.name for one in self.components)}"
        raise ConfigError(message)

    @classmethod
    def mla(
        cls,
        *,
        target_layers: int,
        draft_layers: int = 0,
        page_size: int = 64,
        kv: str = "bfloat16",
        index_layers: Iterable[int] | None = (),
    ) -> "PageLayout":
        """Lay out an MLA model, with the indexer of sparse attention if it has one.

        Args:
            target_layers: Layers of the target.
            draft_layers: Layers of the draft; 0 for none.
            page_size: Tokens in a page.
            kv: One of `MLA_BYTES_PER_TOKEN`.
            index_layers: The target layers that own an index buffer; `None` for all of them. With any,
                every layer of the draft owns one.

        Raises:
            ConfigError: With everything that is wrong.
        """
        if kv not in MLA_BYTES_PER_TOKEN:
            message = f"kv is {kv!r}, want one of {', '.join(MLA_BYTES_PER_TOKEN)}"
            raise ConfigError(message)
        indexed = tuple(range(target_layers)) if index_layers is None else tuple(index_layers)
        kv_dtype = "uint8" if kv == "fp8_packed" else kv
        kinds = [("kv", MLA_BYTES_PER_TOKEN[kv], kv_dtype)]
        if indexed:
            kinds.append(("index", INDEX_BYTES_PER_TOKEN, "uint8"))
        components = [
            Component(
                name=f"{model}_{kind}",
                model="target" if model == "target" else "draft",
                layers=indexed if (model, kind) == ("target", "index") else tuple(range(layers)),
                row_bytes=page_size * bytes_per_token,
                dtype=dtype,
            )
            for model, layers in (("target", target_layers), ("draft", draft_layers))
            if layers
            for kind, bytes_per_token, dtype in kinds
        ]
        return cls(
            page_size=page_size, target_layers=target_layers, draft_layers=draft_layers, components=tuple(components)
        )

    @classmethod
    def attention(  # noqa: PLR0913 - one for each size of the model
        cls,
        *,
        target_layers: int,
        heads: int,
        head_dim: int,
        draft_layers: int = 0,
        page_size: int = 64,
        dtype: str = "bfloat16",
        element_bytes: int = 2,
    ) -> "PageLayout":
        """Lay out an MHA or GQA model: K and V of every layer, `heads` of this rank.

        Raises:
            ConfigError: With everything that is wrong.
        """
        row_bytes = page_size * attention_bytes_per_token(heads, head_dim, element_bytes)
        components = [
            Component(
                name=f"{model}_{kind}",
                model="target" if model == "target" else "draft",
                layers=tuple(range(layers)),
                row_bytes=row_bytes,
                dtype=dtype,
            )
            for model, layers in (("target", target_layers), ("draft", draft_layers))
            if layers
            for kind in ("k", "v")
        ]
        return cls(
            page_size=page_size, target_layers=target_layers, draft_layers=draft_layers, components=tuple(components)
        )


def _frozen(values: Iterable[int]) -> NDArray[np.int64]:
    array = np.fromiter(values, np.int64)
    array.flags.writeable = False
    return array
