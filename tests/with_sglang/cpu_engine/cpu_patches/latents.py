"""MLA on `torch_native`."""

from sglang.srt.models.deepseek_common.attention_backend_handler import AttentionBackendRegistry
from sglang.srt.models.deepseek_common.attention_forward_methods.forward_methods import AttnForwardMethod


def absorb():
    """Let the backend read latents always.

    MLA does not know it, and takes another one's way then: prompts without a prefix are computed of full keys and
    values, which are not what is in the pool that this backend reads.
    """
    AttentionBackendRegistry.register("torch_native", lambda *_: AttnForwardMethod.MLA)
