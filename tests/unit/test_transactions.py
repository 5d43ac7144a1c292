"""Transactions through the Python API."""

import ctypes
import json
import threading

import numpy as np
import pytest

import cpkv
from manual_engine import LAYERS, STREAMS, ManualEngine, contents
from tracked import prompt, start, tracked

SHAPES = [(key, page_size) for key in ("token", "pair") for page_size in (1, 16, 64)]


@pytest.mark.parametrize(("key", "page_size"), SHAPES)
def test_a_host_copy_becomes_visible_in_one_commit(key, page_size):
    cache = tracked(key, page_size)
    engine = ManualEngine(16, 16)
    tokens = prompt(cache, 4, key=key)
    lease, pages = start(cache, tokens, key)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    assert (transaction.status, transaction.pages, transaction.first_page) == ("reserved", 4, 0)
    assert cache.stats().host_reserved_slots == 4
    written = [contents(tokens.tolist(), page, page_size=page_size, key=key) for page in range(4)]
    for layer in range(LAYERS):
        engine.write(pages, layer, [content[layer] for content in written])
        engine.submit(transaction, layer)
        assert cache.match(tokens).pages == 0
    cache.forward_end([transaction])
    inserted = cache.insert(tokens, pages, lease, transaction)
    assert (inserted.new_pages, inserted.host_pages, transaction.status) == (4, 4, "pending")
    lease.release()
    for step in range(LAYERS - 1):
        assert engine.land(0)
        assert cache.tick(step, engine.acks).committed == []
    assert engine.land(1)
    assert cache.has_work()
    report = cache.tick(LAYERS - 1, engine.acks)
    assert report.committed == [transaction.id]
    assert (transaction.status, cache.has_work()) == ("committed", False)
    cache.evict(0, 4)
    hit = cache.match(tokens)
    assert (hit.device_pages, hit.host_pages) == (0, 4)
    with cache.lock(hit) as lease:
        assert [engine.host_content(slot) for slot in lease.host_slots()] == written
    cache.check_integrity()


def test_what_is_not_reserved_has_a_reason():
    cache = tracked(host_slots=4)
    tokens = prompt(cache, 4)
    lease, pages = start(cache, tokens)
    (first,) = cache.reserve([(tokens, pages, lease)])
    other, other_pages = start(cache, tokens)
    (second,) = cache.reserve([(tokens, other_pages, other)])
    third_tokens = prompt(cache, 2, first=500)
    third_lease, third_pages = start(cache, third_tokens)
    (third,) = cache.reserve([(third_tokens, third_pages, third_lease)])
    assert [one.status for one in (first, second, third)] == ["reserved", "nothing", "no_room"]
    assert (second.id, second.pages, list(second.plan()[0])) == (None, 0, [])
    with pytest.raises(cpkv.TransactionError, match="nothing to be copied"):
        second.submitted(0, 1)
    second.abort()
    first.abort()
    for held in (lease, other, third_lease):
        held.release()


def test_a_batch_is_refused_as_a_whole():
    cache = tracked()
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    other = cache.lock(cache.match(tokens))
    digest = cache.digest()
    with pytest.raises(cpkv.PageError, match="is free: allocate it first"):
        cache.reserve([(tokens, pages, lease), (tokens, [14, 15], other)])
    with pytest.raises(cpkv.LeaseError, match="twice"):
        cache.reserve([(tokens, pages, lease), (tokens, pages, lease)])
    with pytest.raises(cpkv.InputTypeError, match="batch: got int at index 0, want tuples"):
        cache.reserve([3])
    with pytest.raises(cpkv.InputError, match="got 1 page ids, want 2"):
        cache.reserve([(tokens, pages[:1], lease)])
    assert cache.digest() == digest
    lease.release()
    with pytest.raises(cpkv.LeaseError, match="released"):
        cache.reserve([(tokens, pages, lease)])
    other.release()


def test_a_transaction_ends_with_its_block_or_is_warned_about():
    cache = tracked()
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    with lease:
        with cache.reserve([(tokens, pages, lease)])[0] as transaction:
            assert cache.stats().host_reserved_slots == 2
        assert transaction.status == "draining"
        report = cache.tick(0)
        assert report.rolled_back == [(transaction.id, "aborted")]
        transaction.abort("retracted")
        assert (transaction.status, transaction.reason) == ("rolled_back", "aborted"), "the first one counts"
        (forgotten,) = cache.reserve([(tokens, pages, lease)])
        assert forgotten.id != transaction.id
        with pytest.warns(ResourceWarning, match="dropped without insert"):
            del forgotten
        cache.tick(1)
        assert cache.stats().host_reserved_slots == 0
    with pytest.raises(cpkv.InputError, match="reason is 'bored', want 'aborted' or 'retracted'"):
        transaction.abort("bored")


