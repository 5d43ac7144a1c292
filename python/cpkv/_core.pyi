"""The Rust core, as seen from Python. Import from `cpkv` instead.

Thread safety: every call may be made from any thread; calls on one cache take turns. Calls with
32,768 tokens or 4,096 pages and more let other Python threads run meanwhile, and so do `flush`,
`dump`, `digest` and `check_integrity`; the arrays that they read must not be written during the call.
A short call that needs the cache or the lease of a long one waits for it with the interpreter held:
no other thread runs until the long one is over. `lock`, `release` and the `tick` of a single rank
never let the interpreter go, however much there is to do.

Arguments: one of the wrong type is an `InputTypeError` in every call, and a `ConfigError` among
the settings of a `CacheManager`. The message names the argument and the value. What an argument itself
raises while it is read, in its `__index__` or its iterator, comes through as it is.

A panic of the core is a bug in cpkv. It raises `IntegrityError`, and so does every later call on the
same cache, whose state is unknown from then on.
"""

from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Final, Literal, Self, final, overload

from cpkv.types import Int64s, Namespace

__all__ = [
    "IS_DEBUG_BUILD",
    "MOST_LANES",
    "MOST_RANKS",
    "POLICIES",
    "AckWords",
    "CacheEvent",
    "CacheManager",
    "CommitLog",
    "ConfigError",
    "CpkvError",
    "Hit",
    "InputError",
    "InputTypeError",
    "Inserted",
    "IntegrityError",
    "Lease",
    "LeaseError",
    "LogError",
    "PageError",
    "PageIds",
    "PageTable",
    "RankError",
    "RestoreError",
    "Restored",
    "Stats",
    "TickReport",
    "Transaction",
    "TransactionError",
    "UsageError",
    "__version__",
]

__version__: Final[str]
MOST_LANES: Final[int]
MOST_RANKS: Final[int]
POLICIES: Final[tuple[str, ...]]
IS_DEBUG_BUILD: Final[bool]

# --- Errors ---

class CpkvError(Exception):
    """Base of everything that cpkv raises."""

class ConfigError(CpkvError, ValueError):
    """The settings contradict each other; the message lists every conflict."""

class InputError(CpkvError, ValueError):
    """An argument has a value that cannot be."""

class InputTypeError(CpkvError, TypeError):
    """An argument has the wrong type, dtype or shape."""

class PageError(InputError):
    """A page id is out of range, given twice, or not the caller's to give."""

class LeaseError(CpkvError, RuntimeError):
    """A lease or hit is used after its release, with other tokens, or with another cache."""

class UsageError(CpkvError, RuntimeError):
    """The call does not fit the way the cache was set up."""

class TransactionError(CpkvError, RuntimeError):
    """A transaction is used out of order, or with another cache."""

class RestoreError(CpkvError, RuntimeError):
    """Pages of the lease were to be restored, and were not: it can only be released."""

class LogError(CpkvError, RuntimeError):
    """The commit log cannot be made, joined or used."""

class RankError(LogError):
    """Another rank is dead, silent, or has left; the message names it."""

class IntegrityError(CpkvError, RuntimeError):
    """The state of the cache contradicts itself: a bug in cpkv."""

# --- Page ids ---

