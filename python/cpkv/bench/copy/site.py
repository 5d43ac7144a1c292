"""A host tier on the pools of a measurement, and the scheduler's part of a request's life."""

from collections.abc import Callable
from types import TracebackType
from typing import Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from cpkv._core import CacheManager, TickReport
from cpkv.bench.copy.pools import Pools
from cpkv.bench.copy.settings import PAGE_SIZE, SEGMENT_PAGES
from cpkv.drivers import HostTier
from cpkv.errors import CpkvError

MOST_TICKS: Final = 100_000


class Site:
    """A cache with tracked copies, its tier, and the number of the next tick. A context manager.

    Args:
        pools: The memory.
        device_pool: `"external"` if a measurement says itself which device pages a prompt has.
    """

    def __init__(self, pools: Pools, *, device_pool: Literal["owned", "external"] = "external") -> None:
        self.pools = pools
        self.platform = platform = pools.platform
        self.layers = pools.layout.layers
        self.cache = CacheManager(
            device_pages=pools.device.pages,
            page_size=PAGE_SIZE,
            device_pool=device_pool,
            host_slots=pools.host.slots,
            segment_pages=SEGMENT_PAGES,
            copies="tracked",
            draft=pools.layout.draft_layers > 0,
        )
        self.engine = platform.new_engine()
        try:
            self.tier = HostTier(
                self.cache, self.engine, pools.device, pools.host, compute_stream=lambda: platform.compute
            )
        except BaseException:
            self.engine.close()
            raise
        self.step = 0
        self._next_token = 0

    def prompt(self, pages: int) -> NDArray[np.int64]:
        """Return tokens that nobody has had before."""
        first = self._next_token
        self._next_token += pages * PAGE_SIZE
        return np.arange(first, self._next_token, dtype=np.int64)

    def skip_tokens(self, count: int = 1 << 30) -> None:
        """Let prompts begin beyond tokens that others have made."""
        self._next_token += count

    def tick(self) -> TickReport:
        """Tick once."""
        report = self.tier.tick(self.step)
        self.step += 1
        return report

    def settle(self, has_ended: Callable[[], bool]) -> None:
        """Tick until something has ended.

        Raises:
            CpkvError: It does not.
        """
        for _ in range(MOST_TICKS):
            if has_ended():
                return
            self.tick()
        message = f"nothing has ended after {MOST_TICKS} ticks: {self.cache.stats()!r}"
        raise CpkvError(message)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.tier.close()
