"""Requests of different keys and salts find nothing of each other."""

import itertools

import pytest
from prefixes import Prefixes
from prompts import Prompts
from served import Request
from setups import HOST_TIER, Setup
from sglang.version import __version__
from tiny_models import write_adapter

SETUPS = [Setup("llama", 1), Setup("mla", 64), Setup("llama", 64, drafts=True)]
HAS_SALTS = __version__ != "0.5.17"
KEYS = (None, "an adapter") if HAS_SALTS else (None, *"abcde")
SPACES = list(itertools.product(KEYS, (None, "a salt", "salt") if HAS_SALTS else (None,)))


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_a_prompt_is_found_in_its_own_space_only(setup, cached_engine, same_answers):
    engine = cached_engine(setup, max_total_tokens=4096)
    prompts, prefixes = Prompts(11), Prefixes(setup.page_size, drafts=setup.drafts)
    prompt = prompts.tokens(300)  # longer than a chunk, so that it is found while it is computed
    for round_, (key, salt) in itertools.product(range(2), SPACES):
        request = Request(prompt, extra_key=key, cache_salt=salt)
        [answer] = engine.serve(request)
        same_answers(setup, [request], [answer])
        assert answer.device_hit in prefixes.hits(request)
        assert bool(answer.device_hit) == bool(round_)
        prefixes.add(request, answer.tokens)
    assert engine.settle()["namespaces"] == len(SPACES)


@pytest.mark.parametrize("setup", SETUPS, ids=str)
def test_spaces_are_served_together(setup, cached_engine, same_answers):
    engine = cached_engine(setup)
    prompt = Prompts(12).tokens(200)
    requests = [Request(prompt, extra_key=key, cache_salt=salt) for key, salt in SPACES]
    for _ in range(2):
        same_answers(setup, requests, engine.serve(*requests))
    assert engine.settle()["device_evicted_pages"] > 0


def test_adapters_find_what_they_have_computed_themselves(models, template, cached_engine, tmp_path):
    """Real ones (LoRA), with a host tier: what each has said comes back to it."""
    names = ["one", "two"]
    for seed, name in enumerate(names):
        write_adapter(tmp_path / name, seed)
    options = {"lora_paths": [f"{name}={tmp_path / name}" for name in names], "lora_backend": "torch_native"}
    setup = Setup("llama", 16, pool_tokens=640)
    prompt = Prompts(13).tokens(300)
    requests = [Request(prompt, adapter=name) for name in (None, *names)]
    uncached = template.start(setup.uncached(models) | options)
    wanted = [answer.tokens for answer in uncached.serve(*requests)]
    uncached.close()
    assert len(set(wanted)) == len(wanted), "adapters change the answer"
    engine = cached_engine(setup, **HOST_TIER, **options)
    for round_ in range(2):
        answers = []
        for request in requests:
            answers += engine.serve(request)
            engine.settle()
        assert [answer.tokens for answer in answers] == wanted
        assert [answer.hit for answer in answers] == [288 * round_] * len(requests)
    assert any(answer.host_hit for answer in answers)
    assert engine.settle()["namespaces"] == len(requests)
