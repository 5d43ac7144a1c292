"""Tiny models of random weights whose next token depends on all that is cached.

Weights are wide: with those that a model is usually initialised with, attention hardly changes the next token, and a
wrong cache gives the right tokens. `llama` has multi-head attention, `mla` latent attention, `dsa` an indexer besides.
`llama_eagle` drafts for `llama`; `dsa_nextn` has a draft of its own.
"""

import itertools
import json

import numpy as np
from safetensors.numpy import save_file

VOCABULARY = 512
HIDDEN = 64
MLP = 128
LAYERS = 2
HEADS = 4
MOST_TOKENS = 8192
RANK = 4
"""Of adapters."""
WIDTH = 0.25
WEAK = np.float32(0.1)

_ALL = {
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": MOST_TOKENS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": None,  # requests end by their length
}
_LLAMA = _ALL | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_key_value_heads": 2,
    "head_dim": 16,
}
_DEEPSEEK = _ALL | {
    "num_key_value_heads": HEADS,
    "attention_bias": False,
    # Experts, of which no layer has any: all of them are dense.
    "first_k_dense_replace": LAYERS,
    "moe_layer_freq": 1,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "routed_scaling_factor": 1.0,
    "rope_scaling": {
        "type": "yarn",
        "factor": 2.0,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": MOST_TOKENS // 2,
    },
}
CONFIGS = {
    "llama": _LLAMA,
    "llama_eagle": _LLAMA | {"architectures": ["LlamaForCausalLMEagle"]},
    "mla": _DEEPSEEK
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "q_lora_rank": None,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
    },
    # Ranks and dimensions are those that SGLang's pool for DSA is written for.
    "dsa": _DEEPSEEK
    | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "q_lora_rank": 64,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "index_head_dim": 128,
        "index_n_heads": 4,
        "index_topk": 2048,
    },
}
CONFIGS["dsa_nextn"] = CONFIGS["dsa"] | {"num_nextn_predict_layers": 1}


def write_models(folder):
    """Write all of them, each into a folder of its name."""
    for name, config in CONFIGS.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    llama = _weights(_shapes("llama", _attention_of_llama))
    _save(folder / "llama", llama)
    _save(folder / "llama_eagle", _drafting_for(llama))
    _save(folder / "mla", _weights(_shapes("mla", _attention_of_mla)))
    dsa = _weights(_shapes("dsa", _attention_of_dsa))
    _save(folder / "dsa", dsa)
    _save(folder / "dsa_nextn", _with_its_draft(dsa))


def write_adapter(folder, seed):
    """Write an adapter (LoRA) of `llama`, whose answers are others with each seed."""
    random = np.random.default_rng(seed)
    queries, keys = HEADS * _LLAMA["head_dim"], _LLAMA["num_key_value_heads"] * _LLAMA["head_dim"]
    shapes = {"q_proj": (queries, HIDDEN), "k_proj": (keys, HIDDEN), "v_proj": (keys, HIDDEN)}
    weights = {}
    for layer, (name, (out, into)) in itertools.product(range(LAYERS), shapes.items()):
        module = f"base_model.model.model.layers.{layer}.self_attn.{name}"
        weights[f"{module}.lora_A.weight"] = random.normal(size=(RANK, into)).astype(np.float32)
        weights[f"{module}.lora_B.weight"] = random.normal(size=(out, RANK)).astype(np.float32)
    folder.mkdir()
    _save(folder, weights, "adapter_model")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(shapes), "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def _save(folder, weights, name="model"):
    save_file(weights, folder / f"{name}.safetensors", metadata={"format": "pt"})


def _weights(shapes):
    random = np.random.default_rng(0)
    weights = {}
    for name, shape in shapes.items():
        if len(shape) == 1:
            weight = np.zeros(shape) if name.endswith("bias") else np.ones(shape)
        else:
            weight = random.normal(scale=WIDTH, size=shape)
        if "embed" in name:
            # A root mean square of 1, which a norm leaves as it is.
            weight /= np.sqrt(np.square(weight).mean(axis=-1, keepdims=True))
        weights[name] = weight.astype(np.float32)
    return weights


