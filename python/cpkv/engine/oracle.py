"""What every page of a sequence has to hold: computed anew by one rank without a cache.

Nothing in the arithmetic depends on how a sequence was computed (`cpkv.engine.exact`), so bytes are equal or
something is wrong.
"""

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from cpkv.engine.backups import Backup
from cpkv.engine.config import EngineConfig
from cpkv.engine.engine import Engine
from cpkv.engine.exchange import Exchange
from cpkv.engine.forward import Model, Rows, pieces_in_turn
from cpkv.engine.pools import Pools
from cpkv.errors import UsageError

Pages = dict[tuple[str, int], Tensor]
"""For each component and layer the rows of pages, `uint8`, shape `(pages, row_bytes)`."""

PageRows = tuple[str, int, dict[tuple[str, int], bytes]]
"""Where a page is, its place in its sequence, and its bytes by component and layer."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What was looked at on one rank.

    Args:
        device_pages: Pages on the device that were compared, in every component and layer.
        host_pages: Host slots that were.
        wrong: What differs: where, which page, which component and layer.
    """

    device_pages: int
    host_pages: int
    wrong: tuple[str, ...]


class Oracle:
    """Pages of sequences, computed when they are asked for first.

    Args:
        config: Of the engine whose pages are compared.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._config = replace(config, device="cpu")
        self._pages: dict[tuple[int, ...], Pages] = {}

    def pages(self, tokens: Sequence[int]) -> Pages:
        """Return the whole pages of a sequence: `(len(tokens) - 1) // page_size` of them."""
        key = tuple(tokens)
        if key not in self._pages:
            self._pages[key] = self._computed(key)
        return self._pages[key]

    def compare(self, engine: Engine, sequences: Sequence[Sequence[int]]) -> Compared:
        """Compare everything that a match of sequences returns and that is in the lane of this rank.

        Args:
            engine: Between two of its steps, without a restore under way.
            sequences: Tokens.
        """
        device, host = 0, 0
        wrong: list[str] = []
        for number, tokens in enumerate(sequences):
            with engine.cache.lock(engine.cache.match(np.array(tokens))) as lease:
                if lease.restores():
                    message = f"sequence {number} is being restored: compare it when that has landed"
                    raise UsageError(message)
                of_device = _own(engine, 0, lease.page_ids())
                of_host = _own(engine, lease.device_pages, lease.host_slots())
                device, host = device + len(of_device), host + len(of_host)
                rows = [*_device_rows(engine, of_device), *_host_rows(engine, of_host)]
                wrong += self._wrong(tokens, f"sequence {number}", rows)
        return Compared(device, host, tuple(wrong))

    def compare_backup(self, engine: Engine, backup: Backup) -> Compared:
        """Compare the host slots of a backup that has just become visible, those in the lane of this rank.

        Args:
            engine: Whose tick has made it visible.
            backup: What it is of.
        """
        own = _own(engine, backup.first_page, backup.slots)
        what = "a late backup" if backup.is_late else "a backup"
        wrong = list(self._wrong(backup.tokens, what, _host_rows(engine, own)))
        return Compared(0, len(own), tuple(wrong))

    def _wrong(self, tokens: Sequence[int], what: str, pages: Iterable[PageRows]) -> Iterator[str]:
        for place, page, rows in pages:
            for row, stored in rows.items():
                if stored != self.pages(tokens)[row][page].numpy().tobytes():
                    yield f"{what}, page {page}, {row[0]} of layer {row[1]} {place}"

    def _computed(self, tokens: tuple[int, ...]) -> Pages:
        count, size = len(tokens) - 1, self._config.page_size
        whole = count // size
        config = replace(self._config, device_pages=whole + 1)
        pools = Pools(config)
        model = Model(config, pools, Exchange(0, 1), lambda _: None, lambda _: None)
        positions = torch.arange(count)
        rows = Rows(
            positions=positions,
            requests=torch.zeros_like(positions),
            tokens=torch.tensor(tokens[:-1], dtype=torch.int64),
            next_tokens=torch.tensor(tokens[1:], dtype=torch.int64),
            pages=[range(whole + 1)],
            pieces=pieces_in_turn([0], [count]),
        )
        model.draft(rows, model.target(rows))
        return {
            (name, layer): tensor[:whole]
            for name, tensors in pools.tensors.items()
            for layer, tensor in enumerate(tensors)
        }


def _own(engine: Engine, first_page: int, ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return the pages whose page or slot is in the own lane, with its place there."""
    ranks = engine.cp_size
    return [(page, id_ // ranks) for page, id_ in enumerate(ids, first_page) if id_ % ranks == engine.rank]


def _device_rows(engine: Engine, pages: list[tuple[int, int]]) -> Iterator[PageRows]:
    for page, own in pages:
        rows = {
            (name, layer): tensor[own].cpu().numpy().tobytes()
            for name, tensors in engine.pools.tensors.items()
            for layer, tensor in enumerate(tensors)
        }
        yield f"on the device (page {own})", page, rows


def _host_rows(engine: Engine, slots: list[tuple[int, int]]) -> Iterator[PageRows]:
    if engine.tier is None:
        return
    host = engine.tier.host
    for page, slot in slots:
        addresses = host.addresses(np.array([slot]))
        rows = {
            (row.component.name, row.layer): ctypes.string_at(int(address), row.component.row_bytes)
            for row, address in zip(host.layout.rows, addresses.ravel(), strict=True)
        }
        yield f"on the host (slot {slot})", page, rows
