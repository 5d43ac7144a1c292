"""Whatever is given for an argument: what is refused is a `CpkvError` that names the argument and the value."""

import numpy as np
import pytest

import cpkv
from tracked import prompt, start, tracked


class Case:
    """A cache with something under way, and one of everything that is given to its calls."""

    def __init__(self, directory):
        self.cache, self.directory = tracked(), str(directory)
        tokens = prompt(self.cache, 2)
        self.lease, self.pages = start(self.cache, tokens)
        (self.transaction,) = self.cache.reserve([(tokens, self.pages, self.lease)])
        self.hit = self.cache.match(tokens)
        self.words = cpkv.AckWords(1)

    def log(self, name="log", nonce=1, **settings):
        defaults = {"ranks": 1, "fingerprint": self.cache.fingerprint, "directory": self.directory}
        return cpkv.CommitLog.create(name, nonce, **defaults | settings)

    def join(self, rank=1, **settings):
        defaults = {"ranks": 2, "fingerprint": 1, "timeout": 0, "directory": self.directory}
        return cpkv.CommitLog.join("log", 1, rank, **defaults | settings)

    def close(self):
        self.transaction.abort()
        self.lease.release()


@pytest.fixture
def case(tmp_path):
    case = Case(tmp_path)
    yield case
    case.close()


WRONG_TYPES = [
    (lambda case: case.cache.match([1], limit="x"), "limit is 'x', want an integer"),
    (lambda case: case.cache.allocate(1.5), "count is 1.5, want an integer"),
    (lambda case: case.cache.allocate(1, first_lane="a"), "first_lane is 'a', want an integer"),
    (lambda case: case.cache.evict_for([1]), "count is [1], want an integer"),
    (lambda case: case.cache.evict(None, 1), "lane is None, want an integer"),
    (lambda case: case.cache.free_pages("0"), "lane is '0', want an integer"),
    (lambda case: case.cache.lock(None), "hit is None, want a Hit, which match returns"),
    (lambda case: case.cache.lock(case.hit, priority=0.5), "priority is 0.5, want an integer"),
    (lambda case: case.cache.insert([1], [1], 3), "lease is 3, want a Lease or None"),
    (lambda case: case.cache.insert([1], [1], case.lease, 3), "transaction is 3, want a Transaction or None"),
    (lambda case: case.cache.insert([1], [1], list(range(10**5))), "lease is [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,"),
    (lambda case: case.cache.restore(None, []), "lease is None, want a Lease"),
    (lambda case: case.cache.restore(case.lease, [], part_pages="all"), "part_pages is 'all', want an integer"),
    (lambda case: case.cache.reserve(None), "batch is None, want a sequence of tuples of token_ids, device_pages, l"),
    (lambda case: case.cache.reserve("abc"), "batch is 'abc', want a sequence of tuples"),
    (lambda case: case.cache.reserve([([1], [2])]), "batch: got tuple at index 0, want tuples of token_ids,"),
    (lambda case: case.cache.reserve([([1], [2], 3)]), "batch: the lease at index 0 is 3, want a Lease"),
    (lambda case: case.cache.forward_end(3), "transactions is 3, want a sequence of Transaction"),
    (lambda case: case.cache.forward_end([3]), "transactions: the one at index 0 is 3, want a Transaction"),
    (lambda case: case.cache.forward_end([], target_ran=1), "target_ran is 1, want True or False"),
    (lambda case: case.cache.forward_end([], draft_ran=None), "draft_ran is None, want True or False"),
    (lambda case: case.cache.tick("x"), "step is 'x', want an integer"),
    (lambda case: case.cache.tick(0, now_ns=0.5), "now_ns is 0.5, want an integer"),
    (lambda case: case.cache.attach_log(None), "log is None, want a CommitLog"),
    (lambda case: case.cache.attach_reduction(3), "reduce is 3, want something to call"),
    (lambda case: case.lease.page_ids("x"), "first_page is 'x', want an integer"),
    (lambda case: case.lease.layer_has_landed(None), "layer is None, want an integer"),
    (lambda case: case.transaction.submitted("a", 1), "stream is 'a', want an integer"),
    (lambda case: case.transaction.submitted(0, None), "sequence is None, want an integer"),
    (lambda case: case.transaction.layer_submitted([]), "layer is [], want an integer"),
    (lambda case: case.transaction.abort(3), "reason is 3, want 'aborted' or 'retracted'"),
    (lambda _: cpkv.AckWords("2"), "streams is '2', want an integer"),
    (lambda case: case.words.store(0, "x"), "sequence is 'x', want an integer"),
    (lambda case: case.words.load(None), "stream is None, want an integer"),
    (lambda case: case.words.address(0.0), "stream is 0.0, want an integer"),
    (lambda case: case.log(name=3), "name is 3, want a string"),
    (lambda case: case.log(name="\ud800"), r"name is '\ud800', want a string"),
    (lambda case: case.log(nonce="x"), "nonce is 'x', want an integer"),
    (lambda case: case.log(fingerprint=1.5), "fingerprint is 1.5, want an integer"),
    (lambda case: case.log(ranks="two"), "ranks is 'two', want an integer"),
    (lambda case: case.log(directory=3), "directory is 3, want a path"),
    (lambda case: case.join(rank=None), "rank is None, want an integer"),
    (lambda case: case.join(timeout="x"), "timeout is 'x', want 0 to 1000000000 seconds"),
    (lambda case: case.pages["x"], "index is 'x', want an integer"),
]


