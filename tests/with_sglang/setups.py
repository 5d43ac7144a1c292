"""What the tests run: models, page sizes, drafts."""

from typing import NamedTuple

DRAFTED_TOKENS = 4
HOST_TIER = {"enable_hierarchical_cache": True, "hicache_io_backend": "direct", "hicache_ratio": 8.0}
"""Options of an engine that caches on the host, too."""


class Setup(NamedTuple):
    """An engine whose cache is tested."""

    model: str
    page_size: int
    drafts: bool = False
    pool_tokens: int = 1024
    schedule: str = "fcfs"
    ranks: int = 1
    """Of tensor parallelism, each in a process of its own."""

    def __str__(self):
        ranks = f", {self.ranks} ranks" if self.ranks > 1 else ""
        return f"{self.model}{' with drafts' * self.drafts}, pages of {self.page_size}{ranks}"

    @property
    def is_packed(self):
        """Whether the draft is in the model: SGLang packs its pool with the target's then."""
        return self.model.endswith("_nextn")

    def options(self, models):
        """What both the engine and the one that it is compared with are started with."""
        options = {
            "model_path": str(models / self.model),
            "page_size": self.page_size,
            "chunked_prefill_size": 128,
            "tp_size": self.ranks,
        }
        if self.drafts:
            options |= {
                "speculative_algorithm": "NEXTN" if self.is_packed else "EAGLE",
                "speculative_draft_model_path": None if self.is_packed else str(models / f"{self.model}_eagle"),
                "speculative_num_steps": DRAFTED_TOKENS - 1,
                "speculative_eagle_topk": 1,
                "speculative_num_draft_tokens": DRAFTED_TOKENS,
            }
        return options

    def cached(self, models):
        """The options of the engine."""
        return self.options(models) | {
            "radix_cache_backend": "cpkv",
            "max_total_tokens": self.pool_tokens,
            "schedule_policy": self.schedule,
        }

    def uncached(self, models):
        """The options of the engine that has no cache, and room for everything."""
        return self.options(models) | {"disable_radix_cache": True, "max_total_tokens": 16384}
