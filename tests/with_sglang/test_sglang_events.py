"""What SGLang publishes for routers lets them know what is cached."""

import json
from itertools import pairwise

import msgspec
import pytest
import zmq
from prompts import Prompts
from served import Request
from setups import Setup

SECONDS = 20
SETUPS = [Setup("llama", 16), Setup("llama", 16, drafts=True)]


class Router:
    """Follows what an engine publishes."""

    def __init__(self, endpoint):
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.subscribe(b"")
        self._socket.connect(endpoint)
        self.pages = {}
        """What is cached: all tokens up to the end of a page, by its name."""
        self.parents = set()
        """What is in front of first pages."""
        self.token_counts = set()
        """How many tokens were told of and how many there are in the pages."""

    def close(self):
        self._context.destroy(linger=0)

    def hears(self):
        """Whether something has been published that is not followed yet."""
        return bool(self._socket.poll(100))

    def follow_until_cleared(self):
        while self.follow() != "AllBlocksCleared":
            pass

    def follow_until_there_are(self, pages):
        while len(self.pages) != pages:
            self.follow()

    def follow(self):
        """Follow what is published next and return the last kind of event."""
        assert self._socket.poll(SECONDS * 1000), f"{len(self.pages)} pages and nothing more"
        _, events, _ = msgspec.msgpack.decode(self._socket.recv_multipart()[-1])
        for event in events:
            match event["type"]:
                case "BlockStored":
                    self._store(event)
                case "BlockRemoved":
                    for page in event["block_hashes"]:
                        del self.pages[page]
                case "AllBlocksCleared":
                    self.pages.clear()
        return event["type"]

    def _store(self, event):
        assert event["medium"] == "GPU"
        size, tokens, parent = event["block_size"], event["token_ids"], event["parent_block_hash"]
        self.token_counts.add((len(tokens), size * len(event["block_hashes"])))
        if parent not in self.pages:
            self.parents.add(parent)
        for place, page in enumerate(event["block_hashes"]):
            assert page not in self.pages
            assert -(2**63) <= page < 2**63
            in_front = self.pages.get(parent, ())
            self.pages[page] = (*in_front, *tokens[place * size : (place + 1) * size])
            parent = page


@pytest.fixture(params=SETUPS, ids=str)
def setup(request):
    return request.param


@pytest.fixture
def engine(setup, cached_engine, sockets):
    endpoint = f"ipc://{sockets}/events"
    return cached_engine(setup, kv_events_config=json.dumps({"publisher": "zmq", "endpoint": endpoint}))


@pytest.fixture
def router(engine, sockets):
    router = Router(f"ipc://{sockets}/events")
    try:
        prompts = Prompts(71)
        while not router.hears():
            engine.serve(Request(prompts.tokens(20), new_tokens=1))
        engine.flush()
        router.follow_until_cleared()
        yield router
    finally:
        router.close()


def test_a_router_knows_what_is_cached(engine, router):
    prompts = Prompts(72)
    system = prompts.tokens(130)
    requests = [Request(system + prompts.tokens(length)) for length in range(70, 230, 20)]
    for _ in range(2):
        engine.serve(*requests)
    state = engine.settle()
    assert state["device_evicted_pages"] > 0
    router.follow_until_there_are(state["device_cached_pages"])
    engine.flush()
    router.follow_until_cleared()
    assert not router.pages


@pytest.mark.parametrize("setup", SETUPS[:1], ids=str)
def test_a_prompt_finds_what_a_router_was_told_of(engine, router):
    prompts = Prompts(73)
    engine.serve(Request(prompts.tokens(200)))
    asked = Request(prompts.tokens(200))
    engine.serve(asked)
    router.follow_until_there_are(engine.settle()["device_cached_pages"])
    told = max((tokens for tokens in router.pages.values() if asked.prompt[: len(tokens)] == tokens), key=len)
    [answer] = engine.serve(asked)
    assert answer.device_hit == len(told) == 192


def test_nothing_is_in_front_of_a_first_page(engine, router):
    engine.serve(Request(Prompts(74).tokens(100)))
    router.follow_until_there_are(engine.settle()["device_cached_pages"])
    assert router.parents == {None}


@pytest.mark.parametrize("setup", SETUPS[1:], ids=str)
def test_a_router_is_told_of_pairs(engine, router):
    asked = Request(Prompts(75).tokens(100))
    [answer] = engine.serve(asked)
    router.follow_until_there_are(engine.settle()["device_cached_pages"])
    assert all(told == there for told, there in router.token_counts)
    told = max(router.pages.values(), key=len)
    assert len(told) >= 96
    assert [tuple(pair) for pair in told] == list(pairwise(asked.prompt + answer.tokens))[: len(told)]
