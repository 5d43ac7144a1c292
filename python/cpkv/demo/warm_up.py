"""Everything once for nothing, before what is recorded: a GPU loads a kernel, and NCCL connects, with the first use."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cpkv.engine import Engine

NEW_TOKENS: Final = 2
"""A prompt brings one; the other takes a draft and a verification."""


def warm_up(engine: Engine, prompts: Sequence[Sequence[int]]) -> None:
    """Serve prompts with another engine, with pages and a cache of its own. To be called on every rank alike.

    Its forwards are those of the first to serve them: the same kernels, and collectives of the same size.

    Args:
        engine: What is recorded afterwards; nothing of it changes.
        prompts: What it is going to serve first.
    """
    config = replace(engine.config, host_slots=0)
    with Engine(config, rank=engine.rank, cp_size=engine.cp_size) as other:
        other.generate(prompts, NEW_TOKENS)
