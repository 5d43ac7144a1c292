"""Device memory that is given up and taken again, as `torch_memory_saver` does it on a GPU: what it held is gone."""

import torch
from sglang.srt.constants import GPU_MEMORY_TYPE_KV_CACHE
from sglang.srt.utils.torch_memory_saver_adapter import _TorchMemorySaverAdapterNoop

GONE = 1000.0


def lose_pages(scheduler, before):
    """Overwrite the KV pool when it is given up, and call `before` at that moment."""

    def pause(_, tag):
        if tag == GPU_MEMORY_TYPE_KV_CACHE:
            before()
            pool = scheduler.token_to_kv_pool_allocator.get_kvcache()
            for name in ("k_buffer", "v_buffer", "kv_buffer"):
                for layer in getattr(pool, name, ()):
                    layer.fill_(GONE)

    _TorchMemorySaverAdapterNoop.pause = pause
    # What SGLang waits for afterwards, also where there is no GPU.
    torch.cuda.synchronize = lambda *_: None
