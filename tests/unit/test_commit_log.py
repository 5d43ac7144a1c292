"""Ranks on one commit log, as threads of one process."""

import secrets
import threading

import pytest

import cpkv
from log_ranks import TOKENS, Rank


@pytest.fixture
def ranks(tmp_path):
    nonce = secrets.randbits(62)
    pair = [Rank(tmp_path, nonce, rank) for rank in range(2)]
    pair[0].log.wait_for_all(10)
    yield pair
    for rank in reversed(pair):
        rank.log.close()


def test_a_commit_takes_all_ranks_and_comes_one_step_later(ranks):
    for rank in ranks:
        rank.start()
    # Rank 0 writes what the other has reported by then.
    for step, acks in enumerate([[0, 1], [1, 1]]):
        order = zip(reversed(ranks), acks, strict=True)
        assert [rank.cache.tick(step, [ack]).committed for rank, ack in order] == [[], []]
    assert [rank.cache.tick(2, [1]).committed for rank in reversed(ranks)] == [[ranks[0].transaction.id]] * 2
    assert not any(rank.cache.has_work() for rank in ranks)
    assert ranks[0].cache.digest() == ranks[1].cache.digest()


def test_a_refused_tick_takes_no_entry(ranks):
    for rank in ranks:
        rank.start()
    # Rank 0 first: its entry is there when the other one ticks, and is not to be lost.
    for step in range(2):
        for rank in ranks:
            with pytest.raises(cpkv.InputError, match="acks has 0 words"):
                rank.cache.tick(step)
            assert rank.cache.tick(step, [step]).committed == []
    for step in (2, 3):
        committed = [rank.cache.tick(step).committed for rank in ranks]
    assert committed == [[ranks[0].transaction.id]] * 2


def test_other_threads_go_on_while_a_tick_waits_for_a_rank(ranks):
    for rank in ranks:
        rank.start()
        rank.log.set_patience(warning=5, deadline=20)
    ranks[1].cache.tick(0, [1])
    begun, answers = threading.Event(), []

    def wait():
        begun.set()
        # Rank 0 has not written its entry yet.
        answers.append(ranks[1].cache.tick(1, [1]))

    waiting = threading.Thread(target=wait)
    waiting.start()
    begun.wait()
    assert ranks[1].cache.stats().open_operations == 1
    ranks[1].transaction.copy_failed()
    assert answers == []
    ranks[0].cache.tick(0, [1])
    waiting.join(10)
    assert len(answers) == 1


def test_a_rank_that_has_waited_in_vain_never_goes_on(ranks, caplog):
    for rank in ranks:
        rank.start()
    ranks[1].log.set_patience(warning=0.02, deadline=0.05)
    ranks[1].cache.tick(0, [1])
    with pytest.raises(cpkv.RankError, match="rank 0 is silent"):
        ranks[1].cache.tick(1, [1])
    assert "waited more than" in caplog.text
    ranks[0].cache.tick(0, [1])
    for step in (1, 2):
        with pytest.raises(cpkv.RankError, match="have not agreed in an earlier tick: rank 0 is silent"):
            ranks[1].cache.tick(step, [1])


def inserted(cache, token=9):
    with cache.lock(cache.match([token])) as lease:
        cache.insert([token], cache.allocate(1), lease)


def aborted(cache):
    with cache.lock(cache.match([8])) as lease:
        [transaction] = cache.reserve([([8], cache.allocate(1), lease)])
        transaction.abort()


OTHER_CALLS = {
    "an insertion": inserted,
    "a lock": lambda cache: cache.lock(cache.match([7])).release(),
    "an aborted request": aborted,
    "a flush": lambda cache: cache.flush(),
}


@pytest.mark.parametrize("call", OTHER_CALLS)
def test_a_rank_that_was_given_another_call_is_told_at_the_next_tick(ranks, call):
    for rank in ranks:
        rank.start()
        inserted(rank.cache, token=7)
    cache = ranks[1].cache
    OTHER_CALLS[call](cache)
    for rank in reversed(ranks):
        assert not rank.cache.tick(0, [0]).committed
    ranks[0].cache.tick(1, [0])
    for step in (1, 2):
        with pytest.raises(cpkv.LogError, match="rank 1 has parted from rank 0: by step 0 its cache was given other"):
            cache.tick(step, [0])


def test_ranks_may_look_for_prefixes_as_often_as_they_like(ranks):
    for rank in ranks:
        rank.start()
    ranks[1].cache.match(TOKENS)
    for step in range(3):
        for rank in reversed(ranks):
            rank.cache.tick(step, [1])
    assert not ranks[1].cache.has_work()


def test_nothing_of_a_log_has_a_name_when_all_know_all(ranks, tmp_path):
    assert len(list(tmp_path.iterdir())) == len(ranks)
    ranks[1].log.wait_for_all(10)
    for rank in ranks:
        rank.log.remove_name()
    assert not list(tmp_path.iterdir())
    for rank in ranks:
        rank.start()
    ranks[1].cache.tick(0, [1])
    ranks[0].log.close()
    with pytest.raises(cpkv.RankError, match="rank 0 has left"):
        ranks[1].cache.tick(1, [1])
    with pytest.raises(cpkv.LogError, match="the commit log was closed"):
        ranks[0].log.remove_name()