@final
class PageIds:
    """An immutable array of page or slot ids, dtype `int64`, shape `(n,)`.

    `numpy.asarray(ids)` shares its memory through the buffer protocol, and so does a slice.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> int: ...
    @overload
    def __getitem__(self, index: slice, /) -> PageIds: ...
    def __iter__(self) -> Iterator[int]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __buffer__(self, flags: int, /) -> memoryview[int]: ...
    def tolist(self) -> list[int]:
        """Return the ids as a list."""
    def rows(self, rows_per_page: int) -> bytearray:
        """Return the rows of the pages, `rows_per_page` consecutive ones each, as `int64`.

        They are the caller's own: `torch.frombuffer` takes them without a copy and without a complaint.

        Raises:
            InputTypeError, InputError: The number is none, is not positive, or is beyond every row.
        """

@final
class PageTable:
    """Where the pages of each request are, as an engine keeps it: read in place, and never written.

    Args:
        rows: For each place of a request the rows of its tokens, contiguous, dtype `int32`, shape `(places, tokens)`.
            A page is `rows_per_page` consecutive rows.
        rows_per_page: How many rows a page has.

    Raises:
        InputTypeError, InputError: One is of another kind, or the number is not positive.
    """

    def __new__(cls, rows: object, rows_per_page: int) -> Self: ...
    def pages(self, place: int, first: int, end: int) -> PageIds:
        """Return the pages of a place from page `first` to before page `end`, or to the end of the table.

        Raises:
            InputTypeError, InputError: There is no such place, or no such pages.
        """

# --- Cache ---

@final
class CacheManager:
    """A prefix cache over device pages and host slots.

    Host copies are `"assumed"` or `"tracked"`. Assumed ones count as made when they are decided,
    which is what capacity planning needs: a new page is copied at its insertion, an older one that
    has lost its copy when the device evicts it. Tracked ones are made by an engine: `reserve`
    before the forward, copies during it, `forward_end`, `insert`, and a `tick` at which the host
    copy becomes visible once every byte of it has landed on every rank.

    Args:
        device_pages: Device pages of all lanes together; page ids go from 0 to one less.
        page_size: Tokens in a page.
        key: `"token"`, or `"pair"` for EAGLE/MTP drafts: a page then also depends on the token
            behind it, and `n` tokens make `(n - 1) // page_size` pages.
        lanes: Shares of the pages; page `id` is in lane `id % lanes`.
        device_pool: `"owned"` if pages come from `allocate`, `"external"` if the engine's
            allocator has them and is told what to free.
        host_slots: Host slots of all lanes together, rounded down to whole segments in each lane;
            `None` for no host tier.
        segment_pages: Host slots whose rows lie side by side.
        policy: One of `POLICIES`; which pages go first, in both tiers.
        copies: How host copies come to be.
        draft: There is a draft model whose state is part of every page: a transaction whose
            draft did not run is rolled back.
        copy_deadline: Seconds, up to 10**9, from the end of submission after which a copy that has not landed
            has failed; as long again, and it is stuck, its slots and pages quarantined.
        events: Note what becomes usable and what goes, for `take_events`.
        write: When pages get a tracked host copy: during the forward that computes them, late when
            `write_uses` requests have used them (the first one included), or late before the
            device evicts them.
        write_uses: See `write`.
        clean_pages: In each lane, so many of the device pages that would be evicted next are kept
            with a host copy by late ones. What has none when it is evicted is lost and counted;
            nobody waits for a copy. With `write="back"` 1 or more.
        own_lane: The lane whose pages this rank copies, if each rank has one; the only setting in
            which ranks differ. A transaction with such pages for which nothing was submitted by
            the end of its forward has failed.

    Raises:
        ConfigError: With everything that is wrong.
    """

    def __new__(
        cls,
        *,
        device_pages: int,
        page_size: int = 64,
        key: Literal["token", "pair"] = "token",
        lanes: int = 1,
        device_pool: Literal["owned", "external"] = "owned",
        host_slots: int | None = None,
        segment_pages: int = 32,
        policy: str = "lru",
        copies: Literal["assumed", "tracked"] = "assumed",
        draft: bool = False,
        copy_deadline: float = 300.0,
        events: bool = False,
        write: Literal["through", "selective", "back"] = "through",
        write_uses: int = 2,
        clean_pages: int = 0,
        own_lane: int | None = None,
    ) -> Self: ...
    @property
    def page_size(self) -> int:
        """Tokens in a page."""
    @property
    def lanes(self) -> int:
        """Shares of the pages."""
    @property
    def device_pages(self) -> int:
        """Device pages of all lanes together."""
    @property
    def host_slots(self) -> int:
        """Host slots of all lanes together, in whole segments; 0 without a host tier."""
    @property
    def segment_pages(self) -> int:
        """Host slots whose rows lie side by side."""
    @property
    def draft(self) -> bool:
        """Whether the state of a draft model is part of every page."""
    @property
    def own_lane(self) -> int | None:
        """The lane whose pages this rank copies; `None` if it copies all, or its share of all."""
    def match(self, token_ids: Int64s, *, namespace: Namespace = None, limit: int | None = None) -> Hit:
        """Find the longest cached prefix. Changes nothing and holds nothing.

        Args:
            token_ids: The raw tokens of the prompt, shape `(n,)`.
            namespace: Where to look.
            limit: Raw tokens that the hit may have at most; an engine that needs the last
                token's logits gives `n - 1`.

        Raises:
            InputTypeError, InputError: An argument cannot be.
        """
    def lock(self, hit: Hit, *, priority: int = 0) -> Lease:
        """Hold what `hit` found until the lease is released, as far as it is still there.

        Counts as one use of the prefix, which is from now on worth at least `priority` (-2**31 to
        2**31 - 1) under the policy of that name.

        Raises:
            LeaseError: The hit comes from another cache.
            InputError: The priority is out of range.
        """
    def pin(self, hit: Hit, *, priority: int = 0) -> Lease:
        """Hold what `hit` found, as `lock` does, without using it.

        For who has not decided yet and may ask again and again: counts as no use, neither of the
        prefix nor in `Stats`, and makes it as recent as a use would. What is inserted with the lease is
        worth `priority`; what it found is not.

        Raises:
            LeaseError: The hit comes from another cache.
            InputError: The priority is out of range.
        """
    def pages_of(self, hit: Hit) -> PageIds:
        """Return the device pages of what is left of `hit`, shape `(hit.device_pages,)` or less.

        Nothing holds them: they may be evicted by the next call that does anything.

        Raises:
            LeaseError: The hit comes from another cache.
        """
    def allocate(
        self, count: int | None = None, first_lane: int | None = None, *, lanes: Int64s | None = None
    ) -> PageIds | None:
        """Take free pages for consecutive pages of a prompt. `None` if a lane has too few.

        Args:
            count: So many pages, the first in `first_lane` and the others in the lanes after it,
                round and round.
            first_lane: Where such a stripe begins; 0 if not given.
            lanes: Instead of a count, one lane for each page, shape `(pages,)`.

        Raises:
            UsageError: The pool is external.
            InputError: There is no such lane, the count is negative, or both or neither are given.
        """
    def free(self, device_pages: Int64s) -> PageIds:
        """Give back pages that no insertion has taken.

        Returns those that are free now; if the pool is external, they are the engine's to free.
        Those that an unfinished copy reads come free with a later tick.

        Raises:
            PageError: A page is out of range, free already, in the cache, given twice, or was given
                back before while an unfinished operation has it; none is given back.
        """
    def free_pages(self, lane: int = 0) -> int:
        """Return the free pages of a lane; 0 if the pool is external.

        Raises:
            InputError: There is no such lane.
        """
    def evictable_pages(self, lane: int = 0) -> int:
        """Return the pages of a lane that could be evicted now.

        Raises:
            InputError: There is no such lane.
        """
    def evict(self, lane: int, count: int) -> PageIds:
        """Evict until `count` device pages of `lane` were given up, or nothing more can be.

        Returns all pages given up, perhaps some of other lanes among them. They are free if the
        pool is owned, and the engine's to free if it is external.

        Raises:
            InputError: There is no such lane, or the count is negative.
        """
    def evict_for(
        self, count: int | None = None, first_lane: int | None = None, *, lanes: Int64s | None = None
    ) -> int | None:
        """Evict just enough for `allocate` with the same arguments.

        Returns the pages given up. `None`, and nothing was evicted, if that is impossible.

        Raises:
            UsageError: The pool is external.
            InputError: There is no such lane, the count is negative, or both or neither are given.
        """
    def restore(self, lease: Lease, device_pages: Int64s, *, part_pages: int | None = None) -> Restored:
        """Bring the host part of a lease back to the device.

        Afterwards all of the lease is on the device: at once if copies are assumed, otherwise as far
        as `Restored.operations` have landed (`Lease.layer_has_landed`). Neither the pages nor the
        slots that they are filled from are used for anything else before every copy has ended.

        Args:
            lease: Its `host_pages` are restored.
            device_pages: One page for each, in the lane of its host slot, shape `(host_pages,)`.
            part_pages: An operation has no more pages than this. What lands and what fails does so
                for an operation as a whole.

        Raises:
            PageError, InputError: A page cannot be taken, or their number or `part_pages` is wrong;
                nothing has changed.
            LeaseError: The lease was released or comes from another cache.
            RestoreError: The lease is lost.
        """
    def insert(
        self,
        token_ids: Int64s,
        device_pages: Int64s,
        lease: Lease | None = None,
        transaction: Transaction | None = None,
        *,
        namespace: Namespace = None,
    ) -> Inserted:
        """Add the whole pages of a prompt to the cache.

        With a lease, it holds all of them afterwards. The tokens in front of its device part are
        taken to be those that it was taken for; only the last page of the lease is compared, so
        that the chunks of a long prompt cost no more than the prompt.

        Args:
            token_ids: The raw tokens from the start of the prompt, shape `(n,)`.
            device_pages: One page for each whole page from `lease.device_pages` on, or from the
                first on without a lease.
            lease: What the request holds.
            transaction: What was reserved for the pages. It is bound to them; what was reserved
                and is not brought is given up. One that was rolled back meanwhile changes nothing.
            namespace: Where the prompt belongs, if there is no lease to say so.

        Raises:
            PageError, InputError: A page cannot be taken, or their number is wrong; nothing has
                changed.
            LeaseError: The lease was released, comes from another cache, or is of other tokens.
            RestoreError: The lease is lost.
            TransactionError: The transaction was inserted before or comes from another cache, the
                pages are not those that slots were reserved for, or such pages come without it;
                nothing has changed.
        """
    def reserve(self, batch: Sequence[tuple[Int64s, Int64s, Lease]]) -> list[Transaction]:
        """Reserve host slots for what a forward is going to compute, before it starts.

        Looks for what will be new with the insertion's own key, and below everything that was
        reserved before: a repeated prompt reserves nothing. For each request all or nothing.

        Args:
            batch: For each request the `token_ids`, the `device_pages` and the lease that it will
                be inserted with.

        Returns:
            One transaction for each request; its `status` is `"reserved"`, `"nothing"` or
            `"no_room"`.

        Raises:
            UsageError: The copies of this cache are assumed.
            LeaseError: A lease is in the batch twice, or `insert` would refuse it; nothing has
                changed.
            PageError, InputError, RestoreError: What `insert` would refuse, or a page is in the batch
                twice; nothing has changed.
        """
    def forward_end(
        self, transactions: Sequence[Transaction], *, target_ran: bool = True, draft_ran: bool = True
    ) -> None:
        """End the submission of transactions. Nothing waits for a hook that never fires.

        What did not run cannot be backed up: the transaction is rolled back (`draft_ran` counts
        only if the cache has a draft).

        Raises:
            TransactionError: One comes from another cache, or is a late backup or a restore, which end
                with `submitted_all`; nothing has changed.
        """
    def tick(self, step: int, acks: AckWords | Int64s | None = None, *, now_ns: int | None = None) -> TickReport:
        """Make commits, rollbacks and frees visible. The first step may be any, then one by one.

        First of all, leases and transactions that were dropped without their end are ended.

        With a commit log, what the ranks agreed on at the last tick is applied, and this rank's
        facts are reported; waits for rank 0 if it is behind, with other threads running. Signal
        handlers run while it waits. What one of them raises (`KeyboardInterrupt`) leaves the tick,
        and nothing is lost: the same step is to be ticked again, before anything that the other
        ranks do not do, and goes on where it was. So it is with what the second half of a reduction
        raises.

        Args:
            step: The number of the tick, alike on all ranks; the first one at most 2**63 - 1, so that
                there is always a next one.
            acks: What each copy stream has reached, shape `(streams,)`; at least one word for each
                stream that an unfinished copy was submitted on.
            now_ns: A clock in nanoseconds that does not go back; the machine's if not given.

        Raises:
            UsageError: A step was left out or came twice, or another tick is under way; nothing has
                changed.
            InputError: A stream with unfinished copies has no word: they would never be heard of; or a
                number is out of range; nothing has changed.
            RankError: Another rank is dead, silent or has left. Every later tick says so again.
        """
    def has_work(self) -> bool:
        """Return whether ticks are needed: an operation is open, or there is news.

        Alike on all ranks. Without others, also if a lease waits for a tick because it was dropped.
        """
    def flush(self) -> PageIds:
        """Forget all pages, whatever is under way.

        What leases and unfinished copies hold stays until they end, but nobody finds it. Returns
        the device pages that are free now; others follow with later ticks.
        """
    @property
    def fingerprint(self) -> int:
        """A number of the version and all settings, to be alike on all ranks."""
    def attach_log(self, log: CommitLog) -> None:
        """Agree with other ranks through `log` from the next tick on. To be done once.

        What was done with the caches before has to be the same on all ranks: the first entry tells if it was not.

        Raises:
            LogError: The cache has a log or a reduction already, the log is another cache's, closed or
                for caches with another fingerprint, or operations are open. The log can still be
                attached, later or to another cache.
        """
    def take_events(self) -> list[CacheEvent]:
        """Take the events since this was called last, parents before their children.

        Beyond 65,536 events that nobody takes the others are dropped (`Stats.dropped_events`).
        """
    def page_hashes(self, token_ids: Int64s, *, namespace: Namespace = None) -> list[int]:
        """Return the names of the whole pages of a prompt, as events have them.

        64 bits each, alike in every process. A hash depends on the namespace, the kind of key, the
        page size and all tokens up to the end of the page, with pair keys on the one after it too.
        It names a page; whether two pages are the same the cache decides by their tokens.
        """
    def attach_reduction(self, reduce: Callable[[PageIds], Int64s | Callable[[], Int64s]]) -> None:
        """Agree with ranks on other hosts through a reduction from the next tick on. To be done once.

        Args:
            reduce: Called once in each tick with an operation open, which all ranks know alike, with
                0s and 1s, `int64`, shape `(n,)`, `n` alike on all ranks. Returns their minimum over
                all ranks, or something that is called at the next tick and returns it: a reduction
                that goes on beside the forward. What that raises leaves the tick, and it is called
                again when the tick is repeated. What `reduce` itself raises ends the agreement: nobody
                knows whether the others have this rank's votes.

        Raises:
            LogError: The cache has a log or a reduction already, or operations are open.
            InputTypeError: It cannot be called.
        """
    def dump(self) -> dict[str, Any]:
        """Return the whole state as plain data for `json.dumps`: tree, slots, transactions."""
    def stats(self) -> Stats:
        """Return what the cache has done and holds now."""
    def digest(self) -> int:
        """Return a 64-bit number that is equal for caches with an equal past. Linear in size."""
    def check_integrity(self) -> None:
        """Recount everything that is kept twice. Linear in size.

        Raises:
            IntegrityError: With everything found wrong.
        """

# --- Hits and leases ---

@final
class Hit:
    """What a match found. By the time of the lock it may be less."""

    @property
    def tokens(self) -> int:
        """Tokens that can be used: those of `pages`."""
    @property
    def pages(self) -> int:
        """Pages that can be used, on the device or from the host."""
    @property
    def device_pages(self) -> int:
        """Pages among them that are on the device; they come first."""
    @property
    def host_pages(self) -> int:
        """Pages among them that are on the host only."""

@final
class Lease:
    """Holds a prefix: neither its device pages nor its host slots are given up before `release`.

    A context manager that releases on exit. A lease that is dropped without release holds on until
    the beginning of the next `tick`, with a `ResourceWarning`. Ranks drop objects between different
    ticks: with several of them `release` has to be called.

    `repr` begins with its number among the leases of the cache, which error messages have, too.
    """

    @property
    def tokens(self) -> int:
        """Tokens that are held: those of `pages`."""
    @property
    def pages(self) -> int:
        """Pages that are held."""
    @property
    def device_pages(self) -> int:
        """Pages that the holder may read on the device; they come first."""
    @property
    def host_pages(self) -> int:
        """Pages that are to be restored or computed again."""
    @property
    def released(self) -> bool:
        """Whether the lease was released; then everything else raises `LeaseError`."""
    def page_ids(self, first_page: int = 0) -> PageIds:
        """Return the device pages from page `first_page` on, as far as they are on the device.

        Raises:
            InputError: `first_page` is negative.
        """
    def host_slots(self) -> PageIds:
        """Return the host slots of the pages from `device_pages` on, shape `(host_pages,)`.

        Raises:
            RestoreError: The lease is lost.
        """
    def restores(self) -> list[Transaction]:
        """Return the restores that its pages wait for, front first, whichever request has started them."""
    def layer_has_landed(self, layer: int, acks: AckWords | Int64s | None = None) -> bool:
        """Whether this rank can read all its pages in the layers up to `layer`.

        That is so for pages that were not restored, and for a restore as far as it was said what is
        submitted (`Transaction.layer_submitted`) and `acks` have reached that.

        Raises:
            InputError: The layer or a word is negative.
            RestoreError: The lease is lost, or a copy has failed on this rank, which the others hear of
                with a tick.
        """
    @property
    def lost(self) -> bool:
        """Whether a restore of some of its pages has failed. It can only be released then; its request
        is given up, or starts anew with a `match`. Alike on all ranks.
        """
    def release(self) -> None:
        """Let go.

        Raises:
            LeaseError: The lease was released already.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class Inserted:
    """What became of the pages given to an insertion."""

    @property
    def duplicates(self) -> PageIds:
        """Pages that the cache had already. They still belong to the request, which should go
        over to the cache's own (`Lease.page_ids`) and free them. Those that an unfinished copy
        reads are not among them: they come free with a later tick.
        """
    @property
    def new_pages(self) -> int:
        """Pages that are new in the cache."""
    @property
    def host_pages(self) -> int:
        """New pages that have a host copy, or a backup that is not finished."""

