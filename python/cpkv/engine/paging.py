"""Where the pages of requests come from: lanes, room, and the split that decides both."""

from collections.abc import Iterable, Sequence

from cpkv._core import CacheManager
from cpkv.cp import CpSplit, interleave_split, page_owners, zigzag_split
from cpkv.engine.config import EngineConfig
from cpkv.engine.pools import Pools
from cpkv.engine.request import Request, Stage
from cpkv.types import Int64s


class Paging:
    """Gives requests their pages; alike on all ranks.

    Args:
        config: Of the engine.
        cache: Which has the pages.
        pools: This rank's.
        rank: This one.
        cp_size: Ranks, and lanes.
    """

    def __init__(self, config: EngineConfig, cache: CacheManager, pools: Pools, rank: int, cp_size: int) -> None:
        self.config = config
        self.cache = cache
        self.pools = pools
        self.rank, self.cp_size = rank, cp_size

    def has_room(self, request: Request, alive: Sequence[Request]) -> bool:
        """Whether a request may begin beside those that have.

        They are expected to generate half of what they may. One that had to give way comes back when all that
        are older have ended: it would take the pages that it has just given.
        """
        begun = [other for other in alive if other.stage is not Stage.WAITING]
        if not begun:
            return True
        if request.retracted and any(other.number < request.number for other in begun):
            return False
        share = 0.5
        missing = sum(max(self._pages_of(other, share) - len(other.pages), 0) for other in begun)
        lanes = range(self.cp_size)
        free = sum(self.cache.free_pages(lane) + self.cache.evictable_pages(lane) for lane in lanes)
        return self._pages_of(request, share) + missing <= free

    def _pages_of(self, request: Request, share: float) -> int:
        tokens = len(request.prompt) + int(request.new_tokens * share) + self.config.draft_tokens
        return -(-tokens // self.config.page_size)

    def new_lanes(self, request: Request, chunk: int) -> list[int]:
        """Return the lanes of the pages that a chunk begins."""
        split = self.split([request], [chunk])
        if split.page_aligned:
            # cpkv: a page lies where it is computed.
            owners: list[int] = page_owners(split, 0).tolist()
            return owners
        end = -(-(request.computed + chunk) // self.config.page_size)
        return [page % self.cp_size for page in range(len(request.pages), end)]

    def take(self, request: Request, lanes: list[int]) -> bool:
        """Take pages for a request from lanes, behind those that it has; false, and nothing happens, without room."""
        if lanes:
            # cpkv: just enough is evicted, or nothing.
            if self.cache.evict_for(lanes=lanes) is None:
                return False
            request.pages += self.allocated(lanes)
        return True

    def take_for_decode(self, request: Request) -> bool:
        """Take pages for what a verification may bring."""
        end = -(-(len(request.tokens) + self.config.draft_tokens) // self.config.page_size)
        return self.take(request, [page % self.cp_size for page in range(len(request.pages), end)])

    def allocated(self, lanes: Sequence[int]) -> list[int]:
        """Return free pages of lanes, for which room was made."""
        pages = self.cache.allocate(lanes=lanes)
        if pages is None:
            message = f"there are no pages in lanes {list(lanes)} after room was made for them"
            raise RuntimeError(message)
        # Some of them were evicted for this, and nobody has said which.
        self.scribble(pages)
        return list(pages)

    def give_back(self, pages: Int64s) -> None:
        """Free pages that no insertion has taken. What is in them is nobody's any more, from this moment on."""
        # A page that a copy still reads is not among those that are free now.
        self.scribble(self.cache.free(pages))

    def scribble(self, pages: Iterable[int]) -> None:
        """Overwrite free pages, those of them that are in this rank's lane."""
        self.pools.scribble([page // self.cp_size for page in pages if page % self.cp_size == self.rank])

    def split(self, requests: Sequence[Request], chunks: Sequence[int]) -> CpSplit:
        """Share the next chunks of requests between the ranks."""
        computed = [request.computed for request in requests]
        sizes = {"cp_size": self.cp_size, "page_size": self.config.page_size}
        if self.config.split == "interleave":
            return interleave_split(computed, chunks, **sizes)
        begun = [
            request.pages[at // self.config.page_size] % self.cp_size if at % self.config.page_size else 0
            for request, at in zip(requests, computed, strict=True)
        ]
        return zigzag_split(computed, chunks, open_page_ranks=begun, **sizes)
