"""The engine of one rank: a scheduler, the model, and the cache.

Every rank runs the same scheduler over the same requests and comes to the same decisions, since the cache is
alike on all of them; only the model sends anything. The places where an engine calls cpkv are marked with
`# cpkv:`, here, in `paging.py` and in `forward.py`. `docs/engine-authors.md` walks through them.
"""

from collections.abc import Callable, Iterable, Sequence
from time import monotonic, sleep
from types import TracebackType
from typing import Final, Self

import numpy as np
import torch
from torch import Tensor

from cpkv._core import CacheManager, CommitLog, Transaction
from cpkv.cp import as_last_hidden, choose_hidden_gather
from cpkv.cp.tensors import CpTensors
from cpkv.device import CopyEngine
from cpkv.drivers import HostTier, open_tier, torch_stream
from cpkv.engine.backups import Backup, late_backups
from cpkv.engine.config import EngineConfig
from cpkv.engine.exchange import Exchange, ExchangeError
from cpkv.engine.forward import Model, Rows, own_rows, pieces_in_turn, tokens_at
from cpkv.engine.freed_slots import FreedSlots
from cpkv.engine.paging import Paging
from cpkv.engine.pools import Pools, check_device
from cpkv.engine.request import Prompt, Request, Stage, is_integer, token_ids_of
from cpkv.errors import ConfigError, InputError, InputTypeError

DEATH_IS_KNOWN_S: Final = 10.0
OVER: Final = frozenset({Stage.FINISHED, Stage.ABORTED})
MOST_LOSSES: Final = 2
"""Restores that may fail under a request; after that it computes everything itself."""
WAITING_S: Final = 0.0005
"""Between steps in which there is nothing to do but to wait for copies."""


