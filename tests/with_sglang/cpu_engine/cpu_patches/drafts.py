"""The part of an attention backend in EAGLE, for `torch_native` and drafts that are a chain.

The backend knows prompts and single tokens. EAGLE asks for two things more: to verify several tokens of a request at
once, which are a prompt behind all that the request has; and to draft in several steps, each of which reads what the
steps before it have stored.
"""

import copy
from inspect import signature

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.speculative.draft_utils import DraftBackendFactory

_forward_extend = TorchNativeAttnBackend.forward_extend
_create_backend = DraftBackendFactory._create_backend
_names_backends = "stamps_children" in signature(_create_backend).parameters  # since 0.5.18


def follow_chains():
    """Teach the backend to verify, and let EAGLE find it."""
    TorchNativeAttnBackend.forward_extend = _extend_or_verify
    DraftBackendFactory._create_backend = _create_native_too


def _extend_or_verify(self, q, k, v, layer, forward_batch, save_kv_cache=True, **_):  # noqa: FBT002 - as SGLang calls it
    if forward_batch.forward_mode.is_target_verify():
        forward_batch = _as_prompt(forward_batch)
    return _forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache)


def _as_prompt(forward_batch):
    drafted = forward_batch.spec_info.draft_token_num
    prompt = copy.copy(forward_batch)
    prompt.extend_prefix_lens = forward_batch.seq_lens
    prompt.extend_seq_lens = torch.full_like(forward_batch.seq_lens, drafted)
    prompt.seq_lens = forward_batch.seq_lens + drafted
    return prompt


class Step(TorchNativeAttnBackend):
    """One step of a draft."""

    def __init__(self, model_runner, step):
        super().__init__(model_runner)
        self._stored_tokens = step + 1

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **_):  # noqa: FBT002 - as SGLang calls it
        forward_batch = copy.copy(forward_batch)
        forward_batch.seq_lens = forward_batch.seq_lens + self._stored_tokens
        return super().forward_decode(q, k, v, layer, forward_batch, save_kv_cache)


class Steps:
    """All steps of a draft but the last, which stores nothing."""

    def __init__(self, model_runner, steps):
        self.attn_backends = [Step(model_runner, step) for step in range(steps - 1)]

    def init_forward_metadata(self, forward_batch):
        for backend in self.attn_backends:
            backend.init_forward_metadata(forward_batch)


def _create_native_too(self, backend_name, backend_map, error_template, **named):
    def native():
        runner = self.draft_model_runner
        drafts = backend_name == "decode_attention_backend"  # and not what follows a prompt
        backend = Steps(runner, self.speculative_num_steps) if drafts else TorchNativeAttnBackend(runner)
        return ("torch_native", backend) if _names_backends else backend

    return _create_backend(self, backend_name, {**backend_map, "torch_native": native}, error_template, **named)
