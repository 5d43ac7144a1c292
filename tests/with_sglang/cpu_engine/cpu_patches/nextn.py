"""DeepSeek's NextN draft on a CPU: its layer has experts otherwise, and it waits for the GPU as it gets its head."""

import torch
from sglang.srt.models.deepseek_v2 import DeepseekV2DecoderLayer

_is_sparse = DeepseekV2DecoderLayer._is_layer_sparse


def draft_densely():
    """Let the draft's layer be dense where the target's are, and wait for nothing."""
    DeepseekV2DecoderLayer._is_layer_sparse = staticmethod(
        lambda config, layer, is_nextn: _is_sparse(config, layer, is_nextn=False)  # noqa: ARG005 - as SGLang calls it
    )
    torch.cuda.synchronize = lambda *_: None
