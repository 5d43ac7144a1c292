"""The prefix cache under random requests, beside SGLang's own: same pools, same calls, everything read is compared."""

import random
from array import array

import pytest
import torch
from scheduling import Scheduler, context
from sglang.srt.managers.scheduler import Scheduler as RealScheduler
from sglang.srt.mem_cache.registry import default_radix_cache_factory
from sglang.srt.runtime_context import get_context

from cpkv.sglang import pages
from cpkv.sglang.cache import CHECK_INTEGRITY
from cpkv.sglang.pages import Pages
from cpkv.sglang.plugin import make_cache

pytestmark = pytest.mark.timeout(120)

VOCABULARY = 30
MOST_TOKENS = 160
MOST_RUNNING = 4


@pytest.fixture(autouse=True)
def _published(monkeypatch):
    monkeypatch.setenv(CHECK_INTEGRITY, "1")
    with get_context().override_server_args():
        yield


def own(made_of):
    return make_cache(made_of)


def own_of_a_gpu(made_of):
    """Asks before each forward for its pages, as where it would have to wait for them afterwards."""
    cache = make_cache(made_of)
    cache._pages.are_at_hand = False
    return cache


def theirs(made_of):
    return default_radix_cache_factory(made_of)


class Work:
    """Conversations that share beginnings, several requests at once, chunks, decode, aborts, retracts and flushes."""

    def __init__(self, scheduler, seed):
        self.scheduler = scheduler
        self.random = random.Random(seed)
        self.histories = [self.some_tokens(60) for _ in range(8)]
        self.waiting = []
        self.found = []
        self.number = 0
        self.steps = 0

    def some_tokens(self, most):
        return array("q", [self.random.randrange(VOCABULARY) for _ in range(self.random.randrange(1, most))])

    def arrive(self):
        place = self.random.randrange(len(self.histories))
        if self.random.random() < 0.1:
            self.histories[place] = self.random.choice(self.histories)[: self.random.randrange(1, 50)]
        tokens = (self.histories[place] + self.some_tokens(30))[:MOST_TOKENS]
        extra_key, salt = self.random.choice([None, None, "adapter"]), self.random.choice([None, None, None, "salt"])
        self.waiting.append(self.scheduler.new_request(self.number, tokens, extra_key=extra_key, cache_salt=salt))
        self.number += 1

    def step(self):
        scheduler = self.scheduler
        self.steps += 1
        scheduler.tick()
        if not self.waiting:
            self.arrive()
        if len(scheduler.running) < MOST_RUNNING and self.random.random() < 0.4:
            request = self.waiting.pop()
            scheduler.start(request)
            self.found.append(request.found)
        if scheduler.running:
            self.move_on(self.random.choice(scheduler.running))
        elif self.random.random() < 0.02:
            scheduler.flush()

    def move_on(self, request):
        """A chunk of its prompt, a token, or its end."""
        scheduler, length, done = self.scheduler, len(request.tokens), request.kv.kv_allocated_len
        what = self.random.random()
        if done and self.gives_way(request, what < 0.06):
            return
        if done < max(len(request.origin_input_ids), length - 1):
            scheduler.extend(request, min(length, done + self.random.randrange(1, 50)))
            # Also while its copies are under way.
            if not self.gives_way(request, what < 0.15):
                scheduler.keep(request)
        elif what < 0.8 and length < MOST_TOKENS + 40:
            if not request.output_ids:
                request.output_ids.append(self.random.randrange(VOCABULARY))
            scheduler.decode(request, self.random.randrange(VOCABULARY))
        else:
            self.histories[self.random.randrange(len(self.histories))] = request.tokens
            scheduler.finish(request)

    def gives_way(self, request, does):
        """Aborted, or retracted to start anew."""
        if does and self.random.random() < 0.5:
            self.scheduler.abort(request)
        elif does:
            self.scheduler.retract(request)
            self.waiting.append(request)
        return does

    def finish(self, *, steps=None, requests=None):
        """Go on for so many steps, or until so many requests have run; return what each has found."""
        scheduler = self.scheduler
        while self.steps < steps if steps else len(self.found) < requests:
            self.step()
        for request in list(scheduler.running):
            if request.kv.kv_allocated_len < len(request.tokens):
                scheduler.extend(request, len(request.tokens))
            scheduler.finish(request)
        scheduler.flush()
        return self.found


def work(make, *, seed, steps=None, requests=None, **settings):
    made_of = context(**settings)
    return Work(Scheduler(make(made_of), made_of.params), seed).finish(steps=steps, requests=requests)