class Engine:
    """Serves requests on one rank of a context-parallel group.

    A context manager that closes at its end.

    Args:
        config: Of the engine, the same on all ranks.
        rank: Which one it is.
        cp_size: Ranks; `torch.distributed` is initialized if there are several.
        new_log: Returns the commit log of the group, given the cache's fingerprint; needed with several ranks that have
            a host tier. Others have nothing to agree about, and without it nobody says which rank is dead.
        on_layer: Called on this rank when a layer of a forward has ended.
        on_commit: Called on this rank after each tick, with the backups that it has made visible.
        copy_engine: What copies, instead of the engine that fits the device; closed with this engine.
    """

    def __init__(  # noqa: PLR0913 - one for each part
        self,
        config: EngineConfig,
        *,
        rank: int = 0,
        cp_size: int = 1,
        new_log: Callable[[int], CommitLog] | None = None,
        on_layer: Callable[[int], None] | None = None,
        copy_engine: CopyEngine | None = None,
        on_commit: Callable[[list[Backup]], None] | None = None,
    ) -> None:
        if cp_size > 1 and config.host_slots and new_log is None:
            message = f"cp_size is {cp_size}, want a commit log for the host tier: see cpkv.engine.ranks"
            raise ConfigError(message)
        check_device(config)
        self.config = config
        self.rank, self.cp_size = rank, cp_size
        self.pools = Pools(config)
        self.exchange = Exchange(rank, cp_size)
        self.requests: list[Request] = []
        """Those that have not ended."""
        self._submitted = 0
        self._on_layer = on_layer
        self._on_commit = on_commit
        self._backups: dict[int, Backup] = {}
        """What is being copied and not visible yet, by operation, if somebody wants to know."""
        self.step_number = 0
        """Of the next tick."""
        self._is_in_forward = False
        self._aborted: list[Request] = []
        """While a forward computed them."""
        # cpkv: the cache, one lane for each rank, the draft's state a part of every page.
        self.cache = CacheManager(
            page_size=config.page_size,
            key="pair",
            lanes=cp_size,
            own_lane=rank,
            device_pages=config.device_pages * cp_size,
            host_slots=config.host_slots * cp_size or None,
            segment_pages=config.segment_pages,
            copies="tracked" if config.host_slots else "assumed",
            draft=bool(config.host_slots),
        )
        self.log = new_log(self.cache.fingerprint) if new_log else None
        if self.log is not None:
            self.cache.attach_log(self.log)
        # cpkv: the host tier, over the engine's own tensors.
        self.tier: HostTier | None = None
        if config.host_slots:
            try:
                self.tier = open_tier(
                    self.cache,
                    self.pools.layout,
                    self.pools.buffers(),
                    engine=copy_engine or ("cuda" if config.is_on_gpu else "cpu"),
                    device=config.gpu,
                    compute_stream=torch_stream(config.gpu) if config.is_on_gpu else lambda: None,
                    ranks_on_host=cp_size,
                )
            except BaseException:
                if self.log is not None:
                    self.log.close()
                raise
        self._freed_slots = FreedSlots(self.cache, self.tier.host, rank, cp_size) if self.tier is not None else None
        self.paging = Paging(config, self.cache, self.pools, rank, cp_size)
        self.model = Model(config, self.pools, self.exchange, self._layer_begins, self._layer_ended)
        self.model.draft_log.pool(self.pools)

    # --- Requests ---

    def submit(self, prompt: Prompt, new_tokens: int) -> Request:
        """Take a request.

        Args:
            prompt: Token ids, at least one, shape `(n,)`: a sequence, a numpy array or a torch tensor of integers.
            new_tokens: Tokens to be generated, at least one.

        Raises:
            InputTypeError: Something is no integer; the message says what.
            InputError: It cannot be served; the message says why.
        """
        return self._queue(self._checked(prompt, new_tokens), int(new_tokens))

    def _checked(self, prompt: Prompt, new_tokens: int) -> tuple[int, ...]:
        """Return the tokens of a prompt that can be served."""
        tokens, vocab = token_ids_of(prompt), self.config.model.vocab
        if not is_integer(new_tokens):
            message = f"new_tokens is {new_tokens!r}, want an integer"
            raise InputTypeError(message)
        wrong = [token for token in tokens if not 0 <= token < vocab]
        if not tokens or wrong or new_tokens < 1:
            what = f"token {wrong[0]}" if wrong else f"{len(tokens)} tokens and {new_tokens} new ones"
            message = f"a request has {what}, want tokens from 0 to {vocab - 1}, and at least 1 of each"
            raise InputError(message)
        most = len(tokens) + new_tokens + self.config.draft_tokens
        if most > self.config.device_pages * self.cp_size * self.config.page_size // 2:
            message = f"a request takes up to {most} tokens, want half of the device pages at most"
            raise InputError(message)
        return tokens

    def _queue(self, tokens: tuple[int, ...], new_tokens: int) -> Request:
        request = Request(self._submitted, tokens, new_tokens)
        self._submitted += 1
        self.requests.append(request)
        return request

    def run(self) -> None:
        """Serve until every request has ended and every copy is where it belongs."""
        while self.step():
            pass

    def generate(self, prompts: Iterable[Prompt], new_tokens: int) -> list[Request]:
        """Serve prompts to their end.

        Raises:
            InputTypeError: As `submit`; none of the prompts is taken.
            InputError: The same.
        """
        checked = [self._checked(prompt, new_tokens) for prompt in prompts]
        requests = [self._queue(tokens, int(new_tokens)) for tokens in checked]
        self.run()
        return requests

    def abort(self, request: Request) -> None:
        """Give a request up, also while a forward computes it.

        Its copies may be under way: nothing of them becomes visible, and no page is used again before they
        have ended. To be called on every rank at the same place.
        """
        if request.stage in OVER:
            return
        request.stage = Stage.ABORTED
        if self._is_in_forward:
            # Its rows go on being computed; its pages are given back when that has ended.
            self._give_up(request)
            self._aborted.append(request)
        else:
            self._release(request)

    def step(self) -> bool:
        """Do one step of the scheduler; false if there was nothing to do.

        Raises:
            RankError: Another rank is dead or silent; the message names it.
            ExchangeError: A collective of the model has failed, and all ranks are alive.
        """
        try:
            return self._do_step()
        except ExchangeError:
            self._tell_who_is_dead()
            raise

    def _tell_who_is_dead(self) -> None:
        """Tick until the commit log says which rank is missing: it knows, and the collective does not."""
        end = monotonic() + DEATH_IS_KNOWN_S
        while self.log is not None and monotonic() < end:
            # cpkv: a rank that is dead or has left is an error that names it, the same on all others.
            self.cache.tick(self.step_number, self.tier.engine.acks if self.tier is not None else None)
            self.step_number += 1
            sleep(0.001)

    def _do_step(self) -> bool:
        self._tick()
        for request in self.requests:
            self._look_at_restores(request)
        alive = self.requests = [request for request in self.requests if request.stage not in OVER]
        self._admit_waiting(alive)
        prefill = self._take_chunks([request for request in alive if request.stage is Stage.PREFILL])
        if prefill:
            self._prefill(*zip(*prefill, strict=True))
            return True
        decode = [request for request in alive if request.stage is Stage.DECODE][: self.config.max_requests]
        decode = [request for request in decode if self.paging.take_for_decode(request)]
        if decode:
            self._decode(decode)
            return True
        if any(request.stage is not Stage.ENDING for request in alive):
            self._retract_one(alive)
            return True
        is_waiting = bool(alive) or (self.tier is not None and self.cache.has_work())
        if is_waiting:
            sleep(WAITING_S)
        return is_waiting

    def _tick(self) -> None:
        if self.tier is not None:
            # cpkv: what has landed on all ranks becomes visible, on all of them in this step.
            report = self.tier.tick(self.step_number)
            self.model.draft_log.ticked(report)
            for operation, _ in report.rolled_back:
                self._backups.pop(operation, None)
            committed = [self._backups.pop(operation) for operation in report.committed if operation in self._backups]
            if self._on_commit is not None:
                self._backups |= late_backups(self.cache, report.started)
                self._on_commit(committed)
        if self._freed_slots is not None:
            self._freed_slots.overwrite()
        self.step_number += 1

    def _look_at_restores(self, request: Request) -> None:
        """Take back what was computed from a restore that has failed, and believe what nothing hangs on any more."""
        lease = request.lease
        if request.stage in OVER:
            return
        if lease is not None and lease.lost:
            # cpkv: on some rank a copy has failed that the request has read: it starts anew, from what was certain.
            request.losses += 1
            request.take_back()
            self._restart(request)
        elif lease is None or not lease.restores():
            # cpkv: until then a token may be wrong, and the answer is not final.
            request.settle()
            if request.stage is Stage.ENDING:
                self._finish(request)

    # --- Admission ---

    def _admit_waiting(self, alive: Sequence[Request]) -> None:
        """Admit requests in turn as long as there is room, and begin to bring back what they have on the host."""
        restores: list[Transaction] = []
        try:
            for request in [request for request in alive if request.stage is Stage.WAITING]:
                if not self.paging.has_room(request, alive) or not self._admit(request, restores):
                    break
        finally:
            if restores and self.tier is not None:
                # cpkv: one call for the whole step, so that a layer of the forward waits for that layer only.
                self.tier.load(restores)

    def _admit(self, request: Request, restores: list[Transaction]) -> bool:
        """Look for what is cached of a prompt, and hold it. What has to come from the host goes on the list."""
        tokens = np.array(request.tokens)
        # cpkv: the longest prefix, and a lease on it. Something has to be left to compute.
        limit = len(tokens) - 1 if self.config.is_cached and request.losses < MOST_LOSSES else 0
        lease = self.cache.lock(self.cache.match(tokens, limit=limit))
        lanes = [slot % self.cp_size for slot in lease.host_slots()]
        if lanes:
            # cpkv: device pages for what is on the host only, in the lanes of its slots.
            if self.cache.evict_for(lanes=lanes) is None:
                lease.release()
                return False
            pages = self.paging.allocated(lanes)
            request.host_hit_tokens += len(pages) * self.config.page_size
            restored = self.cache.restore(lease, pages)
            self.paging.give_back(restored.duplicates)
            restores += restored.operations
        request.lease = lease
        request.pages = lease.page_ids().tolist()
        request.computed = len(request.pages) * self.config.page_size
        request.device_hit_tokens += request.computed - len(lanes) * self.config.page_size
        request.stage = Stage.PREFILL
        return True

    def _take_chunks(self, requests: Sequence[Request]) -> list[tuple[Request, int]]:
        """Choose what a forward computes, and take pages for it from the lanes of those who compute them."""
        taken: list[tuple[Request, int]] = []
        budget = self.config.chunk_tokens
        for request in requests[: self.config.max_requests]:
            chunk = min(len(request.tokens) - request.computed, budget)
            if chunk and self.paging.take(request, self.paging.new_lanes(request, chunk)):
                taken.append((request, chunk))
                budget -= chunk
        return taken

    # --- Prefill ---

    def _prefill(self, requests: Sequence[Request], chunks: Sequence[int]) -> None:
        split = self.paging.split(requests, chunks)
        view = split.view(self.rank)
        tensors = CpTensors.of(view, self.config.device)
        ends = [request.computed + chunk for request, chunk in zip(requests, chunks, strict=True)]
        self._reserve(requests, ends)
        self._begin_forward(requests)
        tables = self._tables(requests, ends)
        self.model.draft_log.split(view, tables)

        def rows() -> Rows:
            return own_rows(view, tensors, [request.tokens for request in requests], tables)

        hidden = self.model.target(rows())
        logits = self.model.logits(self._last_hidden(tensors, hidden, "last token"))
        are_whole = [end == len(request.tokens) for request, end in zip(requests, ends, strict=True)]
        for request, is_whole, own in zip(requests, are_whole, logits, strict=True):
            if is_whole:
                self._take_tokens(request, own[None])
        drafted = self._last_hidden(tensors, self.model.draft(rows(), hidden), "draft's last token")
        proposals = self._sampled(drafted)
        self._end_forward()
        for request, end, is_whole, own, proposal in zip(requests, ends, are_whole, drafted, proposals, strict=True):
            if request.stage is Stage.ABORTED:
                continue
            request.computed = end
            request.draft_hidden, request.proposal = own, proposal
            self._insert(request, request.reserved or end)
            if is_whole:
                request.stage = Stage.DECODE
                self._finish_if_done(request)

    def _last_hidden(self, tensors: CpTensors, hidden: Tensor, what: str) -> Tensor:
        """Return the hidden state of each request's last token, shape `(batch, hidden)`."""

        def all_gather(own: Tensor) -> Tensor:
            return self.exchange.all_gather(what, own)

        # cpkv: if nobody reads the hidden states of other tokens, one row a request and rank is sent.
        is_narrow = choose_hidden_gather(captures_hidden=self.config.gathers_all_hidden).is_narrow
        gathered = (tensors.collect_last_token_hidden if is_narrow else tensors.gather)(hidden, all_gather)
        last: Tensor = as_last_hidden(tensors.view.split, gathered)
        return last

    def _take_tokens(self, request: Request, logits: Tensor) -> None:
        request.tokens += logits.argmax(-1).tolist()
        if self.config.keeps_logits:
            request.logits += logits.cpu().unbind(0)

    def _sampled(self, hidden: Tensor) -> list[int]:
        tokens: list[int] = self.model.logits(hidden).argmax(-1).tolist()
        return tokens

    def _reserve(self, requests: Sequence[Request], ends: Sequence[int]) -> None:
        """Reserve host slots for the pages that a forward completes."""
        if self.tier is None or not self.config.is_cached:
            return
        batch = []
        for request, end in zip(requests, ends, strict=True):
            if request.lease is None:
                continue
            # A page also depends on the token behind it. What is not sampled yet is left to a later insertion.
            tokens = request.tokens[: end + 1]
            request.reserved = len(tokens)
            batch.append((tokens, self._new_pages(request, len(tokens)), request.lease))
        # cpkv: host slots before the forward, all or nothing for each request.
        for request, transaction in zip(requests, self.cache.reserve(batch), strict=True):
            request.transaction = transaction
            self.model.draft_log.reserved(transaction)
            if self._on_commit is not None and transaction.id is not None:
                slots = tuple(transaction.plan()[1])
                first_page = (request.reserved - 1) // self.config.page_size - len(slots)
                self._backups[transaction.id] = Backup(tuple(request.tokens[: request.reserved]), first_page, slots)

    def _new_pages(self, request: Request, tokens: int) -> list[int]:
        """Return the pages behind the lease's that so many tokens complete."""
        held = request.lease.device_pages if request.lease is not None else 0
        return request.pages[held : (tokens - 1) // self.config.page_size]

    def _insert(self, request: Request, tokens: int) -> None:
        """Make what is whole part of the cache, with the host copy that is under way."""
        if not self.config.is_cached or request.lease is None:
            return
        lease, transaction = request.lease, request.transaction
        request.transaction, request.reserved = None, 0
        # cpkv: the pages are the cache's, and the request's through its lease.
        inserted = self.cache.insert(request.tokens[:tokens], self._new_pages(request, tokens), lease, transaction)
        # Another request has inserted some of them meanwhile: it goes over to those.
        request.pages[: lease.pages] = lease.page_ids().tolist()
        self.paging.give_back(inserted.duplicates)

    # --- Decode ---

    def _decode(self, requests: Sequence[Request]) -> None:
        """Let the draft propose tokens, verify all of them in one forward, and keep those that were right."""
        count = self.config.draft_tokens
        proposals = [[request.proposal] for request in requests]
        self._begin_forward(requests)
        hidden = torch.stack([request.draft_hidden for request in requests])
        for index in range(count - 1):
            rows = self._decode_rows(requests, [[each[index]] for each in proposals], index)
            hidden = self.model.draft(rows, hidden)
            for each, token in zip(proposals, self._sampled(hidden), strict=True):
                each.append(token)

        rows = self._decode_rows(requests, proposals, 0, with_last=True)
        hidden = self.model.target(rows)
        kept = []
        for request, proposal, logits in zip(
            requests, proposals, self.model.logits(hidden).split(count + 1), strict=True
        ):
            truth = logits.argmax(-1).tolist()
            right = next((place for place in range(count) if proposal[place] != truth[place]), count)
            self._take_tokens(request, logits[: right + 1])
            kept.append(right + 1)
            request.verified += 1
            request.accepted += right + 1

        # The draft's state of what was kept, of the target's hidden states.
        own = torch.cat([torch.arange(keep) + place * (count + 1) for place, keep in enumerate(kept)])
        where = torch.repeat_interleave(torch.arange(len(requests)), torch.tensor(kept))
        positions = rows.positions[own]
        tokens, next_tokens = tokens_at([request.tokens for request in requests], where, positions.cpu())
        device = self.config.device
        drafted = self.model.draft(
            Rows(
                positions=positions,
                requests=where.to(device),
                tokens=tokens.to(device),
                next_tokens=next_tokens.to(device),
                pages=rows.pages,
                pieces=pieces_in_turn([request.computed for request in requests], kept),
            ),
            hidden[own],
        )
        self._end_forward()
        ends = drafted[torch.tensor(kept).cumsum(0) - 1]
        for request, keep, own_hidden, expected in zip(requests, kept, ends, self._sampled(ends), strict=True):
            if request.stage is Stage.ABORTED:
                continue
            request.computed += keep
            request.draft_hidden, request.proposal = own_hidden, expected
            self._finish_if_done(request)

    def _decode_rows(
        self, requests: Sequence[Request], proposals: Sequence[Sequence[int]], first: int, *, with_last: bool = False
    ) -> Rows:
        """Return rows behind what is computed, the same on all ranks.

        Args:
            requests: Of the batch.
            proposals: Tokens behind the last known one of each, from the first row on.
            first: How many rows were proposed before.
            with_last: Whether each proposal is a row as well, behind that of the last known token.
        """
        positions: list[int] = []
        owners: list[int] = []
        tokens: list[int] = []
        behind: list[int] = []
        for place, (request, proposal) in enumerate(zip(requests, proposals, strict=True)):
            known = [request.tokens[-1], *proposal] if with_last else [0, *proposal]
            rows = len(known) if with_last else len(proposal)
            positions += range(request.computed + first, request.computed + first + rows)
            owners += [place] * rows
            tokens += known[:rows]
            behind += [*known[1:], 0][:rows]
        device = self.config.device
        ends = [request.computed + self.config.draft_tokens + 1 for request in requests]
        firsts = [request.computed + first for request in requests]
        return Rows(
            positions=torch.tensor(positions, device=device),
            requests=torch.tensor(owners, device=device),
            tokens=torch.tensor(tokens, device=device),
            next_tokens=torch.tensor(behind, device=device),
            pages=self._tables(requests, ends),
            pieces=pieces_in_turn(firsts, [owners.count(place) for place in range(len(requests))]),
        )

    # --- What both have in common ---

    def _tables(self, requests: Sequence[Request], ends: Sequence[int]) -> list[list[int]]:
        size = self.config.page_size
        return [request.pages[: -(-end // size)] for request, end in zip(requests, ends, strict=True)]

    def _begin_forward(self, requests: Sequence[Request]) -> None:
        self._is_in_forward = True
        if self.tier is not None:
            transactions = [request.transaction for request in requests if request.transaction is not None]
            # cpkv: the layers of this forward are copied as they end.
            self.tier.begin_forward(transactions, [request.lease for request in requests if request.lease is not None])

    def _end_forward(self) -> None:
        if self.tier is not None:
            # cpkv: whatever no layer end has copied goes now.
            self.tier.end_forward()
        self._is_in_forward = False
        while self._aborted:
            self._release(self._aborted.pop())

    def _layer_begins(self, layer: int) -> None:
        if self.tier is not None:
            self.tier.layer_begins(layer)

    def _layer_ended(self, layer: int) -> None:
        if self.tier is not None:
            # cpkv: the target's layers carry the target's state, the draft's layer the draft's.
            self.tier.layer_ended(layer)
        if self._on_layer is not None:
            self._on_layer(layer)

    # --- Ends ---

    def _finish_if_done(self, request: Request) -> None:
        if len(request.generated) < request.new_tokens:
            return
        request.stage = Stage.ENDING
        if request.lease is None or not request.lease.restores():
            self._finish(request)

    def _finish(self, request: Request) -> None:
        del request.tokens[len(request.prompt) + request.new_tokens :]
        del request.logits[request.new_tokens :]
        self._insert(request, len(request.tokens))
        request.stage = Stage.FINISHED
        self._release(request)

    def _retract_one(self, alive: Sequence[Request]) -> None:
        """Take the pages of the youngest request that has some, so that an older one can go on."""
        holding = [request for request in alive if request.pages and request.stage is not Stage.ENDING]
        if len(holding) > 1:
            victim = holding[-1]
            if victim.lease is not None and victim.lease.restores():
                # Without the lease nobody tells it how they end: it goes back to what is certain.
                victim.take_back()
            elif victim.stage is Stage.DECODE:
                self._insert(victim, victim.computed + 1)
            victim.retracted += 1
            self._restart(victim)
        elif self.tier is None or not self.cache.has_work():
            message = f"request {alive[0].number} does not fit, with nobody else there: a bug in the engine"
            raise RuntimeError(message)
        # Otherwise copies end soon, and their pages come free.

    def _restart(self, request: Request) -> None:
        self._release(request)
        request.stage = Stage.WAITING

    def _release(self, request: Request) -> None:
        """Give back everything that a request holds."""
        self._give_up(request)
        lease, request.lease = request.lease, None
        held = lease.device_pages if lease is not None else 0
        self.paging.give_back(request.pages[held:])
        request.pages, request.computed = [], 0
        if lease is not None:
            # cpkv: what was inserted stays, and can be evicted.
            lease.release()

    @staticmethod
    def _give_up(request: Request) -> None:
        transaction, request.transaction, request.reserved = request.transaction, None, 0
        if transaction is not None:
            # cpkv: nothing of it becomes visible; what is being copied is kept until that has ended.
            transaction.abort()

    def close(self) -> None:
        """Give everything back. Idempotent."""
        # A forward that has raised has ended: the tier ends its copies.
        self._is_in_forward = False
        for request in [*self.requests, *self._aborted]:
            self._release(request)
            if request.stage is not Stage.FINISHED:
                request.stage = Stage.ABORTED
        self._aborted.clear()
        if self.tier is not None:
            self.tier.close()
        if self.log is not None:
            self.log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
