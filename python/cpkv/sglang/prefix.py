"""What SGLang calls a node: what a match has found, and who holds it."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cpkv._core import CacheManager, Hit, Lease
from cpkv.errors import UsageError
from cpkv.types import Namespace

if TYPE_CHECKING:
    from cpkv.sglang.pages import ToldPages


class Prefix:
    """A prefix that was found, unlocked or locked any number of times.

    SGLang locks a prefix once while it finds out whether the request fits, and once more for the request. All of
    that is one lease, which grows as the request inserts what it computes. The first lock is a pin; the second one
    says that the request runs, and that is the use.
    """

    __slots__ = ("_is_used", "_lease", "_locks", "_manager", "hit", "namespace", "priority", "request", "told")

    def __init__(
        self,
        manager: CacheManager,
        hit: Hit,
        namespace: Namespace,
        priority: int = 0,
        request: Any = None,  # noqa: ANN401 - SGLang's
    ) -> None:
        self._manager = manager
        self.hit = hit
        self.namespace = namespace
        self.priority = priority
        self.request = request
        self.told: ToldPages | None = None
        """The pages of its request's row that the last forward has completed, if they were asked for before it."""
        self._lease: Lease | None = None
        self._locks = 0
        self._is_used = False

    @property
    def lease(self) -> Lease:
        """What holds it.

        Raises:
            UsageError: Nobody does.
        """
        if self._lease is None:
            message = f"a prefix of {self.hit.pages} pages is used and not locked"
            raise UsageError(message)
        return self._lease

    @property
    def is_locked(self) -> bool:
        """Whether somebody holds it."""
        return self._lease is not None

    def lock(self) -> None:
        """Hold it once more.

        Raises:
            UsageError: Some of it is not there any more: something was evicted between match and lock.
        """
        if self._lease is None:
            self._hold(self._manager.pin(self.hit, priority=self.priority))
        else:
            self.use()
        self._locks += 1

    def use(self) -> None:
        """Count the prefix as used, once: its request runs."""
        pinned = self.lease
        if not self._is_used:
            self._hold(self._manager.lock(self.hit, priority=self.priority))
            pinned.release()
            self._is_used = True

    def _hold(self, lease: Lease) -> None:
        if lease.device_pages < self.hit.device_pages:
            found, left = self.hit.device_pages, lease.device_pages
            lease.release()
            message = f"a prefix of {found} pages was evicted between its match and its lock: {left} are left"
            raise UsageError(message)
        self._lease = lease

    def unlock(self) -> None:
        """Hold it once less. The last one gives it up.

        Raises:
            UsageError: Nobody holds it.
        """
        lease = self.lease
        self._locks -= 1
        if not self._locks:
            self._lease = None
            lease.release()

    def take_told(self, first_page: int) -> NDArray[np.int64] | None:
        """Return the pages from a place on that the last forward has completed, once; `None` if they are not known."""
        told, self.told = self.told, None
        return told.get() if told is not None and told.first_page == first_page else None

    def move_to(self, hit: Hit, namespace: Namespace) -> None:
        """Hold another one instead: less of it, or nothing in another namespace. No use of that one."""
        held = self._manager.pin(hit, priority=self.priority)
        self.lease.release()
        self._lease, self.hit, self.namespace, self._is_used = held, hit, namespace, True