def test_wrong_order_is_refused_and_changes_nothing():
    cache, stranger = tracked(), tracked()
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    digest = cache.digest()
    with pytest.raises(cpkv.TransactionError, match="another cache"):
        stranger.forward_end([transaction])
    with pytest.raises(cpkv.TransactionError, match=r"to be inserted with its transaction 0\.0"):
        cache.insert(tokens, pages, lease)
    with pytest.raises(cpkv.InputError, match="goes with the lease"):
        cache.insert(tokens, pages, None, transaction)
    assumed = cpkv.CacheManager(device_pages=1, page_size=1)
    with (
        assumed.lock(assumed.match([1])) as other,
        pytest.raises(cpkv.UsageError, match="those of this cache are assumed"),
    ):
        assumed.reserve([([1], [0], other)])
    with pytest.raises(cpkv.TransactionError, match="sequence is 0 for a copy of operation"):
        transaction.submitted(0, 0)
    assert cache.digest() == digest
    transaction.submitted(0, 1)
    cache.forward_end([transaction])
    with pytest.raises(cpkv.TransactionError, match="takes no more copies"):
        transaction.submitted(0, 2)
    cache.insert(tokens, pages, lease, transaction)
    digest = cache.digest()
    with pytest.raises(cpkv.TransactionError, match="bound by an earlier insertion"):
        cache.insert(tokens, [], lease, transaction)
    assert cache.digest() == digest
    assert cache.tick(7, [1]).committed == [transaction.id]
    for step in (7, 9, 0):
        with pytest.raises(cpkv.UsageError, match=f"tick {step} is out of order, want 8"):
            cache.tick(step)
    with pytest.raises(cpkv.TransactionError, match="is not open"):
        transaction.plan()
    lease.release()


def test_a_transaction_tells_how_it_has_ended_however_often_its_place_is_used_again():
    cache = tracked()
    kept = []
    for number in range(6):
        tokens = prompt(cache, 2, first=number * 100)
        lease, pages = start(cache, tokens)
        (transaction,) = cache.reserve([(tokens, pages, lease)])
        transaction.submitted(0, number + 1)
        cache.forward_end([transaction], draft_ran=number != 3)
        if number % 2 == 0:
            cache.insert(tokens, pages, lease, transaction)
        else:
            transaction.abort("retracted")
            cache.free(pages)
        lease.release()
        cache.tick(number, [number + 1])
        kept.append(transaction)
        cache.evict(0, 2)
    assert len({transaction.id & 0xFFFF_FFFF for transaction in kept}) == 1, "the places are used again"
    assert [transaction.status for transaction in kept] == ["committed", "rolled_back"] * 3
    assert [transaction.reason for transaction in kept] == [None, "retracted", None, "draft_missing", None, "retracted"]
    assert repr(kept[5]).endswith("status='rolled_back')")


def test_what_ends_between_two_ticks_is_told_at_once():
    cache = tracked()
    tokens = prompt(cache, 4)
    lease, pages = start(cache, tokens)
    (landed,) = cache.reserve([(tokens[:2], pages[:2], lease)])
    landed.submitted(0, 1)
    cache.forward_end([landed])
    assert cache.tick(0, [1]).committed == []
    cache.insert(tokens[:2], pages[:2], lease, landed)
    assert (landed.status, landed.reason) == ("committed", None), "it had landed before it was bound"
    (early,) = cache.reserve([(tokens, pages[2:], lease)])
    early.submitted(0, 2)
    cache.forward_end([early])
    assert cache.tick(1, [2]).committed == [landed.id]
    cache.flush()
    assert (early.status, early.reason) == ("rolled_back", "flushed")
    early.abort()
    lease.release()


def test_pages_that_are_read_come_free_later():
    cache = tracked(device_pool="external")
    engine = ManualEngine(16, 16)
    tokens = prompt(cache, 3)
    lease = cache.lock(cache.match(tokens))
    (transaction,) = cache.reserve([(tokens, [3, 7, 5], lease)])
    engine.submit(transaction, 0)
    transaction.abort("retracted")
    assert list(cache.free([3, 7, 5])) == []
    assert cache.stats().device_fenced_pages == 3
    with pytest.raises(
        cpkv.PageError, match="page id 7 at index 0 was given back, and an unfinished operation still has it"
    ):
        cache.free([7])
    lease.release()
    assert list(cache.tick(0, engine.acks).freed_pages) == []
    engine.land_all()
    assert list(cache.tick(1, engine.acks).freed_pages) == [3, 7, 5]
    assert list(cache.free([7])) == [7]


