"""A copy engine that moves real bytes and does what a test tells it, and the memory it works on.

Copies land when the test says so, acknowledgements are held back or come late, copies fail. Freed
pages and slots are scribbled at once.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

TARGET_LAYERS = 2
LAYERS = 3
"""The layers of the target, then one of the draft."""
STREAMS = 2
"""One copy stream for the target, one for the draft."""
SCRIBBLE = 0xEE


@dataclass
class Copy:
    """One layer of the pages of a transaction."""

    transaction: object
    layer: int
    device_pages: list[int]
    host_slots: list[int]
    fails: bool


@dataclass
class ManualEngine:
    """The memory, streams and copies of one rank; a page of a layer is eight bytes."""

    device_pages: int
    host_slots: int
    queues: list[deque] = field(default_factory=lambda: [deque() for _ in range(STREAMS)])

    def __post_init__(self):
        self.device = np.full((LAYERS, self.device_pages, 8), SCRIBBLE, np.uint8)
        self.host = np.full((LAYERS, self.host_slots, 8), SCRIBBLE, np.uint8)
        self.submitted = [0] * STREAMS
        self.landed = [0] * STREAMS
        self.acks = [0] * STREAMS

    def write(self, pages, layer, contents):
        """What the forward computes: `contents` has one number for each page."""
        for page, content in zip(pages, contents, strict=True):
            self.device[layer, page] = np.frombuffer(content.to_bytes(8, "little"), np.uint8)

    def scribble(self, pages):
        self.device[:, list(pages)] = SCRIBBLE

    def scribble_slots(self, slots):
        self.host[:, list(slots)] = SCRIBBLE

    def submit(self, transaction, layer, mine=None, *, fails=False):
        """What a layer-end hook does, for the pages that are this rank's."""
        pairs = [(page, slot) for page, slot in zip(*transaction.plan(), strict=True) if not mine or mine(page)]
        if not pairs:
            return
        stream = int(layer >= TARGET_LAYERS)
        self.submitted[stream] += 1
        device_pages, host_slots = (list(side) for side in zip(*pairs, strict=True))
        self.queues[stream].append(Copy(transaction, layer, device_pages, host_slots, fails))
        transaction.submitted(stream, self.submitted[stream])

    def load(self, restores, layer, mine=None, *, fails=False):
        """Submit a layer of restores; after the last layer there is nothing more to come."""
        for restore in restores:
            self.submit(restore, layer, mine, fails=fails)
            restore.layer_submitted(layer)
            if layer == LAYERS - 1:
                restore.submitted_all()

    def land(self, stream, *, acknowledge=True):
        """The next copy of a stream ends; false if there is none."""
        if not self.queues[stream]:
            return False
        copy = self.queues[stream].popleft()
        if copy.fails:
            copy.transaction.copy_failed()
        elif copy.transaction.kind == "restore":
            self.device[copy.layer, copy.device_pages] = self.host[copy.layer, copy.host_slots]
        else:
            self.host[copy.layer, copy.host_slots] = self.device[copy.layer, copy.device_pages]
        self.landed[stream] += 1
        if acknowledge:
            self.acks[stream] = self.landed[stream]
        return True

    def land_all(self):
        for stream in range(STREAMS):
            while self.land(stream):
                pass
            self.acks[stream] = self.landed[stream]

    def host_content(self, slot):
        return [int.from_bytes(self.host[layer, slot].tobytes(), "little") for layer in range(LAYERS)]

    def device_content(self, page):
        return [int.from_bytes(self.device[layer, page].tobytes(), "little") for layer in range(LAYERS)]


def contents(tokens, page, *, page_size, key):
    """What the forward writes for a page: a number for each layer that depends on all tokens up to
    its end, and with pair keys on the token after it.
    """
    end = (page + 1) * page_size + int(key == "pair")
    return [hash((layer, tuple(tokens[:end]))) & (2**63 - 1) for layer in range(LAYERS)]


def visible(cache):
    """Each page of the cache as `(tokens up to its end and the one after, page, device page, slot)`.

    Device pages that are being restored are left out, and so is what relied on a restore that failed.
    """
    prefixes = {}
    lost = set()
    dump = cache.dump()
    restores = {one["id"] for one in dump["operations"] if one["kind"] == "restore"}
    for node in dump["nodes"]:
        prefix = prefixes.get(node["parent"], []) + node["token_ids"]
        prefixes[node["index"]] = prefix
        whole = prefix if node["successor"] is None else [*prefix, node["successor"]]
        pages = len(node["token_ids"]) // cache.page_size
        first = node["end_page"] - pages
        if node["parent"] in lost or node["cut_off"]:
            lost.add(node["index"])
            continue
        is_restored = node["transaction"] in restores
        for place in range(pages):
            device = node["device_pages"][place] if node["device_pages"] and not is_restored else None
            slot = node["host_slots"][place] if node["host_slots"] else None
            yield whole, first + place, device, slot


def free_slots(cache):
    """The host slots that neither a page of the cache nor an unfinished copy has: nobody relies on their bytes."""
    dump, stats = cache.dump(), cache.stats()
    used = {slot for owner in (*dump["nodes"], *dump["operations"]) for slot in owner["host_slots"]}
    unfinished = stats.host_reserved_slots + stats.host_draining_slots + stats.host_quarantined_slots
    assert len(used) == stats.host_cached_slots + unfinished
    return set(range(cache.host_slots)) - used