@pytest.mark.parametrize("is_eagle", [False, True])
@pytest.mark.parametrize("page_size", [1, 4, 16])
def test_every_hit_is_what_was_kept_and_has_not_been_given_up(page_size, is_eagle):
    """With room for little more than what runs. SGLang's own cache passes as well, which shows what is asked for."""
    settings = {"page_size": page_size, "is_eagle": is_eagle, "pages": -(-1_200 // page_size), "seed": 1}
    found = [sum(work(make, steps=1_000, **settings)) for make in (own, theirs)]
    assert min(found) > 1_000, "hits"


def test_two_thousand_requests():
    """Hits differ from SGLang's where one of the two has evicted what the other one has not, and nowhere else.

    Each is what its cache has kept and not given up (`Scheduler.expected`); so a difference is one of what was evicted.
    """
    settings = {"page_size": 16, "pages": 100, "seed": 4}
    found = [work(make, requests=2_000, **settings) for make in (own, theirs)]
    assert [len(one) for one in found] == [2_000, 2_000]
    assert sum(found[0]) >= 0.95 * sum(found[1])


@pytest.mark.parametrize("is_eagle", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
def test_with_room_for_everything_hits_are_those_of_sglang(page_size, is_eagle):
    settings = {"page_size": page_size, "is_eagle": is_eagle, "pages": -(-10_000 // page_size), "seed": 2}
    found = work(theirs, steps=600, **settings)
    assert work(own, steps=600, **settings) == found
    assert work(own_of_a_gpu, steps=600, **settings) == found


@pytest.mark.parametrize("policy", ["lru", "lfu", "slru", "priority"])
def test_every_policy_of_sglang(policy):
    assert sum(work(own, page_size=4, pages=300, policy=policy, seed=3, steps=800)) > 0


@pytest.mark.parametrize("page_size", [1, 16])
def test_a_chunk_is_kept_without_asking_for_its_pages_again(page_size, monkeypatch):
    """On a GPU that would be to wait for the forward after it."""
    made_of = context(pages=256 // page_size, page_size=page_size)
    scheduler = Scheduler(own_of_a_gpu(made_of), made_of.params)
    request = scheduler.new_request(0, array("q", range(100)))
    monkeypatch.setattr(Pages, "of_row", None)
    scheduler.start(request)
    for end in (40, 80, 100):
        scheduler.extend(request, end)
        scheduler.keep(request)
    monkeypatch.undo()
    scheduler.decode(request, 1)
    scheduler.finish(request)
    again = scheduler.new_request(1, array("q", range(100)))
    scheduler.start(again)
    assert again.found == 99 // page_size * page_size
    scheduler.abort(again)


def test_where_pages_are_at_hand_forwards_are_let_alone(monkeypatch):
    run_batch = RealScheduler.run_batch
    made_of = context(pages=256, page_size=1)
    assert not own(made_of).follows_forwards
    assert RealScheduler.run_batch is run_batch
    monkeypatch.setattr(Pages, "are_at_hand", property(lambda _: False, lambda *_: None), raising=False)
    monkeypatch.setattr(RealScheduler, "run_batch", run_batch)
    assert own(made_of).follows_forwards
    assert RealScheduler.run_batch is not run_batch


def test_the_pages_of_a_batch_are_read_once(monkeypatch):
    """However many requests of it ask: else a batch of many short prompts would take the square of their number."""
    read = []
    pages_at = pages._pages_at
    monkeypatch.setattr(pages, "_pages_at", lambda *given: read.append(given) or pages_at(*given))
    table = torch.arange(40, dtype=torch.int32).reshape(4, 10)
    asked = Pages(2, torch.device("cpu")).of_rows(table, [(row, row, 4) for row in range(4)])
    told = [pages.ToldPages(asked, place, 0).get().tolist() for place in range(4)]
    assert told == [[0, 1, 2, 3], [6, 7, 8], [12, 13], [18]]
    assert len(read) == 1


def test_pages_that_were_asked_for_from_elsewhere_on_are_not_taken():
    made_of = context(pages=64, page_size=4)
    scheduler = Scheduler(own_of_a_gpu(made_of), made_of.params)
    request = scheduler.new_request(0, array("q", range(100)))
    scheduler.start(request)
    scheduler.extend(request, 40)
    asked_before = request.last_node.told
    scheduler.keep(request)
    scheduler.extend(request, 80)
    request.last_node.told = asked_before
    scheduler.keep(request)
    scheduler.extend(request, 100)
    scheduler.finish(request)
