"""The draft of SGLang's scheduler: its state belongs to each page as that of the target does.

What SGLang makes a cache of has at most the draft's pools, and copies are submitted by the ends of the draft's own
layers. So the scheduler that is being made is noted, by a hook that `plugin.register` asks for; with the draft in hand
there is no difference between one that SGLang packs with the target (NextN) and one beside it (EAGLE, EAGLE3).

What the draft has of a token when a page is copied is final, and all of the page is there:

- A prompt's forward ends with one forward of the draft, or one for each of its depths, over the same tokens. The draft
  computes of place `i` the token behind it. At the end of a chunk that is the prompt's next token, at the end of the
  prompt the one that was sampled. With keys of pairs no page is kept that ends with the last token computed, so that
  of those that are copied every place has the token that the key names.
- While it decodes, the draft guesses beyond what is accepted, and what it has written there is not kept. After each
  verification it computes the accepted tokens anew, from the target's hidden states, and never again after that. What
  SGLang counts as computed ends there; such pages are copied late, behind the forwards that are queued.
- A second depth computes of place `i` the token after the next one, which at an end is its own guess. SGLang keeps that
  in its own caches as well, and drafts from it.
"""

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cpkv.errors import ConfigError

if TYPE_CHECKING:
    from sglang.srt.mem_cache.registry import TreeCacheBuildContext

WITHOUT_STATE: Final = ("NONE", "NGRAM")
WITH_STATE: Final = ("EAGLE", "EAGLE3")
"""SGLang's names of what it drafts by: NEXTN is its EAGLE."""

_schedulers: "weakref.WeakSet[Any]" = weakref.WeakSet()


class Draft(NamedTuple):
    """A draft model, or one depth of it."""

    pool: Any
    model: Any
    attention: Any
    """What computes the attention of its forwards over prompts."""


def note_scheduler(_result: object, scheduler: Any, *_: object, **__: object) -> None:  # noqa: ANN401 - SGLang's
    """Note a scheduler whose models are loaded. It is about to make its cache."""
    _schedulers.add(scheduler)


def drafts_of(context: "TreeCacheBuildContext") -> Sequence[Draft]:
    """Return what has a state of its own beside the target's: nothing, a draft model, or each of its depths.

    Raises:
        ConfigError: There is a draft, and the scheduler that has it was not noted.
    """
    worker = context.tp_worker
    algorithm = worker.model_runner.spec_algorithm.name
    if algorithm in WITHOUT_STATE:
        return ()
    scheduler = next((one for one in _schedulers if one.tp_worker is worker), None)
    if scheduler is None:
        message = (
            f"--speculative-algorithm {algorithm}: the draft was not found, since SGLang has not called the hook on "
            "Scheduler.init_model_worker (its log says why); leave --enable-hierarchical-cache out, and cpkv caches "
            "on the device"
        )
        raise ConfigError(message)
    runners = scheduler.draft_worker.draft_worker.draft_runners
    return [Draft(runner.token_to_kv_pool, runner.model, runner.attn_backend) for runner in runners]
