"""The settings of a cache: sources, precedence, and everything that can be wrong with them."""

import inspect
import json
import os
import re
import subprocess
import sys
import typing
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cpkv
from cpkv.config.checks import KINDS
from cpkv.config.layers import OTHER_PREFIXES, OTHER_VARIABLES

ROOT = Path(__file__).parents[2]
OWN = {"engine", "log_warning_s", "log_deadline_s"}


def refusals(call, *arguments, **keywords):
    """All conflicts that a call is refused for."""
    with pytest.raises(cpkv.ConfigError) as refused:
        call(*arguments, **keywords)
    assert isinstance(refused.value, ValueError)
    return str(refused.value).split("; ")


# --- One value ---


def test_the_settings_and_their_defaults_are_those_of_the_cache_and_the_log():
    config = cpkv.CacheConfig().as_dict()
    manager = inspect.signature(cpkv.CacheManager).parameters
    keywords = {name.removesuffix("_s"): value for name, value in config.items() if name not in OWN}
    assert keywords.keys() == manager.keys() - {"own_lane"}
    assert keywords.pop("device_pages") is None
    assert keywords == {name: manager[name].default for name in keywords}
    patience = inspect.signature(cpkv.CommitLog.set_patience).parameters
    assert (config["log_warning_s"], config["log_deadline_s"]) == (
        patience["warning"].default,
        patience["deadline"].default,
    )
    assert config["engine"] == "auto"


def test_the_kinds_of_settings_are_their_types():
    hints = typing.get_type_hints(cpkv.CacheConfig)
    assert list(hints) == list(KINDS) == [field.name for field in fields(cpkv.CacheConfig)]
    for name, kind in KINDS.items():
        wanted = {
            "Whole": int | None if getattr(kind, "or_none", False) else int,
            "Seconds": float,
            "Flag": bool,
            "Choice": str if name == "policy" else typing.Literal[getattr(kind, "words", ())],
        }
        assert hints[name] == wanted[type(kind).__name__], name


def test_a_config_is_a_value():
    config = cpkv.CacheConfig(device_pages=np.int64(8), copy_deadline_s=3)
    assert (type(config.device_pages), type(config.copy_deadline_s)) == (int, float)
    assert config == cpkv.CacheConfig(device_pages=8, copy_deadline_s=3.0)
    assert len({config, cpkv.CacheConfig(device_pages=8, copy_deadline_s=3.0)}) == 1
    with pytest.raises(FrozenInstanceError):
        config.lanes = 2
    with pytest.raises(TypeError):
        cpkv.CacheConfig(8)
    other = config.replace(policy="lfu", lanes=2)
    assert (other.policy, other.lanes, other.device_pages, config.policy) == ("lfu", 2, 8, "lru")


def test_a_config_makes_the_cache_that_its_settings_make():
    keywords = {
        "device_pages": 64,
        "page_size": 16,
        "key": "pair",
        "lanes": 2,
        "device_pool": "external",
        "host_slots": 128,
        "segment_pages": 4,
        "policy": "slru",
        "copies": "tracked",
        "draft": True,
        "events": True,
        "write": "selective",
        "write_uses": 3,
        "clean_pages": 1,
    }
    assert keywords.keys() | OWN | {"copy_deadline_s"} == KINDS.keys()
    config = cpkv.CacheConfig(**keywords, copy_deadline_s=7.0, engine="manual")
    for name, value in keywords.items():
        assert value != getattr(cpkv.CacheConfig(), name), f"{name} is told apart from its default"
    cache = config.create(own_lane=1)
    assert cache.fingerprint == cpkv.CacheManager(**keywords, copy_deadline=7.0).fingerprint
    assert cache.fingerprint != cpkv.CacheManager(**keywords).fingerprint
    with pytest.raises(cpkv.ConfigError, match="own_lane is 2, want 0 to 1"):
        config.create(own_lane=2)
    with pytest.raises(cpkv.ConfigError, match="device_pages is None, want the number"):
        cpkv.CacheConfig().create()


def test_the_log_waits_as_the_settings_say(tmp_path):
    config = cpkv.CacheConfig(device_pages=1, host_slots=32, copies="tracked", log_warning_s=0.01, log_deadline_s=0.02)
    cache = config.create()
    log = cpkv.CommitLog.create("config", 1, ranks=2, fingerprint=cache.fingerprint, directory=str(tmp_path))
    with log, cpkv.CommitLog.join("config", 1, 1, ranks=2, fingerprint=cache.fingerprint, directory=str(tmp_path)):
        config.attach_log(cache, log)
        cache.insert([1] * 64, cache.allocate(1))
        for step in range(64):
            cache.tick(step)
        with pytest.raises(cpkv.RankError, match=r"rank 1 is silent for 2\d"):
            cache.tick(64)


