"""SGLang, if it is installed: whether cpkv knows it, and whether it finds cpkv. Imports nothing of it."""

import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, requires, version
from typing import Final

from cpkv.doctor.check import Check
from cpkv.errors import ConfigError
from cpkv.sglang.plugin import BACKEND
from cpkv.sglang.versions import INTERFACES, interface_of

GROUP: Final = "sglang.srt.plugins"
"""The entry points that SGLang loads in each of its processes."""
ALLOWED: Final = "SGLANG_PLUGINS"
"""Names of plugins with commas between them: SGLang then loads no others. Empty for all."""
_FIRST, *_, _LAST = INTERFACES
_KNOWN: Final = f"{_FIRST} to {_LAST}"
_REINSTALL: Final = "install cpkv with pip: a folder on PYTHONPATH alone has no entry points"


def sglang_checks(environment: Mapping[str, str] = os.environ) -> Iterator[Check]:
    """Look at SGLang, its torch, and how it finds cpkv.

    Args:
        environment: The variables that SGLang would be started with.
    """
    installed = _version("sglang")
    if installed is None:
        yield Check("SGLang", "ok", "not installed: cpkv does without")
        return
    yield _sglang(installed)
    yield _torch()
    yield _plugin(environment)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _sglang(installed: str) -> Check:
    try:
        interface_of(installed)
    except ConfigError:
        hint = f"pip install sglang=={_LAST}, or start SGLang without --radix-cache-backend {BACKEND}"
        return Check("SGLang", "fail", f"{installed}, which cpkv does not know", _KNOWN, hint)
    return Check("SGLang", "ok", f"{installed}: device tier and host tier", _KNOWN)


def _torch() -> Check:
    """The torch beside SGLang, which names the one that it was built for."""
    installed, wanted = _version("torch"), _wanted_torch()
    if installed is None:
        hint = f"pip install torch=={wanted}" if wanted else "install torch"
        return Check("torch", "fail", "not installed, and SGLang needs it", wanted or "any", hint)
    if wanted is not None and installed.partition("+")[0] != wanted:
        hint = f"pip install torch=={wanted}, if SGLang or its kernels do not start"
        return Check("torch", "warn", installed, f"{wanted}, which this SGLang asks for", hint)
    return Check("torch", "ok", installed, wanted or "")


def _wanted_torch() -> str | None:
    """The one version of torch that SGLang asks for; `None` if it takes several."""
    for requirement in requires("sglang") or []:
        found = re.match(r"torch *== *([0-9.]+) *$", requirement)
        if found:
            return found[1]
    return None


def _plugin(environment: Mapping[str, str]) -> Check:
    name, wanted = "SGLang plugin", f"{BACKEND} in the entry points {GROUP}"
    found = entry_points(group=GROUP, name=BACKEND)
    if not found:
        return Check(name, "fail", f"SGLang does not find {BACKEND}", wanted, _REINSTALL)
    if len(found) > 1:
        owners = ", ".join(sorted({each.dist.name if each.dist else "unknown" for each in found}))
        hint = "SGLang takes the first one: uninstall all but cpkv"
        return Check(name, "fail", f"{len(found)} plugins have the name {BACKEND} ({owners})", "one", hint)
    [plugin] = found
    allowed = environment.get(ALLOWED)
    if allowed and BACKEND not in (each.strip() for each in allowed.split(",")):
        hint = f"unset it, or {ALLOWED}={','.join(filter(None, [allowed, BACKEND]))}"
        return Check(name, "fail", f"{ALLOWED}={allowed} leaves {BACKEND} out", f"{BACKEND} among them", hint)
    return _loaded(name, plugin)


def _loaded(name: str, plugin: EntryPoint) -> Check:
    """SGLang logs what a plugin raises while it is loaded, and goes on without it."""
    wanted = "a plugin that can be imported"
    try:
        plugin.load()
    except Exception as error:  # noqa: BLE001 - whatever it is, SGLang would go on without cpkv
        hint = "SGLang would start and not know the backend: install cpkv anew"
        return Check(name, "fail", f"{plugin.value}: {error!r}", wanted, hint)
    return Check(name, "ok", f"{plugin.name} = {plugin.value}", wanted)
