"""What the doctor says of SGLang, by what lies in a folder of packages: metadata as pip writes them."""

import subprocess
import sys

import pytest

from cpkv.doctor import has_failed
from cpkv.doctor.sglang import sglang_checks
from cpkv.sglang.versions import INTERFACES

OURS = "cpkv.sglang.plugin:register"


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Install into the only folder of packages that there is."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(name, version, *, requires=(), plugins=None):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {each}" for each in requires)]
        (folder / "METADATA").write_text("\n".join(["Metadata-Version: 2.1", *lines, ""]))
        if plugins:
            entries = "".join(f"{key} = {value}\n" for key, value in plugins.items())
            (folder / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{entries}")

    return install


def install_all(packages, *, sglang="0.5.23", torch="2.14.1+cpu", plugins=None):
    packages("sglang", sglang, requires=["torch==2.14.1", "torchvision", 'tomli; python_version < "3.11"'])
    packages("torch", torch)
    packages("cpkv", "0.1.0", plugins={"cpkv": OURS} if plugins is None else plugins)


def checked(**environment):
    checks = list(sglang_checks(environment))
    for check in checks:
        assert check.seen
        assert check.state == "ok" or (check.wanted and check.hint)
    return {check.name: check for check in checks}


def test_sglang_is_not_needed(packages):
    packages("torch", "2.14.1")
    [check] = sglang_checks({})
    assert (check.name, check.state, check.seen) == ("SGLang", "ok", "not installed: cpkv does without")


def test_all_is_well(packages):
    install_all(packages)
    checks = checked()
    assert {name: check.state for name, check in checks.items()} == dict.fromkeys(
        ["SGLang", "torch", "SGLang plugin"], "ok"
    )
    assert checks["SGLang"].seen == "0.5.23: device tier and host tier"
    assert checks["torch"].seen == "2.14.1+cpu"
    assert checks["SGLang plugin"].seen == f"cpkv = {OURS}"


@pytest.mark.parametrize("version", [*INTERFACES, "0.5.23.post1"])
def test_each_version_that_is_known(packages, version):
    install_all(packages, sglang=version)
    check = checked()["SGLang"]
    assert (check.state, check.seen) == ("ok", f"{version}: device tier and host tier")


@pytest.mark.parametrize("version", ["0.5.16", "0.5.24", "0.6.0rc1"])
def test_a_version_that_is_not_known(packages, version):
    install_all(packages, sglang=version)
    check = checked()["SGLang"]
    assert (check.state, check.seen, check.wanted) == (
        "fail", f"{version}, which cpkv does not know", "0.5.17 to 0.5.23",
    )  # fmt: skip
    assert "pip install sglang==0.5.23" in check.hint


def test_another_torch_than_the_one_that_sglang_asks_for(packages):
    install_all(packages, torch="2.11.0")
    check = checked()["torch"]
    assert (check.state, check.seen, check.hint.split(",")[0]) == ("warn", "2.11.0", "pip install torch==2.14.1")


def test_no_torch(packages):
    packages("sglang", "0.5.23", requires=["torch==2.14.1"])
    assert checked()["torch"].state == "fail"


@pytest.mark.parametrize("requires", [[], ["torch"], ["torch>=2.9"], ["torch==2.14.1; extra == 'cpu'"]])
def test_an_sglang_that_takes_several_versions_of_torch(packages, requires):
    packages("sglang", "0.5.23", requires=requires)
    packages("torch", "2.9.0")
    assert checked()["torch"].state == "ok"


def test_cpkv_without_its_entry_point(packages):
    install_all(packages, plugins={"other": "other:register"})
    check = checked()["SGLang plugin"]
    assert (check.state, check.seen) == ("fail", "SGLang does not find cpkv")
    assert check.hint.startswith("install cpkv with pip")


@pytest.mark.parametrize(
    ("allowed", "state"),
    [("", "ok"), ("cpkv", "ok"), ("other, cpkv", "ok"), ("other", "fail"), (",", "fail"), ("cpkv2", "fail")],
)
def test_the_plugins_that_sglang_is_allowed_to_load(packages, allowed, state):
    install_all(packages)
    check = checked(SGLANG_PLUGINS=allowed)["SGLang plugin"]
    assert check.state == state
    if state == "fail":
        assert check.seen == f"SGLANG_PLUGINS={allowed} leaves cpkv out"
        assert checked(SGLANG_PLUGINS=check.hint.partition("=")[2])["SGLang plugin"].state == "ok"


def test_a_plugin_that_cannot_be_imported(packages):
    install_all(packages, plugins={"cpkv": "cpkv.sglang.plugin:gone"})
    checks = checked()
    assert checks["SGLang plugin"].state == "fail"
    assert "AttributeError" in checks["SGLang plugin"].seen
    assert has_failed(checks.values())


def test_two_plugins_of_the_name(packages):
    install_all(packages)
    packages("copy", "1.0", plugins={"cpkv": "copy:copy"})
    check = checked()["SGLang plugin"]
    assert (check.state, check.seen) == ("fail", "2 plugins have the name cpkv (copy, cpkv)")


def test_nothing_of_sglang_is_imported():
    code = (
        "import sys; from cpkv.doctor import examine; examine(); "
        "print([name for name in sys.modules if name.split('.')[0] in ('sglang', 'torch')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