# --- What is wrong ---


def test_every_conflict_is_told_with_the_value_seen_and_the_value_wanted():
    assert refusals(
        cpkv.CacheConfig,
        device_pages=True,
        page_size="64",
        lanes=4.0,
        host_slots=2**70,
        policy="random",
        copies=None,
        draft=1,
        copy_deadline_s=float("nan"),
        events="yes",
        segment_pages=0,
        clean_pages=-1,
        engine="gpu",
        log_warning_s=9,
        log_deadline_s=3,
    ) == [
        "device_pages is True, want a whole number or none",
        "page_size is '64', want a whole number",
        "lanes is 4.0, want a whole number",
        f"host_slots is {2**70}, want a whole number or none of 64 bits",
        "policy is 'random', want one of lru, lfu, slru, fifo, mru, filo, priority",
        "copies is None, want one of assumed, tracked",
        "draft is 1, want true or false",
        "copy_deadline_s is nan, want more than 0 and at most 1000000000 seconds",
        "events is 'yes', want true or false",
        "engine is 'gpu', want one of auto, cuda, cpu, manual",
        "segment_pages is 0, want 1 to 4294967294",
        "clean_pages is -1, want 0 to 4294967295",
        "log_warning_s is 9.0, want at most log_deadline_s, which is 3.0",
    ]


@pytest.mark.parametrize(
    ("values", "conflict"),
    [
        ({"lanes": 3, "device_pages": 16}, "device_pages is 16, want a multiple of lanes, which is 3"),
        ({"lanes": 3}, None),
        ({"lanes": 0}, "lanes is 0, want 1 to 1024"),
        ({"lanes": 2, "host_slots": 33}, "host_slots is 33, want a multiple of lanes, which is 2"),
        ({"host_slots": 16}, "segment_pages is 32, want at most 16, the host_slots of a lane"),
        ({"write": "back"}, "copies is 'assumed', want 'tracked' with write 'back'"),
        ({"write": "back", "copies": "tracked"}, "clean_pages is 0, want 1 or more with write 'back'"),
        ({"write": "back", "copies": "tracked", "clean_pages": None}, "clean_pages is None, want a whole number"),
        ({"write_uses": 0, "write": "selective", "copies": "tracked"}, "write_uses is 0, want 1 or more"),
        ({"copy_deadline_s": 0}, "copy_deadline_s is 0, want more than 0"),
        ({"copy_deadline_s": float("inf")}, "copy_deadline_s is inf, want more than 0"),
        ({"copy_deadline_s": True}, "copy_deadline_s is True, want a number of seconds"),
        ({"log_warning_s": 10**400, "key": []}, "log_warning_s is 1000"),
        ({"page_size": np.True_}, "want a whole number"),
    ],
)
def test_settings_that_cannot_be(values, conflict):
    if conflict is None:
        cpkv.CacheConfig(**values)
        return
    seen = refusals(cpkv.CacheConfig, **values)
    assert any(conflict in one for one in seen), seen
    if "write" in values and "clean_pages" in values:
        assert len(seen) == 1, "nothing is told of a default that stands in for what is wrong"


TEXTS = st.text(st.characters(exclude_characters=";"), max_size=3)  # the test tells conflicts apart by it
ANY = st.one_of(st.integers(-2, 70), st.integers(), st.booleans(), st.none(), st.floats(), TEXTS)


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.one_of(st.sampled_from(kind.words), ANY) if hasattr(kind, "words") else ANY
            for name, kind in KINDS.items()
        },
    )
)
def test_a_config_is_refused_or_makes_a_cache(values):
    try:
        config = cpkv.CacheConfig(**values)
    except cpkv.ConfigError as error:
        for conflict in str(error).split("; "):
            assert ", want " in conflict, conflict
    else:
        config.replace(device_pages=config.device_pages or config.lanes).create()
        assert cpkv.CacheConfig.from_json(config.to_json()) == config


# --- JSON ---


def test_json_goes_there_and_back(tmp_path):
    config = cpkv.CacheConfig(device_pages=100, key="pair", host_slots=None, events=True, copy_deadline_s=2.5)
    assert cpkv.CacheConfig.from_json(config.to_json()) == config
    file = tmp_path / "cache.json"
    file.write_text(config.to_json(), encoding="utf-8")
    assert cpkv.CacheConfig.from_json(file) == config
    assert json.loads(config.to_json())["host_slots"] is None
    assert cpkv.CacheConfig.from_json("{}") == cpkv.CacheConfig()