def _drafting_for(target):
    """The layers of the target without the first norm, which it does not have, reading embeddings only.

    What it is given besides, the target's hidden states, it leaves out: its guesses are good and not perfect.
    """
    weights = {
        name.removeprefix("model."): weight
        for name, weight in target.items()
        if ".layers." in name and "layers.0.input_layernorm" not in name
    }
    weights["fc.weight"] = np.eye(HIDDEN, 2 * HIDDEN, dtype=np.float32)
    weights["fc.bias"] = np.zeros(HIDDEN, np.float32)
    return weights


def _with_its_draft(target):
    """A target whose second layer changes little, and behind its layers that of the draft: the first one, again.

    What the draft is given besides, the target's hidden states, it leaves out: its guesses are good and not perfect.
    """
    last = f"model.layers.{LAYERS - 1}."
    weak = {f"{last}{name}.weight" for name in ("self_attn.o_proj", "mlp.down_proj")}
    weights = {name: weight * (WEAK if name in weak else 1) for name, weight in target.items()}
    draft = f"model.layers.{LAYERS}."
    for name, weight in target.items():
        if name.startswith("model.layers.0."):
            weights[draft + name.removeprefix("model.layers.0.")] = weight
    return weights | {
        f"{draft}eh_proj.weight": np.eye(HIDDEN, 2 * HIDDEN, dtype=np.float32),
        f"{draft}enorm.weight": np.ones(HIDDEN, np.float32),
        f"{draft}hnorm.weight": np.ones(HIDDEN, np.float32),
        f"{draft}shared_head.norm.weight": target["model.norm.weight"],
    }


def _shapes(name, attention_of):
    """Shapes of all weights by name: `(out, in)`, or `(n,)` of norms."""
    layer = {
        "input_layernorm": (HIDDEN,),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (MLP, HIDDEN),
        "mlp.up_proj": (MLP, HIDDEN),
        "mlp.down_proj": (HIDDEN, MLP),
    } | {f"self_attn.{part}": shape for part, shape in attention_of(CONFIGS[name]).items()}
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }
    for index in range(LAYERS):
        for part, shape in layer.items():
            parameter = part if part.endswith(".bias") else f"{part}.weight"
            shapes[f"model.layers.{index}.{parameter}"] = shape
    return shapes


def _attention_of_llama(config):
    keys = config["num_key_value_heads"] * config["head_dim"]
    queries = HEADS * config["head_dim"]
    return {
        "q_proj": (queries, HIDDEN),
        "k_proj": (keys, HIDDEN),
        "v_proj": (keys, HIDDEN),
        "o_proj": (HIDDEN, queries),
    }


def _attention_of_mla(config):
    return {"q_proj": (_queries(config), HIDDEN)} | _latents(config)


def _attention_of_dsa(config):
    width = config["index_head_dim"]
    rank = config["q_lora_rank"]
    return {
        "q_a_proj": (rank, HIDDEN),
        "q_a_layernorm": (rank,),
        "q_b_proj": (_queries(config), rank),
        "indexer.wq_b": (config["index_n_heads"] * width, rank),
        "indexer.wk": (width, HIDDEN),
        "indexer.k_norm": (width,),
        "indexer.k_norm.bias": (width,),
        "indexer.weights_proj": (config["index_n_heads"], HIDDEN),
    } | _latents(config)


def _queries(config):
    return HEADS * (config["qk_nope_head_dim"] + config["qk_rope_head_dim"])


def _latents(config):
    latent, values = config["kv_lora_rank"], config["v_head_dim"]
    return {
        "kv_a_proj_with_mqa": (latent + config["qk_rope_head_dim"], HIDDEN),
        "kv_a_layernorm": (latent,),
        "kv_b_proj": (HEADS * (config["qk_nope_head_dim"] + values), latent),
        "o_proj": (HIDDEN, HEADS * values),
    }