def test_rank_zero_is_ahead_by_no_more_than_the_log_holds(ranks):
    for rank in ranks:
        rank.start()
    ranks[0].log.set_patience(warning=0.02, deadline=0.05)
    for step in range(ranks[0].log.entries):
        ranks[0].cache.tick(step, [0])
    with pytest.raises(cpkv.RankError, match="rank 1 is silent"):
        ranks[0].cache.tick(ranks[0].log.entries, [0])
    ranks[1].log.close()
    with pytest.raises(cpkv.LogError, match="the commit log was closed"):
        _ = ranks[1].log.entries


def test_a_rank_that_leaves_is_an_error_that_names_it(ranks):
    for rank in ranks:
        rank.start()
    ranks[1].cache.tick(0, [1])
    ranks[0].log.close()
    with pytest.raises(cpkv.RankError, match="rank 0 has left"):
        ranks[1].cache.tick(1, [1])
    with pytest.raises(cpkv.LogError, match="the commit log was closed"):
        ranks[0].cache.tick(0, [1])


def test_a_log_is_for_one_cache_with_the_same_settings(tmp_path, ranks):
    other = cpkv.CacheManager(device_pages=1)
    with pytest.raises(cpkv.LogError, match="the log is for caches with the fingerprint"):
        other.attach_log(ranks[0].log)
    twin = Rank(tmp_path, secrets.randbits(62), 0)
    twin.cache.attach_log(twin.log)
    third = Rank(tmp_path, secrets.randbits(62), 0)
    with pytest.raises(cpkv.LogError, match="another cache's already"):
        third.cache.attach_log(twin.log)
    with pytest.raises(cpkv.LogError, match="fingerprint"):
        Rank(tmp_path, secrets.randbits(62), 0).cache.attach_log(
            cpkv.CommitLog.create("other", 1, ranks=2, fingerprint=5, directory=str(tmp_path))
        )
    lease = third.cache.lock(third.cache.match(TOKENS))
    (transaction,) = third.cache.reserve([(TOKENS, third.cache.allocate(2), lease)])
    with pytest.raises(cpkv.LogError, match="operations are open"):
        third.cache.attach_log(third.log)
    transaction.abort()
    lease.release()
    for rank in (twin, third):
        rank.log.close()


def test_ranks_differ_in_their_lane_only():
    caches = [cpkv.CacheManager(device_pages=2, lanes=2, own_lane=lane) for lane in (0, 1)]
    assert caches[0].fingerprint == caches[1].fingerprint
    assert cpkv.CacheManager(device_pages=4, lanes=2).fingerprint != caches[0].fingerprint
    with pytest.raises(cpkv.ConfigError, match="own_lane is 2, want 0 to 1"):
        cpkv.CacheManager(device_pages=2, lanes=2, own_lane=2)


def test_names_and_ranks_are_checked(tmp_path):
    with pytest.raises(cpkv.LogError, match="is not usable"):
        cpkv.CommitLog.create("a/b", 1, ranks=1, fingerprint=0, directory=str(tmp_path))
    with pytest.raises(cpkv.InputError, match="ranks is 0, want 1 to"):
        cpkv.CommitLog.create("name", 1, ranks=0, fingerprint=0, directory=str(tmp_path))
    with pytest.raises(cpkv.InputError, match="timeout is NaN"):
        cpkv.CommitLog.join("name", 1, 1, ranks=2, fingerprint=0, timeout=float("nan"), directory=str(tmp_path))
    with pytest.raises(cpkv.LogError, match="is not ready after"):
        cpkv.CommitLog.join("name", 1, 1, ranks=2, fingerprint=0, timeout=0.01, directory=str(tmp_path))


def test_a_log_that_was_refused_may_be_attached_later(tmp_path):
    rank = Rank(tmp_path, secrets.randbits(62), 0)
    twin = cpkv.CacheManager(page_size=1, device_pages=8, host_slots=8, segment_pages=1, copies="tracked")
    twin.attach_reduction(lambda votes: votes)
    lease = rank.cache.lock(rank.cache.match(TOKENS))
    (transaction,) = rank.cache.reserve([(TOKENS, rank.cache.allocate(2), lease)])
    with pytest.raises(cpkv.LogError, match="operations are open"):
        rank.cache.attach_log(rank.log)
    with pytest.raises(cpkv.LogError, match="has a way to agree already"):
        twin.attach_log(rank.log)
    transaction.abort()
    lease.release()
    rank.cache.tick(0)
    rank.cache.attach_log(rank.log)
    with pytest.raises(cpkv.LogError, match="has a way to agree already"):
        rank.cache.attach_log(rank.log)
    rank.log.close()


def test_a_closed_log_is_of_no_use(tmp_path):
    rank = Rank(tmp_path, secrets.randbits(62), 0)
    with rank.log:
        pass
    with pytest.raises(cpkv.LogError, match="the commit log was closed"):
        rank.cache.attach_log(rank.log)
    with pytest.raises(cpkv.LogError, match="the commit log was closed"), rank.log:
        pass
    rank.cache.tick(0)
    rank.cache.attach_reduction(lambda votes: votes)
