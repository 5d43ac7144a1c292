"""The host tier under random requests: real copies in threads that are late, every byte that a layer reads compared."""

import random

import pytest
from scheduling import TieredScheduler, context
from sglang.srt.runtime_context import get_context
from test_sglang_requests import Work

from cpkv.device.cpu import CpuEngine
from cpkv.sglang.cache import CHECK_INTEGRITY

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setenv(CHECK_INTEGRITY, "1")
    with get_context().override_server_args():
        yield


def late(seed):
    """Copies that begin up to 2 ms after they were submitted, one in twenty of them later."""
    draws = random.Random(seed)
    return CpuEngine(delay_s=lambda _: draws.choice([0.0] * 10 + [0.001] * 9 + [0.01]) * draws.random() * 2)


@pytest.mark.parametrize("write", ["through", "selective", "back"])
@pytest.mark.parametrize("is_eagle", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_every_layer_reads_what_was_computed_for_its_tokens(page_size, is_eagle, write):
    made_of = context(pages=-(-850 // page_size), page_size=page_size, is_eagle=is_eagle)
    scheduler = TieredScheduler(made_of, late(1), slots=-(-8_000 // page_size), write=write)
    work = Work(scheduler, 5)
    while work.steps < 900:
        work.step()
    for request in list(scheduler.running):
        if request.kv.kv_allocated_len < len(request.tokens):
            scheduler.extend(request, len(request.tokens))
        scheduler.finish(request)
    scheduler.flush()
    stats, counts = scheduler.host.tier.cache.stats(), scheduler.host.tier.counts
    assert scheduler.restored > 0
    assert stats.committed_pages > 0
    assert not counts.all_layer_forwards
    assert stats.host_reserved_slots == stats.host_draining_slots == stats.open_operations == 0
    scheduler.cache.release_host_resources()
