"""SGLang's own host cache works here, so that cpkv can be compared with it."""

import pytest
from prompts import Prompts
from served import Request
from setups import Setup

LAYOUTS = ["layer_first", "page_first_direct"]


@pytest.fixture
def host_engine(cached_engine):
    def start(setup, layout, **variables):
        return cached_engine(
            setup,
            radix_cache_backend=None,
            enable_hierarchical_cache=True,
            hicache_io_backend="direct",
            hicache_mem_layout=layout,
            hicache_ratio=4.0,
            **variables,
        )

    return start


def serve_until_the_first_is_evicted(engine):
    prompts = Prompts(61)
    requests = [Request(prompts.tokens(400)) for _ in range(3)]
    requests.append(requests[0])
    answers = []
    for request in requests:
        answers += engine.serve(request)
        engine.settle()
    assert [answer.host_hit for answer in answers] == [0, 0, 0, 384]
    return requests, answers


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["llama", "mla", "dsa"])
def test_what_the_device_has_evicted_is_found_on_the_host(model, layout, host_engine, same_answers):
    setup = Setup(model, 64, pool_tokens=640)
    same_answers(setup, *serve_until_the_first_is_evicted(host_engine(setup, layout)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", ["llama", "mla", "dsa"])
def test_copies_that_are_not_made_give_wrong_tokens(model, layout, host_engine):
    engine = host_engine(Setup(model, 64, pool_tokens=640), layout, CPKV_TEST_FAULT="forget copies")
    _, (right, _, _, wrong) = serve_until_the_first_is_evicted(engine)
    assert wrong.tokens != right.tokens