@pytest.mark.parametrize(("call", "message"), WRONG_TYPES, ids=[message for _, message in WRONG_TYPES])
def test_a_wrong_type_is_told_with_argument_and_value(case, call, message):
    with pytest.raises(cpkv.InputTypeError) as refused:
        call(case)
    assert str(refused.value).startswith(message)
    assert len(str(refused.value)) < 200


BEYOND = [
    (lambda case: case.cache.evict(0, 2**70), f"count is {2**70}, want 0 to 4294967295"),
    (lambda case: case.cache.allocate(-(2**70)), f"count is {-(2**70)}, want 0 to 4294967295"),
    (lambda case: case.cache.evict(0, 10**5_000), "count is of type int, want 0 to 4294967295"),
    (lambda case: case.cache.match([1], limit=-(2**64)), f"limit is {-(2**64)}, want 0 to {2**63 - 1}"),
    (lambda case: case.cache.lock(case.hit, priority=2**64), f"priority is {2**64}, want {-(2**31)} to {2**31 - 1}"),
    (lambda case: case.transaction.submitted(0, 2**70), f"sequence is {2**70}, want 0 to {2**63 - 1}"),
    (lambda case: case.transaction.submitted(1_024, 1), "stream is 1024, want 0 to 1023"),
    (lambda case: case.words.store(0, 2**70), f"sequence is {2**70}, want 0 to {2**63 - 1}"),
    (lambda case: case.words.store(0, 2**63), f"sequence is {2**63}, want 0 to {2**63 - 1}"),
    (lambda case: case.words.load(2**65), f"stream is {2**65}, want 0 to 1023"),
    (lambda case: case.cache.tick(-1), f"step is -1, want 0 to {2**64 - 1}"),
    (lambda case: case.cache.tick(2**64), f"step is {2**64}, want 0 to {2**64 - 1}"),
    (lambda case: case.cache.tick(2**63), f"the first tick is {2**63}, want 0 to {2**63 - 1}"),
    (lambda case: case.cache.tick(0, now_ns=2**63), f"now_ns is {2**63}, want 0 to {2**63 - 1}"),
    (lambda case: case.log(ranks=-1), "ranks is -1, want 1 to 64"),
    (lambda case: case.log(ranks=2**64), f"ranks is {2**64}, want 1 to 64"),
    (lambda case: case.log(nonce=-1), "nonce is -1, want 0 to 18446744073709551615"),
    (lambda case: case.log(nonce=2**64), f"nonce is {2**64}, want 0 to 18446744073709551615"),
    (lambda case: case.log(fingerprint=-1), "fingerprint is -1, want 0 to 18446744073709551615"),
    (lambda case: case.join(rank=2**40), f"rank is {2**40}, want 0 to 4294967295"),
]


@pytest.mark.parametrize(("call", "message"), BEYOND, ids=[message for _, message in BEYOND])
def test_a_number_beyond_what_fits_is_told_as_it_was_given(case, call, message):
    with pytest.raises(cpkv.InputError) as refused:
        call(case)
    assert str(refused.value).startswith(message)


