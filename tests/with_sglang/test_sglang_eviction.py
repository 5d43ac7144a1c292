"""Which pages go when there is no room."""

import pytest
from prompts import Prompts
from served import Request
from setups import Setup

SETUPS = [Setup("llama", 16, pool_tokens=512), Setup("llama", 16, drafts=True, pool_tokens=512)]


@pytest.mark.parametrize("setup", SETUPS, ids=str)
@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_what_was_found_last_or_most_often_stays(setup, policy, cached_engine):
    # Of 32 pages two prompts have 9 or 10 each, and the third one takes so many that one of the two has to go.
    engine = cached_engine(setup, radix_eviction_policy=policy)
    prompts = Prompts(81)
    first, second, third = (Request(prompts.tokens(tokens), new_tokens=1) for tokens in (160, 160, 336))
    found = Request(first.prompt[:150], new_tokens=1)  # and nothing is added
    served = {
        "lru": [(first, 0), (second, 0), (found, 144)],
        "lfu": [(first, 0), (found, 144), (found, 144), (second, 0)],
    }
    for request, hit in *served[policy], (third, 0), (first, 144):
        [answer] = engine.serve(request)
        assert answer.device_hit == hit
    [answer] = engine.serve(second)
    assert answer.device_hit < 144
