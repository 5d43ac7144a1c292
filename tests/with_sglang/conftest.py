"""Engines that the tests share. Starting one takes seconds."""

import importlib
import tempfile
import warnings
from pathlib import Path

import pytest
from engines import Template
from served import Request
from tiny_models import write_models

with warnings.catch_warnings():
    # Once, and before tests look: SGLang warns of what a machine without a GPU does not have.
    warnings.simplefilter("ignore")
    importlib.import_module("sglang.srt.managers.scheduler")

SECONDS = 300
"""For one test, which may be the first to start engines."""

LIKE_OTHERS = {
    "test_sglang_tokens.py": [
        "[llama, pages of 16, 2 ranks]",
        "[mla, pages of 64, 2 ranks]",
        "[llama with drafts, pages of 1]",
        "test_more_than_the_pool_holds_at_once[dsa_nextn",
        "test_a_long_prompt_is_kept_chunk_by_chunk[dsa_nextn",
        "test_a_request_finds_what_a_running_one_has_computed[dsa_nextn",
    ],
    "test_sglang_aborts.py": ["[mla, pages of 16, 2 ranks]", "[llama, pages of 1]"],
    "test_sglang_retraction.py": [
        "[device-",
        "[host-llama, pages of 1]",
        "[host-llama with drafts, pages of 1]",
        "test_every_third_step_in_an_engine_that_spawns",
    ],
    "test_sglang_requests.py": ["hits_are_those_of_sglang[1-"],
    "test_sglang_restores.py": [
        "[llama, pages of 16, 2 ranks",
        "[mla, pages of 64, 2 ranks",
        "[llama with drafts, pages of 16",
        "test_copies_begin_before_the_last_layer_ends[dsa_nextn",
    ],
    "test_sglang_host_tier.py": ["[16-"],
    "test_sglang_pauses.py": ["llama, pages of 16]"],
    "test_sglang_ranks.py": ["given_up_by_both[backups]"],
}
"""By file, parts of the names of tests that take long and are like others: they are left to `make test-sglang-all`."""


def pytest_collection_modifyitems(items):
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.sglang)
            item.add_marker(pytest.mark.timeout(SECONDS))
            if any(part in item.name for part in LIKE_OTHERS.get(item.path.name, ())):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The folder of the models."""
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="session")
def sockets():
    """A folder for the sockets of engines, which SGLang leaves behind. Their paths have to be short."""
    with tempfile.TemporaryDirectory(prefix="cpkv-") as folder:
        yield folder


@pytest.fixture(scope="session")
def template(tmp_path_factory, sockets):
    """What engines are forked from."""
    template = Template(tmp_path_factory.mktemp("engines"), TMPDIR=sockets)
    yield template
    template.close()


@pytest.fixture(scope="session")
def uncached_answers(models, template):
    """Tell what an engine without a cache answers to the requests of a setup. Each is computed once."""
    engines, known = {}, {}

    def answers(setup, requests):
        model = setup.model, setup.drafts, setup.ranks
        if model not in engines:
            engines[model] = template.start(setup.uncached(models))
        asked = [Request(request.prompt, request.new_tokens) for request in requests]
        unknown = [request for request in dict.fromkeys(asked) if (model, request) not in known]
        if unknown:
            known.update(zip(((model, request) for request in unknown), engines[model].serve(*unknown), strict=True))
        return [known[model, request] for request in asked]

    yield answers
    for engine in engines.values():
        engine.close()


@pytest.fixture(scope="session")
def same_answers(uncached_answers):
    """Compare what an engine has answered with what one without a cache does."""

    def compare(setup, requests, answers):
        for answer, uncached in zip(answers, uncached_answers(setup, requests), strict=True):
            assert answer.tokens == uncached.tokens
            assert answer.accept_length == uncached.accept_length

    return compare


@pytest.fixture
def cached_engine(models, template):
    """Start an engine with cpkv for one test. Names in capitals are environment variables, others are options."""
    engines = []

    def start(setup, **changes):
        variables = {name: value for name, value in changes.items() if name.isupper()}
        options = {name: value for name, value in changes.items() if name not in variables}
        engines.append(template.start(setup.cached(models) | options, **variables))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()