def test_what_is_wrong_in_json_is_told_with_its_key(tmp_path):
    lanes, pages = (f"{name} from key '{name}' of the JSON text" for name in ("lanes", "device_pages"))
    text = '{"lanes": 3, "device_pages": 16, "policyy": 1, "draft": 0, "key": "pair", "key": "token"}'
    assert refusals(cpkv.CacheConfig.from_json, text) == [
        "key 'policyy' of the JSON text is 1 and names no setting, want policy",
        "key 'key' of the JSON text is there twice, want it once",
        "draft is 0, want true or false (draft from key 'draft' of the JSON text)",
        f"device_pages is 16, want a multiple of lanes, which is 3 ({pages}, {lanes})",
    ]
    file = tmp_path / "cache.json"
    file.write_text('{"page_size": NaN}', encoding="utf-8")
    (conflict,) = refusals(cpkv.CacheConfig.from_json, file)
    assert conflict == f"page_size is nan, want a whole number (page_size from key 'page_size' of {file})"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", r"the JSON text is \[1\], want an object of settings"),
        ("null", "the JSON text is None, want an object of settings"),
        ('{"lanes": 1,}', "the JSON text is no JSON .*line 1 column 13.*, want an object of settings$"),
        ("cache.json", r"is no JSON .*; a file is given as a pathlib\.Path$"),
        ("[" * 100_000, "the JSON text is no JSON"),
        ('{"lanes": ' + "9" * 5_000 + "}", "the JSON text is no JSON"),
    ],
)
def test_what_is_no_json_object_is_refused(text, message):
    with pytest.raises(cpkv.ConfigError, match=message):
        cpkv.CacheConfig.from_json(text)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(cpkv.ConfigError, match=r"missing\.json cannot be read .*No such file"):
        cpkv.CacheConfig.from_json(tmp_path / "missing.json")
    file = tmp_path / "binary.json"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(cpkv.ConfigError, match=r"binary\.json cannot be read"):
        cpkv.CacheConfig.from_json(file)


# --- Environment ---


def test_every_setting_has_a_variable():
    config = cpkv.CacheConfig(
        device_pages=64, lanes=2, host_slots=128, segment_pages=4, copies="tracked", write="back", clean_pages=3,
        draft=True, copy_deadline_s=1.5, engine="cpu", policy="filo",
    )  # fmt: skip
    environ = {f"CPKV_{name.upper()}": str(value) for name, value in config.as_dict().items()}
    assert cpkv.CacheConfig.from_environment(environ) == config
    assert environ["CPKV_COPY_DEADLINE_S"] == "1.5"
    assert cpkv.CacheConfig.from_environment({}, base=config) == config
    assert cpkv.CacheConfig.from_environment({"CPKV_HOST_SLOTS": "none"}, base=config).host_slots is None


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("On", True), ("FALSE", False), ("no", False)]
)
def test_flags_in_the_environment(text, value):
    assert cpkv.CacheConfig.from_environment({"CPKV_DRAFT": text}).draft is value


def test_the_environment_is_that_of_the_process():
    code = "import cpkv; print(cpkv.CacheConfig.from_environment().policy, cpkv.CacheConfig.load(policy='mru').lanes)"
    environ = os.environ | {"CPKV_POLICY": "lfu", "CPKV_LANES": "4"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environ, text=True) == "lfu 4\n"


def test_what_is_wrong_in_the_environment_is_told_with_its_variable():
    environ = {
        "CPKV_POLIYC": "lru",
        "CPKV_PAGE_SIZE": "many",
        "CPKV_LANES": "0",
        "CPKV_DRAFT": "maybe",
        "CPKV_KEY": "",
        "CPKV_COPY_DEADLINE_S": "soon",
        "CPKV_LOG_WARNING_S": "nan",
        "CPKV_OWN_LANE": "3",
        "PATH": "/bin",
        "CPKV_TRACES": "/traces",
        "CPKV_DEBUG_DRAFT_SHARED_KV": "1",
    }
    seen = refusals(cpkv.CacheConfig.from_environment, environ, base=cpkv.CacheConfig(device_pages=8))
    assert seen[:-1] == [
        "CPKV_POLIYC is 'lru' and names no setting, want CPKV_POLICY",
        seen[1],
        "page_size is 'many', want a whole number (page_size from CPKV_PAGE_SIZE)",
        "draft is 'maybe', want true or false (draft from CPKV_DRAFT)",
        "key is '', want one of token, pair (key from CPKV_KEY)",
        "copy_deadline_s is 'soon', want a number of seconds (copy_deadline_s from CPKV_COPY_DEADLINE_S)",
        "log_warning_s is nan, want more than 0 and at most 1000000000 seconds (log_warning_s from CPKV_LOG_WARNING_S)",
    ]
    assert seen[1].startswith("CPKV_OWN_LANE is '3' and names no setting, want ")
    assert seen[-1] == "lanes is 0, want 1 to 1024 (lanes from CPKV_LANES)"


