"""One forward of a rank: the rows that it computes, and the layers over them.

Each layer is the same for target and draft: wait for what is restored of it, compute what is kept of the own
rows, write that to the own lane, read the context from all lanes, attend, and say that the layer has ended.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cpkv.cp import CpSplit, LocalView, direct_writes
from cpkv.cp.tensors import CpTensors
from cpkv.engine.config import EngineConfig
from cpkv.engine.draft_log import DraftLog
from cpkv.engine.exact import linear, normalized, rotations, snap
from cpkv.engine.exchange import Exchange
from cpkv.engine.layer import Context, attended, fed_forward, state_of
from cpkv.engine.pools import Pools
from cpkv.engine.weights import LayerWeights, ModelWeights


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of one request.

    Args:
        request: Its place in the batch.
        rows: Its rows among those of the forward.
        first_position: Of the first of them.
        step: From the position of a row to the next.
    """

    request: int
    rows: slice
    first_position: int
    step: int = 1

    def lengths(self, device: torch.device) -> Tensor:
        """Return the tokens that each row sees, itself included, as a kernel finds them: of the part's own run."""
        count = self.rows.stop - self.rows.start
        first = self.first_position + 1
        return torch.arange(first, first + count * self.step, self.step, device=device)


@dataclass(frozen=True)
class Rows:
    """What a rank computes in a forward.

    Args:
        positions: Of each row, `int64`, shape `(n,)`.
        requests: The request of each, by its place in the batch, the same shape.
        tokens: Of each.
        next_tokens: The token behind each, which the draft reads; 0 where it is not known yet.
        pages: For each request of the batch its pages, up to the last position.
        pieces: Runs of rows of one request, one after the other, which are what attention is called for.
        tensors: Of the split; `None` if every rank computes all rows, as in decode.
        is_direct: Whether the rank writes its rows directly, and nobody gathers them.
    """

    positions: Tensor
    requests: Tensor
    tokens: Tensor
    next_tokens: Tensor
    pages: Sequence[Sequence[int]]
    pieces: Sequence[Piece]
    tensors: CpTensors | None = None
    is_direct: bool = True


class Model:
    """Target and draft on one rank.

    Args:
        config: Of the engine.
        pools: The rank's pages.
        exchange: The model's collectives.
        layer_begins: Called before a layer of a forward is computed; the host tier's.
        layer_ended: Called when one was; the host tier's.
    """

    def __init__(
        self,
        config: EngineConfig,
        pools: Pools,
        exchange: Exchange,
        layer_begins: Callable[[int], None],
        layer_ended: Callable[[int], None],
    ) -> None:
        self.config = config
        self.weights = ModelWeights.draw(config.model, config.device)
        self.pools = pools
        self.exchange = exchange
        self.layer_begins = layer_begins
        self.layer_ended = layer_ended
        self.draft_log = DraftLog(exchange.rank, exchange.cp_size)
        self._turns = rotations(512, config.model.rope).to(config.device)

    # --- Forwards ---

    def target(self, rows: Rows) -> Tensor:
        """Return the target's hidden states of the rows, shape `(n, hidden)`."""
        hidden = self.weights.embedding[rows.tokens]
        for layer, weights in enumerate(self.weights.layers):
            hidden = self._layer(layer, weights, rows, hidden)
        return normalized(hidden)

    def draft(self, rows: Rows, hidden: Tensor) -> Tensor:
        """Return the draft's hidden states of the rows.

        It reads the token behind each row, and the target's hidden state of the row itself: the rank's own
        ones, which nobody has to gather.

        Args:
            rows: See `Rows`.
            hidden: Of the target, or of the draft where the target has not been yet, shape `(n, hidden)`.
        """
        tokens = self.weights.embedding[rows.next_tokens]
        inputs = snap(linear(tokens, self.weights.draft_token) + linear(hidden, self.weights.draft_hidden))
        return normalized(self._layer(self.config.model.layers, self.weights.draft, rows, inputs))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits of hidden states, shape `(n, vocab)`."""
        return linear(hidden, self.weights.head)

    # --- Layers ---

    def _layer(self, layer: int, weights: LayerWeights, rows: Rows, hidden: Tensor) -> Tensor:
        self.layer_begins(layer)
        turns = self._turns_of(rows.positions)
        kv, index = state_of(weights, hidden, turns)
        self._write(layer, rows, kv, index)
        contexts = self._contexts(layer, rows)
        added = torch.zeros_like(hidden)
        for piece in rows.pieces:
            mine, context = piece.rows, contexts[piece.request]
            lengths = piece.lengths(hidden.device)
            added[mine] = attended(self.config.model, weights, hidden[mine], turns[:, mine], lengths, context)
        hidden = snap(hidden + added)
        hidden = snap(hidden + fed_forward(weights, hidden))
        self.layer_ended(layer)
        return hidden

    def _write(self, layer: int, rows: Rows, kv: Tensor, index: Tensor) -> None:
        """Write what belongs to the own lane: directly, or after everybody has sent what it has computed."""
        positions, requests, sent = rows.positions, rows.requests, 0
        if rows.tensors is not None and not rows.is_direct:
            sent = len(kv) if self.exchange.cp_size > 1 else 0
            split = rows.tensors.view.split
            together = self._gathered(rows.tensors, torch.cat([kv, index], 1))
            kv, index = together[:, : kv.shape[1]], together[:, kv.shape[1] :]
            positions, requests = _all_rows(split, positions.device)
        locations = self.locations(rows.pages, requests, positions)
        size, ranks = self.config.page_size, self.exchange.cp_size
        if rows.tensors is not None and rows.is_direct:
            # cpkv: the gate, which refuses rows that are not this rank's to write.
            writes = direct_writes(rows.tensors.view, locations.cpu().numpy())
            local = torch.from_numpy(writes.local_locations).to(kv.device)
        else:
            pages = locations // size
            mine = pages % ranks == self.exchange.rank
            local = pages[mine] // ranks * size + locations[mine] % size
            kv, index = kv[mine], index[mine]
        self.pools.write(layer, local, kv, index)
        if layer == self.config.model.layers:
            self.draft_log.written(local, size, sent)

    def _gathered(self, tensors: CpTensors, own: Tensor) -> Tensor:
        return tensors.gather(own, lambda padded: self.exchange.all_gather("rows", padded))

    def _contexts(self, layer: int, rows: Rows) -> list[Context]:
        """Read what the layer has kept of the requests, from all lanes."""
        ids = torch.tensor([page for pages in rows.pages for page in pages], device=rows.positions.device)
        mine = ids[ids % self.exchange.cp_size == self.exchange.rank] // self.exchange.cp_size
        kv, index = self.pools.rows(*self.exchange.pages(ids, *self.pools.read(layer, mine)))
        counts = [len(pages) * self.config.page_size for pages in rows.pages]
        return [Context(*parts) for parts in zip(kv.split(counts), index.split(counts), strict=True)]

    def locations(self, pages: Sequence[Sequence[int]], requests: Tensor, positions: Tensor) -> Tensor:
        """Return where tokens lie, page id and offset, shape `(n,)`."""
        size = self.config.page_size
        most = max(map(len, pages), default=0)
        table = torch.tensor([[*each, *[-1] * (most - len(each))] for each in pages], device=positions.device)
        return table[requests, positions // size] * size + positions % size

    def _turns_of(self, positions: Tensor) -> Tensor:
        last = int(positions.max()) if len(positions) else 0
        while last >= self._turns.shape[1]:
            self._turns = rotations(2 * self._turns.shape[1], self.config.model.rope).to(positions.device)
        return self._turns[:, positions]


def _all_rows(split: CpSplit, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return positions and requests of all batch rows."""
    counts = split.batch.extend_tokens
    requests = np.repeat(np.arange(len(counts)), counts)
    positions = np.arange(split.tokens) + (split.batch.prefix_tokens - split.batch_firsts[:-1])[requests]
    return torch.from_numpy(positions).to(device), torch.from_numpy(requests).to(device)