def test_late_backups_are_handed_out_by_the_tick():
    cache = tracked()
    engine = ManualEngine(16, 16)
    tokens = prompt(cache, 3)
    lease, pages = start(cache, tokens)
    inserted = cache.insert(tokens, pages, lease)
    assert inserted.host_pages == 3
    (late,) = cache.tick(0).started
    assert (late.kind, late.status, late.reason, list(late.plan()[0])) == ("late", "pending", None, list(pages))
    for layer in range(LAYERS):
        engine.submit(late, layer)
    late.submitted_all()
    engine.land_all()
    assert cache.tick(1, engine.acks).committed == [late.id]
    assert late.status == "committed"
    lease.release()


def test_flush_hides_everything_at_once():
    cache = tracked()
    tokens = prompt(cache, 3)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    cache.insert(tokens, pages, lease, transaction)
    assert list(cache.flush()) == []
    assert cache.match(tokens).pages == 0
    lease.release()
    assert cache.tick(0).rolled_back == [(transaction.id, "flushed")]
    transaction.submitted_all()
    cache.tick(1)
    assert cache.stats().device_free_pages == 16
    cache.check_integrity()


def test_events_name_pages_as_the_cache_does():
    cache = tracked("pair", 2, events=True)
    tokens = prompt(cache, 3, key="pair")
    names = cache.page_hashes(tokens)
    assert names != cache.page_hashes(tokens, namespace="other")
    lease, pages = start(cache, tokens, "pair")
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    cache.insert(tokens, pages, lease, transaction)
    (stored,) = cache.take_events()
    assert (stored.kind, stored.medium, stored.page_hashes) == ("stored", "device", names)
    assert stored.parent_hash is None
    assert stored.token_ids == tokens[:7].tolist()
    assert cache.take_events() == []
    transaction.submitted(0, 1)
    cache.forward_end([transaction])
    cache.tick(0, [1])
    (stored,) = cache.take_events()
    assert (stored.kind, stored.medium, stored.page_hashes) == ("stored", "host", names)
    lease.release()
    cache.evict(0, 1)
    (removed,) = cache.take_events()
    assert (removed.kind, removed.medium, removed.page_hashes) == ("removed", "device", names[2:])
    assert removed.parent_hash is None
    cache.flush()
    (cleared,) = cache.take_events()
    assert (cleared.kind, cleared.medium, cleared.page_hashes) == ("cleared", None, [])
    assert tracked().take_events() == []


def test_dump_is_json():
    cache = tracked("pair", 2)
    tokens = prompt(cache, 3, key="pair")
    lease = cache.lock(cache.match(tokens, namespace="tenant \x00 1"))
    pages = cache.allocate(3)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    dump = json.loads(json.dumps(cache.dump()))
    (operation,) = dump["operations"]
    assert (operation["id"], operation["status"], operation["device_pages"]) == (transaction.id, "reserved", [0, 1, 2])
    node = next(node for node in dump["nodes"] if node["transaction"] == transaction.id)
    assert (node["token_ids"], node["successor"], node["device_pages"], node["locks"]) == (list(range(6)), 6, [], 1)
    assert any("tenant" in (node["namespace"] or "") for node in dump["nodes"])
    transaction.abort()
    lease.release()


def test_words_only_grow_and_are_memory():
    words = cpkv.AckWords(STREAMS)
    words.store(0, 5)
    words.store(0, 3)
    assert (words.load(0), words.load(1)) == (5, 0)
    word = ctypes.c_uint64.from_address(words.address(1))
    word.value = 9
    assert words.load(1) == 9
    for wrong in (2, -1, 2**70):
        with pytest.raises(cpkv.InputError, match="stream is"):
            words.load(wrong)
    with pytest.raises(cpkv.InputError, match="streams is 0, want 1 to 1024"):
        cpkv.AckWords(0)


def test_a_worker_thread_acknowledges_through_the_words():
    cache = tracked()
    words = cpkv.AckWords(STREAMS)
    tokens = prompt(cache, 3)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    transaction.submitted(0, 1)
    transaction.submitted(1, 1)
    cache.forward_end([transaction])
    cache.insert(tokens, pages, lease, transaction)
    go, gone = threading.Event(), threading.Event()

    def work():
        go.wait()
        words.store(0, 1)
        words.store(1, 1)
        gone.set()

    worker = threading.Thread(target=work)
    worker.start()
    assert cache.tick(0, words).committed == []
    go.set()
    gone.wait()
    assert cache.tick(1, words).committed == [transaction.id]
    worker.join()
    lease.release()