SETTINGS = [
    ({"key": None}, "key is None, want one of token, pair"),
    ({"policy": 3}, "policy is 3, want one of lru, lfu"),
    ({"copies": "\ud800"}, r"copies is '\ud800', want one of assumed, tracked"),
    ({"page_size": "x"}, "page_size is 'x', want 1 to 4294967295"),
    ({"page_size": 1.0}, "page_size is 1.0, want 1 to 4294967295"),
    ({"device_pages": None}, "device_pages is None, want 1 to 4294967294"),
    ({"device_pages": -(2**80)}, f"device_pages is {-(2**80)}, want 1 to 4294967294"),
    ({"host_slots": 2**80}, f"host_slots is {2**80}, want 1 to 4294967294"),
    ({"clean_pages": "x"}, "clean_pages is 'x', want 0 to 4294967295"),
    ({"write_uses": 2**64}, f"write_uses is {2**64}, want 1 to 4294967295"),
    ({"own_lane": -1}, "own_lane is -1, want 0 or more"),
    ({"own_lane": "all"}, "own_lane is 'all', want 0 or more"),
    ({"draft": 1}, "draft is 1, want True or False"),
    ({"events": "yes"}, "events is 'yes', want True or False"),
    ({"copy_deadline": "x"}, "copy_deadline is 'x', want 1e-9 to 1000000000 seconds"),
    ({"copy_deadline": None}, "copy_deadline is None, want 1e-9 to 1000000000 seconds"),
    ({"copy_deadline": float("inf")}, "copy_deadline is inf, want 1e-9 to 1000000000 seconds"),
    ({"copy_deadline": float("nan")}, "copy_deadline is NaN, want 1e-9 to 1000000000 seconds"),
    ({"copy_deadline": 1e300}, "copy_deadline is 1e300, want 1e-9 to 1000000000 seconds"),
    ({"copy_deadline": 0}, "copy_deadline is 0.0, want 1e-9 to 1000000000 seconds"),
    ({"lanes": 2**64, "key": 3}, f"key is 3, want one of token, pair; lanes is {2**64}, want 1 to 1024"),
]


@pytest.mark.parametrize(("settings", "message"), SETTINGS, ids=[message for _, message in SETTINGS])
def test_settings_are_told_as_they_were_given(settings, message):
    with pytest.raises(cpkv.ConfigError) as refused:
        cpkv.CacheManager(**{"device_pages": 16} | settings)
    told = str(refused.value)
    assert told.startswith(message)
    assert len(told.split("; ")) == len(settings), "each once"


@pytest.mark.parametrize(
    "seconds", [-1, float("inf"), float("nan"), 1e300, 10**400], ids=lambda seconds: str(seconds)[:5]
)
def test_a_time_to_wait_has_an_end(case, seconds):
    with case.log() as log:
        for name in ("warning", "deadline"):
            with pytest.raises(cpkv.InputError, match=f"{name} is .*, want 0 to 1000000000 seconds"):
                log.set_patience(**{name: seconds})
        with pytest.raises(cpkv.InputError, match=r"timeout is .*, want 0 to 1000000000 seconds"):
            log.wait_for_all(seconds)


def test_numbers_of_other_kinds_are_taken(case):
    """What has an `__index__` is an integer."""
    assert case.cache.match([1], limit=np.int64(0)).pages == 0
    assert case.cache.allocate(np.uint8(1)) is not None
    assert case.cache.match([1], limit=10**30).pages == 0, "a limit beyond everything is none"
    assert 2**70 not in case.pages
    with pytest.raises(IndexError, match="of 2 page ids"):
        case.pages[2**70]


class Element:
    """A number that is not to be had."""

    def __init__(self, error):
        self.error = error

    def __index__(self):
        raise self.error


class Elements(list):
    """A list that is not to be had."""

    def __iter__(self):
        raise self[0].error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), RuntimeError("x"), MemoryError()], ids=repr)
def test_what_an_argument_raises_comes_through(case, error):
    element = Element(error)
    cache = case.cache
    calls = [
        lambda: cache.match([1, element]),
        lambda: cache.match((element,)),
        lambda: cache.match(Elements([element])),
        lambda: cache.match([1], limit=element),
        lambda: cache.allocate(lanes=[element]),
        lambda: cache.free([element]),
        lambda: cache.reserve([([element], [], case.lease)]),
        lambda: cache.reserve([([1], Elements([element]), case.lease)]),
        lambda: cache.reserve(Elements([element])),
        lambda: cache.forward_end(Elements([element])),
        lambda: cache.tick(0, [element]),
        lambda: cache.tick(element),
        lambda: case.words.store(0, element),
        lambda: element in case.pages,
        lambda: case.pages[element],
        lambda: case.log(nonce=element),
        lambda: cpkv.CacheManager(device_pages=element),
    ]
    for call in calls:
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error


@pytest.mark.parametrize("error", [TypeError("x"), OverflowError("x")], ids=repr)
def test_what_an_argument_says_of_itself_is_a_refusal(case, error):
    with pytest.raises(cpkv.CpkvError, match=r"token_ids: .*Element object at .* at index 1"):
        case.cache.match([1, Element(error)])
    with pytest.raises(cpkv.InputTypeError, match="token_ids: got ndarray, want a one-dimensional"):
        case.cache.match(np.array([0], dtype="datetime64[s]"))