def own_rows(
    view: LocalView, tensors: CpTensors, sequences: Sequence[Sequence[int]], pages: Sequence[Sequence[int]]
) -> Rows:
    """Return the rows of a rank of a batch that was split.

    Args:
        view: The rank's.
        tensors: Of it.
        sequences: The tokens of each request, as far as they are known.
        pages: See `Rows`.
    """
    device = tensors.positions.device
    requests = torch.from_numpy(view.requests).to(device)
    tokens, next_tokens = tokens_at(sequences, view.requests, view.positions)
    return Rows(
        positions=tensors.positions,
        requests=requests,
        tokens=tokens.to(device),
        next_tokens=next_tokens.to(device),
        pages=pages,
        pieces=pieces_of(view),
        tensors=tensors,
        is_direct=view.split.page_aligned,
    )


def pieces_of(view: LocalView) -> list[Piece]:
    """Return the rows of each request in each part: parts are as long as they are, not halves."""
    pieces = []
    for part in view.parts:
        firsts, counts = part.first_positions.tolist(), part.token_counts.tolist()
        pieces += _pieces(part.requests.tolist(), firsts, counts, first_row=part.first_row, step=part.step)
    return pieces


def pieces_in_turn(firsts: Sequence[int], counts: Sequence[int]) -> list[Piece]:
    """Return pieces of all requests, one after the other.

    Args:
        firsts: The first position of each.
        counts: Rows of each.
    """
    return _pieces(range(len(counts)), firsts, counts)


def _pieces(
    requests: Sequence[int], firsts: Sequence[int], counts: Sequence[int], *, first_row: int = 0, step: int = 1
) -> list[Piece]:
    pieces = []
    for request, first, count in zip(requests, firsts, counts, strict=True):
        pieces.append(Piece(request, slice(first_row, first_row + count), first, step))
        first_row += count
    return pieces


def tokens_at(sequences: Sequence[Sequence[int]], requests: object, positions: object) -> tuple[Tensor, Tensor]:
    """Return the tokens at positions and those behind them; 0 where none is known."""
    pairs = list(zip(np.asarray(requests).tolist(), np.asarray(positions).tolist(), strict=True))
    ended = [[*tokens, 0] for tokens in sequences]
    now = torch.tensor([ended[request][position] for request, position in pairs], dtype=torch.int64)
    behind = [ended[request][min(position + 1, len(ended[request]) - 1)] for request, position in pairs]
    return now, torch.tensor(behind, dtype=torch.int64)
