"""A run on the machine that it is started on: which engine there is, and how much memory it needs."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Final

from cpkv.bench.copy.case import LONGEST_RUN
from cpkv.bench.copy.cpu_platform import CpuPlatform
from cpkv.bench.copy.figure import ABSENT
from cpkv.bench.copy.fragments import FragmentSizes
from cpkv.bench.copy.patterns import capacity_for
from cpkv.bench.copy.peers import PeerCopies, plain_peers
from cpkv.bench.copy.platform import Platform
from cpkv.bench.copy.pools import device_bytes, mla_layout, whole_segments
from cpkv.bench.copy.restores import restored_layers
from cpkv.bench.copy.run import Run, said
from cpkv.bench.copy.settings import ENGINES, CopySettings, EngineName
from cpkv.bench.copy.targets import Targets
from cpkv.errors import ConfigError
from cpkv.host import Placement, read_limits

CUDA_MODULE: Final = "cpkv.device.cuda"
SGLANG_PEERS: Final = ("SGLang kernel", "SGLang JIT", "SGLang direct")
"""Named here as well, for machines where nothing of them can be imported."""
CONNECTIONS: Final = "CUDA_DEVICE_MAX_CONNECTIONS"
"""With fewer than there are streams, two of them may share a queue, and one waits for what the other does."""
MOST_CONNECTIONS: Final = "32"
FRAGMENT_SHARE: Final = 0.5
"""Of the memory that this process may take: what the fragmented host pool has at the most."""
FRAGMENT_BYTES: Final = 8 << 30
"""The same where nobody knows how much that is."""


def choose_engine(wanted: str) -> EngineName:
    """Return the engine to be measured.

    Raises:
        ConfigError: There is no such engine, or not here.
    """
    if wanted not in ENGINES:
        message = f"engine is {wanted!r}, want one of {', '.join(ENGINES)}"
        raise ConfigError(message)
    if wanted == "cpu":
        return "cpu"
    # Before anything of CUDA is initialised.
    os.environ.setdefault(CONNECTIONS, MOST_CONNECTIONS)
    reason = _no_cuda()
    if wanted == "cuda" and reason:
        message = f"engine is 'cuda', and {reason}"
        raise ConfigError(message)
    return "cpu" if reason else "cuda"


def _no_cuda() -> str:
    """Return why there is no GPU to be measured; empty if there is."""
    for module, what in (("torch", "torch is not installed"), (CUDA_MODULE, f"there is no {CUDA_MODULE}")):
        if find_spec(module) is None:
            return what
    return "" if import_module("torch").cuda.is_available() else "torch sees no GPU"


def memory_needed(settings: CopySettings, engine: EngineName, available_bytes: int | None) -> tuple[int, int]:
    """Return the bytes of the host and of the device that the largest measurement needs.

    Args:
        settings: Fitted to the engine. Without requests no host pool is fragmented.
        engine: Chosen.
        available_bytes: Host memory that this process may take; `None` if that is not known.
    """
    pages, layers = max(settings.pages or (1,)), settings.layers or 1
    needs = [
        (mla_layout(layers), whole_segments(pages), capacity_for(pages, LONGEST_RUN)),
        (mla_layout(restored_layers(layers, engine)), whole_segments(pages), capacity_for(pages, LONGEST_RUN)),
    ]
    if settings.requests:
        most = FRAGMENT_BYTES if available_bytes is None else int(available_bytes * FRAGMENT_SHARE)
        sizes = FragmentSizes(pages, layers, most)
        needs.append((sizes.layout, sizes.slots, sizes.device_pages))
    return (
        max(slots * layout.slot_bytes for layout, slots, _ in needs),
        max(device_bytes(layout, count) for layout, _, count in needs),
    )


@contextmanager
def opened(engine: EngineName, host_bytes: int, device_bytes: int, copy_path: str | None) -> Iterator[Platform]:
    """Give the machine, and its memory back at the end."""
    platform: Platform
    if engine == "cuda":
        cuda = import_module("cpkv.bench.copy.cuda_platform")
        platform = cuda.CudaPlatform(host_bytes, device_bytes, copy_path)
    else:
        platform = CpuPlatform(host_bytes, device_bytes)
    try:
        yield platform
    finally:
        platform.close()


def targets_of(platform: Platform) -> Targets:
    """Return what is wanted on a machine."""
    return Targets(is_known="H200" in platform.describe()["device"])


@contextmanager
def started(settings: CopySettings, engine: EngineName) -> Iterator[Run]:
    """Give a run, and the machine's memory back at its end.

    Args:
        settings: Fitted to the engine.
        engine: Chosen.
    """
    peers: list[PeerCopies] = []
    missing: dict[str, str] = {}
    # What is prepared here, others' imports above all, is time of the run.
    started_s = time.monotonic()
    needed = memory_needed(settings, engine, read_limits(Placement()).available_bytes)
    with opened(engine, *needed, settings.copy_path) as platform:
        if settings.peers == "all":
            peers, missing = _sglang(platform) if engine == "cuda" else ([], _no_gpu())
        if settings.peers != "none":
            peers = [*plain_peers(platform), *peers]
        yield Run(
            platform=platform,
            settings=settings,
            peers=peers,
            missing=missing,
            targets=targets_of(platform),
            started_s=started_s,
        )


def _no_gpu() -> dict[str, str]:
    return dict.fromkeys(SGLANG_PEERS, f"{ABSENT}: no GPU")


def _sglang(platform: Platform) -> tuple[list[PeerCopies], dict[str, str]]:
    try:
        peers, missing = import_module("cpkv.bench.copy.sglang").sglang_peers(platform)
    except Exception as error:  # noqa: BLE001 - others are measured without it
        return [], dict.fromkeys(SGLANG_PEERS, f"{ABSENT}: {said(error)}")
    return list(peers), missing