@final
class Restored:
    """What became of the pages given to a restore."""

    @property
    def duplicates(self) -> PageIds:
        """Pages for what another request has restored meanwhile; they still belong to the
        request, which should go over to the cache's own and free them.
        """
    @property
    def operations(self) -> list[Transaction]:
        """The copies to be made now, front first; empty if copies are assumed.

        Each is told of as a backup is: `submitted` (and `layer_submitted`), `submitted_all`,
        `copy_failed`. Its `plan` is read the other way: from the slots to the pages.
        """

# --- Backups ---

@final
class Transaction:
    """One backup of a run of pages, or one restore.

    A context manager: what was not inserted at its end is aborted. One that is dropped before
    it was inserted or aborted is aborted at the beginning of the next `tick`, with a
    `ResourceWarning`; with several ranks, which drop objects between different ticks, it has to be
    done. Late ones and restores need neither.
    """

    @property
    def id(self) -> int | None:
        """Its number, `generation << 32 | index`, alike on all ranks; `None` without slots."""
    @property
    def kind(self) -> Literal["transaction", "late", "restore"]:
        """What it is for: a host copy reserved before the forward, a late one of pages that were in the
        cache already, or the way back.
        """
    @property
    def status(
        self,
    ) -> Literal["nothing", "no_room", "reserved", "pending", "committed", "draining", "quarantined", "rolled_back"]:
        """Where it is in its life, or how that has ended: `"committed"`, or `"rolled_back"` and nothing
        of it is in use any more.
        """
    @property
    def reason(self) -> str | None:
        """Why it was rolled back, in the words of `TickReport.rolled_back`; `None` if it was not."""
    @property
    def pages(self) -> int:
        """Pages that it copies; 0 without slots.

        Raises:
            TransactionError: It is over.
        """
    @property
    def first_page(self) -> int:
        """Pages of the prompt in front of its own.

        Raises:
            TransactionError: It has no slots, or is over.
        """
    def plan(self) -> tuple[PageIds, PageIds]:
        """Return the device pages and the host slots of its pages, in order, shape `(pages,)`.

        Raises:
            TransactionError: It is over.
        """
    def submitted(self, stream: int, sequence: int) -> None:
        """Note a copy on this rank that `stream` acknowledges by reaching `sequence`.

        To be called before the copy is queued: if it raises, the copy must not be.

        Args:
            stream: 0 to 1,023.
            sequence: 1 to 2**63 - 1.

        Raises:
            InputError: The stream or the sequence is out of range.
            TransactionError: It has no slots, is over, it was said that everything was submitted, or
                the sequence is 0.
        """
    def layer_submitted(self, layer: int) -> None:
        """Note that this rank has submitted every copy of the layers up to `layer`; a later one each time.

        Raises:
            InputError: The layer is out of range.
            TransactionError: It has no slots, is over, or the layer does not come after the last one.
        """
    def submitted_all(self) -> None:
        """Note that this rank has submitted everything. `forward_end` does it for a forward.

        Raises:
            TransactionError: It has no slots.
        """
    def copy_failed(self) -> None:
        """Note that a copy on this rank has failed; to be done before a later word can pass it.

        Raises:
            TransactionError: It has no slots.
        """
    def abort(self, reason: Literal["aborted", "retracted"] = "aborted") -> None:
        """Give it up. Its slots and pages are free once no copy uses them. Idempotent.

        Raises:
            InputError: There is no such reason.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class TickReport:
    """What has come of operations since the last tick."""

    @property
    def committed(self) -> list[int]:
        """Transactions, by their `id`, whose host copy is visible now; parents come first."""
    @property
    def rolled_back(self) -> list[tuple[int, str]]:
        """Transactions that were rolled back, and why: `insert_miss`, `aborted`, `retracted`,
        `copy_failed`, `target_missing`, `draft_missing`, `parent_lost`, `flushed` or `restore_failed`.
        A restore is among them if it has failed or was aborted.
        """
    @property
    def restored(self) -> list[int]:
        """Restores, by their `id`, that have landed on all ranks."""
    @property
    def quarantined(self) -> list[int]:
        """Rolled back transactions with a copy that is not known to end. Their slots and pages are
        not used before it does; a warning of the logger `cpkv` says so, too.
        """
    @property
    def started(self) -> list[Transaction]:
        """Late transactions, whose copies are to be submitted now."""
    @property
    def freed_pages(self) -> PageIds:
        """Pages of an external pool that are the engine's to free now."""