def test_no_variable_of_this_repository_is_taken_for_a_setting_that_does_not_exist():
    folders = [ROOT / name for name in ("python", "rust", "tests", "benchmarks", "tools", "docs", ".ci")]
    files = [file for folder in folders for file in folder.rglob("*") if file.suffix in {".py", ".rs", ".md", ""}]
    files = [file for file in (*files, ROOT / "Makefile", ROOT / "README.md") if file.is_file()]
    texts = [file.read_text(encoding="utf-8", errors="ignore") for file in files if file != Path(__file__)]
    named = {name for text in texts for name in re.findall(r"\bCPKV_[A-Z_]*[A-Z]\b", text)}
    assert {"CPKV_TRACES", "CPKV_PROVE_STEPS", "CPKV_TEST_LOG_RANK"} <= named
    settings_ = {f"CPKV_{name.upper()}" for name in KINDS}
    unknown = {name for name in named - settings_ - OTHER_VARIABLES if not name.startswith(OTHER_PREFIXES)}
    assert unknown == set()


def test_the_documented_settings_are_the_settings():
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `(\w+)` \| (.*) \| `?([\w.]+)`? \|$", text, re.MULTILINE)
    assert [name for name, _, _ in table] == list(KINDS)
    for name, values, default in table:
        assert str(getattr(cpkv.CacheConfig(), name)).lower() == default, name
        assert tuple(re.findall(r"`(\w+)`", values)) == getattr(KINDS[name], "words", ()), name


# --- Precedence ---


def test_code_goes_before_the_environment_before_json_before_the_defaults(tmp_path):
    file = tmp_path / "cache.json"
    file.write_text('{"policy": "lfu", "lanes": 2, "page_size": 16, "write": "back", "copies": "tracked"}')
    environ = {"CPKV_POLICY": "mru", "CPKV_LANES": "4", "CPKV_CLEAN_PAGES": "5"}
    config = cpkv.CacheConfig.load(file, environ=environ, policy="fifo")
    seen = (config.policy, config.lanes, config.page_size, config.segment_pages)
    assert seen == ("fifo", 4, 16, 32), "code, environment, JSON, default"
    assert (config.write, config.clean_pages) == ("back", 5), "only all of them together have to fit"
    assert cpkv.CacheConfig.load(environ={}) == cpkv.CacheConfig()
    base = cpkv.CacheConfig(policy="slru", device_pages=6)
    environ = {"CPKV_POLICY": "mru", "CPKV_LANES": "3"}
    assert cpkv.CacheConfig.from_environment(environ, base) == base.replace(policy="mru", lanes=3)


def test_conflicts_between_sources_name_both():
    environ = {"CPKV_LANES": "3", "CPKV_POLICY": "lfu"}
    text = '{"device_pages": 16, "policy": "best"}'
    seen = refusals(cpkv.CacheConfig.load, text, environ=environ, host_slots=32, colour="red")
    pages = "device_pages from key 'device_pages' of the JSON text"
    assert seen == [
        f"policy is 'best', want one of {', '.join(cpkv.POLICIES)} (policy from key 'policy' of the JSON text)",
        f"colour is 'red' and names no setting, want one of {', '.join(KINDS)}",
        f"device_pages is 16, want a multiple of lanes, which is 3 ({pages}, lanes from CPKV_LANES)",
        "host_slots is 32, want a multiple of lanes, which is 3 (lanes from CPKV_LANES)",
    ], "what is covered was meant to be right, too"


def test_replace_tells_everything_that_is_wrong():
    seen = refusals(cpkv.CacheConfig(device_pages=8).replace, lanes=3, polici="lru", draft=None)
    assert seen == [
        "polici is 'lru' and names no setting, want policy",
        "draft is None, want true or false",
        "device_pages is 8, want a multiple of lanes, which is 3",
    ]