def test_a_copy_that_never_ends_is_quarantined(caplog):
    cache = tracked(copy_deadline=2.0)
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    transaction.submitted(0, 1)
    cache.forward_end([transaction])
    cache.insert(tokens, pages, lease, transaction)
    second = 1_000_000_000
    # It counts from the first tick on, however long nobody has ticked before.
    assert cache.tick(0, [0], now_ns=1_000 * second).rolled_back == []
    assert cache.tick(1, [0], now_ns=1_001 * second).rolled_back == []
    assert cache.tick(2, [0], now_ns=1_002 * second).rolled_back == [(transaction.id, "copy_failed")]
    assert cache.tick(3, [0], now_ns=1_003 * second).quarantined == []
    assert caplog.records == []
    assert cache.tick(4, [0], now_ns=1_004 * second).quarantined == [transaction.id]
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("cpkv", "WARNING")
    assert f"quarantined [{transaction.id}]: copies are not known to end" in record.getMessage()
    assert (transaction.status, cache.stats().host_quarantined_slots) == ("quarantined", 2)
    assert cache.tick(5, [1], now_ns=1_005 * second).quarantined == []
    assert (transaction.status, transaction.reason) == ("rolled_back", "copy_failed")
    lease.release()


def test_ranks_on_several_hosts_agree_by_a_reduction():
    caches = [tracked(lanes=2) for _ in range(2)]
    votes, calls = [[], []], []

    def reduction(rank):
        def reduce(mine):
            votes[rank].append(np.array(mine))
            step = len(votes[rank]) - 1
            calls.append(rank)
            return lambda: np.minimum(votes[0][step], votes[1][step])

        return reduce

    for rank, cache in enumerate(caches):
        cache.attach_reduction(reduction(rank))
        assert cache.tick(0).committed == []
    assert calls == [], "nothing is open"
    tokens = prompt(caches[0], 4)
    transactions, leases = [], []
    for cache in caches:
        lease, pages = start(cache, tokens)
        (transaction,) = cache.reserve([(tokens, pages, lease)])
        transaction.submitted(0, 1)
        cache.forward_end([transaction])
        cache.insert(tokens, pages, lease, transaction)
        transactions.append(transaction)
        leases.append(lease)
    acks = [[1], [0]]
    for step in range(1, 4):
        reports = [cache.tick(step, acks[rank]) for rank, cache in enumerate(caches)]
        assert [report.committed for report in reports] == [[], []], "the other rank has not landed"
    acks[1] = [1]
    for step in range(4, 6):
        reports = [cache.tick(step, acks[rank]) for rank, cache in enumerate(caches)]
    assert [report.committed for report in reports] == [[transactions[0].id]] * 2
    assert caches[0].digest() == caches[1].digest()
    assert calls == [0, 1] * 4
    for lease in leases:
        lease.release()


def test_a_reduction_that_is_none_is_refused():
    cache = tracked()
    with pytest.raises(cpkv.InputTypeError, match="reduce is 3, want something to call"):
        cache.attach_reduction(3)
    cache.attach_reduction(lambda _votes: [0])
    with pytest.raises(cpkv.LogError, match="a way to agree already"):
        cache.attach_reduction(lambda votes: votes)
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    with cache.reserve([(tokens, pages, lease)])[0]:
        cache.tick(0)
        digest = cache.digest()
        with pytest.raises(cpkv.LogError, match="not the minimum of the 256 numbers"):
            cache.tick(1)
        assert cache.digest() == digest
    lease.release()


def test_write_policies():
    cache = tracked(write="selective", write_uses=2)
    tokens = prompt(cache, 3)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    assert transaction.status == "nothing"
    assert cache.insert(tokens, pages, lease, transaction).host_pages == 0
    lease.release()
    assert cache.tick(0).started == []
    with cache.lock(cache.match(tokens)):
        (late,) = cache.tick(1).started
    assert late.pages == 3
    back = tracked(write="back", clean_pages=2)
    lease, pages = start(back, tokens)
    back.insert(tokens, pages, lease)
    lease.release()
    (late,) = back.tick(0).started
    assert late.pages == 3, "whole runs of pages"


def test_settings_of_backups_are_checked():
    with pytest.raises(cpkv.ConfigError, match="write is 'around', want one of through, selective, back"):
        cpkv.CacheManager(device_pages=1, write="around")
    with pytest.raises(cpkv.ConfigError, match="write_uses is -1, want 1 to"):
        tracked(write="selective", write_uses=-1)
    with pytest.raises(cpkv.ConfigError, match="copies is 'made', want one of assumed, tracked"):
        cpkv.CacheManager(device_pages=1, copies="made")
    for deadline in (0, -1, float("nan")):
        with pytest.raises(cpkv.ConfigError, match="copy_deadline is"):
            cpkv.CacheManager(device_pages=1, copy_deadline=deadline)


