"""The Rust core, as seen from Python. Import from `cpkv` instead.

Thread safety: every call may be made from any thread; calls on one cache take turns. Calls with
32,768 tokens or 4,096 pages and more let other Python threads run meanwhile; the arrays that they
read must not be written during the call.

A panic of the core is a bug in cpkv. It raises `IntegrityError`, and so does every later call on the
same cache, whose state is unknown from then on.
"""

from collections.abc import Iterator
from types import TracebackType
from typing import Final, Literal, Self, final, overload

from cpkv.types import Int64s, Namespace

__all__ = [
    "IS_DEBUG_BUILD",
    "MOST_LANES",
    "POLICIES",
    "CacheManager",
    "ConfigError",
    "CpkvError",
    "Hit",
    "InputError",
    "InputTypeError",
    "Inserted",
    "IntegrityError",
    "Lease",
    "LeaseError",
    "PageError",
    "PageIds",
    "Restored",
    "Stats",
    "UsageError",
    "__version__",
]

__version__: Final[str]
MOST_LANES: Final[int]
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

# --- Cache ---

@final
class CacheManager:
    """A prefix cache over device pages and host slots.

    In this version a host copy is bookkeeping: it counts as made when it is decided, and no bytes
    move. A new page is copied at its insertion, an older one that has lost its copy when the
    device evicts it.

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
    def free(self, device_pages: Int64s) -> None:
        """Give back pages that were allocated and that no insertion has taken.

        Raises:
            PageError: A page is free already, in the cache, or given twice; none is given back.
            UsageError: The pool is external.
        """
    def free_pages(self, lane: int = 0) -> int:
        """Return the free pages of a lane; 0 if the pool is external."""
    def evictable_pages(self, lane: int = 0) -> int:
        """Return the pages of a lane that could be evicted now."""
    def evict(self, lane: int, count: int) -> PageIds:
        """Evict until `count` device pages of `lane` were given up, or nothing more can be.

        Returns all pages given up, perhaps some of other lanes among them. They are free if the
        pool is owned, and the engine's to free if it is external.
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
    def restore(self, lease: Lease, device_pages: Int64s) -> Restored:
        """Bring the host part of a lease back to the device.

        Args:
            lease: Its `host_pages` are restored; afterwards all of it is on the device.
            device_pages: One page for each, in the lane of its host slot, shape `(host_pages,)`.

        Raises:
            PageError, InputError: A page cannot be taken, or their number is wrong; nothing has
                changed.
            LeaseError: The lease was released or comes from another cache.
        """
    def insert(
        self,
        token_ids: Int64s,
        device_pages: Int64s,
        lease: Lease | None = None,
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
            namespace: Where the prompt belongs, if there is no lease to say so.

        Raises:
            PageError, InputError: A page cannot be taken, or their number is wrong; nothing has
                changed.
            LeaseError: The lease was released, comes from another cache, or is of other tokens.
        """
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

    A context manager that releases on exit. A lease that is dropped without release is released
    with a `ResourceWarning`.
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
        """Return the device pages from page `first_page` on, as far as they are on the device."""
    def host_slots(self) -> PageIds:
        """Return the host slots of the pages from `device_pages` on, shape `(host_pages,)`."""
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
        over to the cache's own (`Lease.page_ids`) and free them.
        """
    @property
    def new_pages(self) -> int:
        """Pages that are new in the cache."""
    @property
    def host_pages(self) -> int:
        """New pages that have a host copy."""

@final
class Restored:
    """What became of the pages given to a restore."""

    @property
    def duplicates(self) -> PageIds:
        """Pages for what another request has restored meanwhile; they still belong to the
        request, which should go over to the cache's own and free them.
        """

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
    def device_capacity_pages(self) -> int:
        """All device pages."""
    @property
    def device_cached_pages(self) -> int:
        """Device pages that hold pages of the cache."""
    @property
    def device_free_pages(self) -> int:
        """Device pages that nobody uses; 0 if the pool is external."""
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
