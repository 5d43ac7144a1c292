"""DeepSeek's NextN draft on a CPU: its layer has experts otherwise, and it waits for the GPU as it gets its head."""

import torch
from sglang.srt.models.deepseek_v2 import DeepseekV2DecoderLayer

_is_sparse = DeepseekV2DecoderLayer._is_layer_sparse


def draft_densely():
    """Let the draft's layer be dense where the target's are, and wait for nothing."""

    def is_sparse(config, layer, is_nextn):  # noqa: ARG001 - as SGLang calls it
        return _is_sparse(config, layer, is_nextn=False)

    was_static = isinstance(vars(DeepseekV2DecoderLayer)["_is_layer_sparse"], staticmethod)  # since 0.5.22
    DeepseekV2DecoderLayer._is_layer_sparse = staticmethod(is_sparse) if was_static else is_sparse
    torch.cuda.synchronize = lambda *_: None
