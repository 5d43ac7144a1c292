"""A small engine that shows every place where an engine calls cpkv. Needs torch.

A model of the DeepSeek-V3.2 kind with a draft, chunked prefill over context-parallel ranks, decode with
speculation, and a cache on device and host. `docs/engine-authors.md` walks through it.
"""

from cpkv.engine.config import EngineConfig, ModelConfig
from cpkv.engine.engine import Engine
from cpkv.engine.request import Request, Stage

__all__ = ["Engine", "EngineConfig", "ModelConfig", "Request", "Stage"]
