"""Naive caches to compare with: plain Python, one record per page, no tree.

Both follow the documented rules and share no code with the package. They serve whole requests one
after another, as the replay does, and return how many pages each tier held.
"""

from collections import OrderedDict
from dataclasses import dataclass


def page_keys(tokens, *, page_size, key):
    """The keys of the whole pages of a prompt; with pair keys, each with its successor."""
    successor = 1 if key == "pair" else 0
    pages = max(len(tokens) - successor, 0) // page_size
    return [tuple(tokens[page * page_size : (page + 1) * page_size + successor]) for page in range(pages)]


class Chains:
    """Numbers pages by their key and all keys in front of it."""

    def __init__(self):
        self._numbers = {}

    def number(self, keys):
        path, parent = [], None
        for key in keys:
            parent = self._numbers.setdefault((parent, key), len(self._numbers))
            path.append(parent)
        return path


class OneTier:
    """LRU over pages; the pages of a request count as used from its end to its start."""

    def __init__(self, *, page_size, key, device_pages):
        self._shape = {"page_size": page_size, "key": key}
        self._capacity = device_pages
        self._chains = Chains()
        self._pages = OrderedDict()

    def serve(self, tokens):
        path = self._chains.number(page_keys(tokens, **self._shape))[: self._capacity]
        hits = 0
        while hits < len(path) and path[hits] in self._pages:
            hits += 1
        for page in reversed(path):
            self._pages[page] = None
            self._pages.move_to_end(page)
        while len(self._pages) > self._capacity:
            self._pages.popitem(last=False)
        return hits, 0


@dataclass
class Page:
    parent: int | None
    depth: int
    device: bool
    host: bool = False
    last_access: int = 0
    is_held: bool = False

    @property
    def is_mirror(self):
        return self.device and self.host

    @property
    def is_sole(self):
        return self.host and not self.device

    @property
    def order(self):
        """The least recently used goes first; on one path, the deepest."""
        return (self.last_access, -self.depth)


class TwoTiers:
    """LRU in both tiers: mirrors first, then sole copies; what has no copy is copied late."""

    def __init__(self, *, page_size, key, device_pages, host_pages):
        self._shape = {"page_size": page_size, "key": key}
        self._device_pages, self._host_pages = device_pages, host_pages
        self._chains = Chains()
        self._pages = {}
        self._clock = 0

    def serve(self, tokens):
        path = self._chains.number(page_keys(tokens, **self._shape))[: self._device_pages]
        known = 0
        while known < len(path) and path[known] in self._pages:
            known += 1
        on_device = sum(self._pages[page].device for page in path[:known])
        self._clock += 1
        for page in path[:known]:
            self._pages[page].last_access = self._clock
            self._pages[page].is_held = True
        while self._count("device") + len(path) - on_device > self._device_pages:
            self._evict_one()
        for page in path[:known]:
            self._pages[page].device = True
        new = path[known:]
        for depth, page in enumerate(new, start=known):
            parent = path[depth - 1] if depth else None
            self._pages[page] = Page(parent, depth, device=True, last_access=self._clock, is_held=True)
        self._copy(new)
        for page in path:
            self._pages[page].is_held = False
        return on_device, known - on_device

    def _count(self, tier):
        return sum(getattr(page, tier) for page in self._pages.values())

    def _copy(self, new):
        held = sum(page.host and page.is_held for page in self._pages.values())
        if len(new) > self._host_pages - held:
            return
        while self._host_pages - self._count("host") < len(new):
            assert self._give_up_slot(most=None)
        for page in new:
            self._pages[page].host = True

    def _least(self, is_candidate, is_in_the_way):
        """The first to go among the candidates that nothing in the way hangs from."""
        blocked = {page.parent for page in self._pages.values() if is_in_the_way(page)}
        free = [
            number
            for number, page in self._pages.items()
            if not page.is_held and number not in blocked and is_candidate(page)
        ]
        return min(free, key=lambda number: self._pages[number].order, default=None)

    def _give_up_slot(self, most):
        mirror = self._least(lambda page: page.is_mirror, lambda page: page.is_mirror)
        if mirror is not None:
            self._pages[mirror].host = False
            return True
        sole = self._least(lambda page: page.is_sole, lambda _: True)
        if sole is None or (most is not None and self._pages[sole].last_access > most):
            return False
        del self._pages[sole]
        return True

    def _evict_one(self):
        leaf = self._least(lambda page: page.device, lambda page: page.device)
        page = self._pages[leaf]
        while not page.host:
            if self._count("host") < self._host_pages:
                page.host = True
            elif not self._give_up_slot(most=page.last_access):
                del self._pages[leaf]
                return
        page.device = False
