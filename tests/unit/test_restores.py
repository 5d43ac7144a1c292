"""Restores that take time, through the Python API."""

import numpy as np
import pytest

import cpkv
from manual_engine import LAYERS, ManualEngine, contents
from tracked import prompt, start, tracked

SHAPES = [(key, page_size) for key in ("token", "pair") for page_size in (1, 16, 64)]


class Cache:
    """A cache with an engine, and the steps of its ticks."""

    def __init__(self, key="token", page_size=1, **settings):
        self.key, self.page_size = key, page_size
        self.core = tracked(key, page_size, **settings)
        self.engine = ManualEngine(16, 16)
        self.step = 0

    def written(self, tokens, pages):
        return [contents(tokens.tolist(), page, page_size=self.page_size, key=self.key) for page in range(pages)]

    def put_on_host(self, pages):
        tokens = prompt(self.core, pages, key=self.key)
        lease, new = start(self.core, tokens, self.key)
        (transaction,) = self.core.reserve([(tokens, new, lease)])
        for layer in range(LAYERS):
            self.engine.write(new, layer, [content[layer] for content in self.written(tokens, pages)])
            self.engine.submit(transaction, layer)
        self.core.forward_end([transaction])
        self.core.insert(tokens, new, lease, transaction)
        lease.release()
        self.settle()
        self.engine.scribble(self.core.evict(0, 16))
        assert self.core.match(tokens).host_pages == pages
        return tokens

    def settle(self):
        self.engine.land_all()
        return self.tick()

    def tick(self):
        report = self.core.tick(self.step, self.engine.acks)
        self.step += 1
        return report

    def restore(self, lease, **arguments):
        pages = self.core.allocate(lease.host_pages)
        self.engine.scribble(pages)
        return self.core.restore(lease, pages, **arguments)


@pytest.mark.parametrize(("key", "page_size"), SHAPES)
def test_a_restored_prompt_is_read_layer_by_layer(key, page_size):
    cache = Cache(key, page_size)
    tokens = cache.put_on_host(4)
    lease = cache.core.lock(cache.core.match(tokens))
    restored = cache.restore(lease)
    (restore,) = restored.operations
    assert (restore.kind, restore.status, restore.pages, list(restored.duplicates)) == ("restore", "pending", 4, [])
    assert list(restore.plan()[0]) == list(lease.page_ids())
    # Another request hits the pages while they are filled, and waits as well.
    other = cache.core.lock(cache.core.match(tokens))
    assert (other.device_pages, [one.id for one in other.restores()]) == (4, [restore.id])
    written = cache.written(tokens, 4)
    for layer in range(LAYERS):
        assert not other.layer_has_landed(layer, cache.engine.acks)
        cache.engine.load(restored.operations, layer)
        cache.engine.land_all()
        assert other.layer_has_landed(layer, cache.engine.acks)
        for page, content in zip(other.page_ids(), written, strict=True):
            assert cache.engine.device_content(page)[: layer + 1] == content[: layer + 1]
    report = cache.tick()
    assert (report.restored, restore.status, other.restores()) == ([restore.id], "committed", [])
    stats = cache.core.stats()
    assert (stats.restored_pages, stats.restoring_pages, stats.host_mirror_slots) == (4, 0, 4)
    lease.release()
    other.release()
    cache.core.check_integrity()


def test_a_failed_restore_takes_its_leases_along_and_leaves_the_host_copy():
    cache = Cache()
    tokens = cache.put_on_host(4)
    lease = cache.core.lock(cache.core.match(tokens))
    front = cache.core.lock(cache.core.match(tokens, limit=2))
    restored = cache.restore(lease, part_pages=2)
    kept, failing = restored.operations
    for layer in range(LAYERS):
        cache.engine.load([kept], layer)
        cache.engine.load([failing], layer, fails=layer == 1)
    assert not lease.lost
    report = cache.settle()
    assert (report.restored, report.rolled_back) == ([kept.id], [(failing.id, "copy_failed")])
    assert (failing.status, failing.reason) == ("rolled_back", "copy_failed")
    assert (lease.lost, front.lost) == (True, False)
    hit = cache.core.match(tokens)
    assert (hit.device_pages, hit.host_pages) == (2, 2)
    digest = cache.core.digest()
    longer = np.arange(5)
    pages = cache.core.allocate(1)
    for refused in (
        lambda: cache.core.insert(longer, pages, lease),
        lambda: cache.core.reserve([(longer, pages, lease)]),
        lambda: cache.core.restore(lease, []),
        lambda: lease.layer_has_landed(0),
    ):
        with pytest.raises(cpkv.RestoreError, match="release the lease and match again"):
            refused()
    cache.core.free(pages)
    assert cache.core.digest() == digest
    lease.release()
    front.release()
    stats = cache.core.stats()
    assert (stats.failed_restores, stats.unrestored_pages, stats.device_free_pages) == (1, 2, 14)
    cache.core.check_integrity()


def test_an_aborted_restore_is_over_once_its_copies_are():
    cache = Cache()
    tokens = cache.put_on_host(3)
    lease = cache.core.lock(cache.core.match(tokens))
    (restore,) = cache.restore(lease).operations
    cache.engine.load([restore], 0)
    restore.abort()
    assert (restore.status, restore.reason, lease.lost) == ("draining", "aborted", True)
    lease.release()
    cache.core.evict(0, 16)
    assert cache.core.stats().device_free_pages == 13
    cache.settle()
    assert (restore.status, cache.core.stats().device_free_pages) == ("rolled_back", 16)
    assert cache.core.match(tokens).host_pages == 3


@pytest.mark.parametrize("pages", [0, -1, 2**32])
def test_parts_have_pages(pages):
    cache = Cache()
    cache.put_on_host(2)
    lease = cache.core.lock(cache.core.match(np.arange(2)))
    with pytest.raises(cpkv.InputError, match=f"part_pages is {pages}"):
        cache.restore(lease, part_pages=pages)
    lease.release()


def test_layers_come_in_their_order():
    cache = Cache()
    cache.put_on_host(2)
    with cache.core.lock(cache.core.match(np.arange(2))) as lease:
        (restore,) = cache.restore(lease).operations
        restore.submitted(0, cache.engine.submitted[0] + 1)
        restore.layer_submitted(3)
        for layer in (3, 0):
            with pytest.raises(cpkv.TransactionError, match=f"layer {layer} of .* comes after layer 3"):
                restore.layer_submitted(layer)
        restore.abort()


def test_assumed_copies_restore_at_once():
    cache = cpkv.CacheManager(page_size=1, device_pages=4, host_slots=4, segment_pages=1)
    cache.insert(np.arange(3), cache.allocate(3))
    cache.evict(0, 3)
    with cache.lock(cache.match(np.arange(3))) as lease:
        restored = cache.restore(lease, cache.allocate(3), part_pages=1)
        assert (restored.operations, lease.restores(), lease.layer_has_landed(9)) == ([], [], True)
    assert cache.stats().restored_pages == 3