@final
class AckWords:
    """One 64-bit sequence number for each copy stream of this rank; they only grow.

    Args:
        streams: How many, 1 to 1,024.

    Raises:
        InputError: There are too few or too many.
    """

    def __new__(cls, streams: int) -> Self: ...
    @property
    def streams(self) -> int:
        """How many streams there are."""
    def address(self, stream: int) -> int:
        """Return the address of a word, for a device to write to. Valid while the object lives.

        Raises:
            InputError: There is no such stream.
        """
    def store(self, stream: int, sequence: int) -> None:
        """Let a stream have reached `sequence`; one that it has passed changes nothing.

        Raises:
            InputError: There is no such stream, or the sequence is not 0 to 2**63 - 1.
        """
    def load(self, stream: int) -> int:
        """Return what a stream has reached.

        Raises:
            InputError: There is no such stream.
        """

@final
class CommitLog:
    """The log in shared memory by which the rank processes of one host agree.

    Rank 0 makes it, the others join it by name and nonce, which they exchange at start. Each is
    known to live by a lock on a file of its own. A context manager that closes on exit; once closed it
    cannot be entered.
    """

    @staticmethod
    def create(
        name: str, nonce: int, *, ranks: int, fingerprint: int, directory: str | PathLike[str] = "/dev/shm"
    ) -> CommitLog:
        """Make the log, as rank 0.

        Args:
            name: Part of the names of its files.
            nonce: 0 to 2**64 - 1; another one for each log of the name.
            ranks: 1 to `MOST_RANKS`.
            fingerprint: That of the caches (`CacheManager.fingerprint`).
            directory: Where it is.

        Raises:
            InputError: A number is out of range.
            LogError: It exists, or cannot be made there.
        """
    @staticmethod
    def join(
        name: str,
        nonce: int,
        rank: int,
        *,
        ranks: int,
        fingerprint: int,
        timeout: float = 300.0,
        directory: str | PathLike[str] = "/dev/shm",
    ) -> CommitLog:
        """Join the log as one of the other ranks, waiting for rank 0 to make it. What a signal handler
        raises ends the wait.

        Raises:
            InputError: A number is out of range; the timeout is 0 to 10**9 seconds.
            LogError: It is not there in `timeout` seconds, or made with other settings.
        """
    @property
    def rank(self) -> int:
        """This rank."""
    @property
    def entries(self) -> int:
        """Rank 0 is ahead of the slowest rank by so many ticks at most.

        Raises:
            LogError: The log was closed.
        """
    def wait_for_all(self, timeout: float = 300.0) -> None:
        """Wait until all ranks have joined, or a signal handler raises something. Rank 0 has to.

        Then the memory of the log has no name any more, and this rank sees any other one die.

        Raises:
            InputError: The timeout is not 0 to 10**9 seconds.
            RankError: Some have not in `timeout` seconds.
            LogError: The log was closed.
        """
    def remove_name(self) -> None:
        """Take the name of this rank's lock away, so that a server that is killed leaves nothing behind.

        Only once `wait_for_all` has returned on every rank: whoever has not opened the lock by then
        never sees this rank die.

        Raises:
            LogError: The log was closed.
        """
    def set_patience(self, *, warning: float = 5.0, deadline: float = 300.0) -> None:
        """Set the seconds of waiting for a rank after which a warning is logged and an error raised.

        Raises:
            InputError: A time is not 0 to 10**9 seconds.
            LogError: The log was closed.
        """
    def close(self) -> None:
        """Leave. Whoever waits for this rank is told."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...

@final
class CacheEvent:
    """A change of what the cache holds, for routers."""

    @property
    def kind(self) -> Literal["stored", "removed", "cleared"]:
        """What has happened; `"cleared"` is for all pages of both tiers."""
    @property
    def medium(self) -> Literal["device", "host"] | None:
        """The tier, or `None` if everything was cleared."""
    @property
    def page_hashes(self) -> list[int]:
        """The pages, in the order of the prompt."""
    @property
    def parent_hash(self) -> int | None:
        """The page in front of the first one that was stored, or `None` if that is the first of its prompt."""
    @property
    def token_ids(self) -> list[int]:
        """The tokens of the pages that were stored, with pair keys also the one behind them."""

# --- Figures ---

@final
class Stats:
    """Totals since the cache was made, and what it holds now. Pages unless named otherwise."""

    @property
    def leases(self) -> int:
        """Leases taken."""
    @property
    def device_hit_pages(self) -> int:
        """Found on the device by leases."""
    @property
    def host_hit_pages(self) -> int:
        """Found on the host only by leases."""
    @property
    def inserted_pages(self) -> int:
        """Added to the cache."""
    @property
    def duplicate_pages(self) -> int:
        """Given to insertions or restores though the cache had them on the device."""
    @property
    def restored_pages(self) -> int:
        """Brought back to the device by restores."""
    @property
    def failed_restores(self) -> int:
        """Restores that have failed or were aborted."""
    @property
    def unrestored_pages(self) -> int:
        """Device pages given up because they, or pages in front of them, were to be restored and were not."""
    @property
    def recomputed_pages(self) -> int:
        """Brought back to the device by insertions: computed again instead of restored."""
    @property
    def host_written_pages(self) -> int:
        """Copied to the host at insertion."""
    @property
    def host_skipped_pages(self) -> int:
        """Not copied to the host at insertion, because no slots could be freed."""
    @property
    def late_copied_pages(self) -> int:
        """Copied to the host only when the device evicted them."""
    @property
    def device_evicted_pages(self) -> int:
        """Left the device."""
    @property
    def mirror_dropped_pages(self) -> int:
        """Host copies given up of pages that were on the device."""
    @property
    def host_evicted_pages(self) -> int:
        """Left the host, and with it the cache."""
    @property
    def lost_pages(self) -> int:
        """Left the cache with their device copy, because the host could not take them."""
    @property
    def reserved_pages(self) -> int:
        """Slots were reserved for before their forward."""
    @property
    def late_reserved_pages(self) -> int:
        """Slots were reserved for when they were in the cache already."""
    @property
    def committed_operations(self) -> int:
        """Backups that became visible."""
    @property
    def committed_pages(self) -> int:
        """Pages of backups that became visible."""
    @property
    def rolled_back_operations(self) -> int:
        """Backups that were rolled back."""
    @property
    def rolled_back_pages(self) -> int:
        """Pages of backups that were rolled back."""
    @property
    def insert_missed_pages(self) -> int:
        """Slots were reserved for, and the insertion did not bring them."""
    @property
    def donors_lost(self) -> int:
        """Backups that were rolled back though others rely on them, and are made up for."""
    @property
    def quarantined_operations(self) -> int:
        """Backups that had a copy which was not known to end."""
    @property
    def flushes(self) -> int:
        """Flushes."""
    @property
    def dropped_events(self) -> int:
        """Events dropped because nobody took them."""
    @property
    def device_capacity_pages(self) -> int:
        """All device pages."""
    @property
    def device_cached_pages(self) -> int:
        """Device pages that hold pages of the cache."""
    @property
    def device_free_pages(self) -> int:
        """Device pages that nobody uses; 0 if the pool is external."""
    @property
    def device_fenced_pages(self) -> int:
        """Device pages that nobody has any more, and that an unfinished copy reads."""
    @property
    def restoring_pages(self) -> int:
        """Device pages that open restores fill."""
    @property
    def device_evictable_pages(self) -> int:
        """Device pages that could be evicted now."""
    @property
    def device_run_pages(self) -> float:
        """Mean length of the runs of neighbouring device pages allocated so far."""
    @property
    def host_capacity_slots(self) -> int:
        """All host slots."""
    @property
    def host_cached_slots(self) -> int:
        """Host slots that hold pages of the cache."""
    @property
    def host_reserved_slots(self) -> int:
        """Host slots of backups that may still be committed."""
    @property
    def host_draining_slots(self) -> int:
        """Host slots of rolled back backups whose copies have not ended."""
    @property
    def host_quarantined_slots(self) -> int:
        """Host slots of rolled back backups whose copies are not known to end."""
    @property
    def open_operations(self) -> int:
        """Operations that are open."""
    @property
    def oldest_operation_ns(self) -> int:
        """How long the oldest of them was open at the last tick: since the tick that has seen it first."""
    @property
    def host_mirror_slots(self) -> int:
        """Host slots among them whose pages are on the device too."""
    @property
    def host_evictable_slots(self) -> int:
        """Host slots that could be freed now."""
    @property
    def host_run_pages(self) -> float:
        """Mean length of the runs of neighbouring host slots allocated so far."""
    @property
    def pages(self) -> int:
        """Distinct pages in the cache."""
    @property
    def nodes(self) -> int:
        """Runs of pages in the tree, roots included."""
    @property
    def namespaces(self) -> int:
        """Namespaces, the default one included."""
    @property
    def leaves(self) -> int:
        """Entries in the eviction heaps: runs of pages that could go next, mirrors twice."""
    @property
    def metadata_bytes(self) -> int:
        """Bytes that the core has on the heap: tokens, ids, tree, pools."""
    @property
    def peak_metadata_bytes(self) -> int:
        """The most that `metadata_bytes` has been after an insertion."""
    def as_dict(self) -> dict[str, int | float]:
        """Return all figures by name."""