@pytest.mark.parametrize("ran", [{"draft_ran": False}, {"target_ran": False}])
def test_pages_that_are_not_whole_get_no_copy_also_without_room(ran):
    cache = tracked(host_slots=4)
    blocking = prompt(cache, 4, first=500)
    other, other_pages = start(cache, blocking)
    (blocker,) = cache.reserve([(blocking, other_pages, other)])
    tokens = prompt(cache, 3)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    assert transaction.status == "no_room"
    cache.forward_end([transaction], **ran)
    blocker.abort()
    other.release()
    cache.forward_end([blocker])
    cache.tick(0)
    assert cache.stats().host_reserved_slots == 0
    assert cache.insert(tokens, pages, lease, transaction).host_pages == 0
    lease.release()
    # Nor when they are used again.
    cache.lock(cache.match(tokens)).release()
    assert cache.tick(1).started == []
    assert cache.stats().host_reserved_slots == 0


def test_a_forward_ends_transactions_only():
    cache = tracked()
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    cache.insert(tokens, pages, lease)
    lease.release()
    (late,) = cache.tick(0).started
    with pytest.raises(cpkv.TransactionError, match="was not reserved before a forward"):
        cache.forward_end([late], draft_ran=False)
    assert late.status == "pending"


def test_an_insertion_that_comes_twice_is_told_so():
    cache = tracked()
    for number, settled in enumerate(["pending", "committed", "rolled_back"]):
        tokens = prompt(cache, 2, first=number * 100)
        lease, pages = start(cache, tokens)
        (transaction,) = cache.reserve([(tokens, pages, lease)])
        transaction.submitted(0, number + 1)
        cache.forward_end([transaction])
        cache.insert(tokens, pages, lease, transaction)
        if settled == "rolled_back":
            transaction.abort()
        if settled != "pending":
            cache.tick(number, [number + 1])
        assert transaction.status == settled
        digest = cache.digest()
        with pytest.raises(cpkv.TransactionError, match=r"operation \d\.\d was bound by an earlier insertion"):
            cache.insert(tokens, pages, lease, transaction)
        assert cache.digest() == digest
        lease.release()


def test_a_page_that_was_given_back_too_early_is_told_so():
    cache = tracked()
    tokens = prompt(cache, 2)
    lease, pages = start(cache, tokens)
    (transaction,) = cache.reserve([(tokens, pages, lease)])
    assert list(cache.free(pages[1:])) == [], "nothing was submitted, and it is reserved for"
    message = (
        "page id 1 at index 1 was given back, and an unfinished operation still has it: it comes free with a later"
    )
    for call in (
        lambda: cache.insert(tokens, pages, lease, transaction),
        lambda: cache.reserve([(tokens, pages, lease)]),
    ):
        with pytest.raises(cpkv.PageError, match=message):
            call()
    transaction.abort()
    lease.release()


def test_what_comes_from_another_cache_or_too_late_is_named():
    cache, stranger = tracked(), tracked()
    tokens = prompt(cache, 2)
    leases = [cache.lock(cache.match(tokens)) for _ in range(3)]
    pages = [cache.allocate(2) for _ in leases]
    assert [repr(lease).split(",")[0] for lease in leases] == ["Lease(1", "Lease(2", "Lease(3"]
    leases[2].release()
    batch = list(zip([tokens] * 3, pages, leases, strict=True))
    with pytest.raises(cpkv.LeaseError, match="lease 3 was released"):
        cache.reserve(batch)
    with pytest.raises(cpkv.LeaseError, match="lease 2 is in the batch twice"):
        cache.reserve([batch[1], batch[0], batch[1]])
    with pytest.raises(cpkv.LeaseError, match="lease 1 comes from another cache"):
        stranger.reserve(batch)
    with pytest.raises(cpkv.LeaseError, match="the hit of 0 pages comes from another cache"):
        stranger.lock(cache.match(tokens))
    transactions = cache.reserve(batch[:2])
    with pytest.raises(cpkv.TransactionError, match=r"transaction 0\.0 comes from another cache"):
        stranger.forward_end(transactions)
    with pytest.raises(cpkv.TransactionError, match="transaction without slots comes from another cache"):
        stranger.forward_end(transactions[1:])
    transactions[0].abort()
    for lease in leases[:2]:
        lease.release()
