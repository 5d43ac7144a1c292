"""Everything that makes a cache, in one value: from code, from the environment, from JSON."""

from cpkv.config.settings import CacheConfig

__all__ = ["CacheConfig"]
