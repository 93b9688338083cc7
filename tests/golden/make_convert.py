"""Logits of tiny random models by transformers -> convert.npz, for tests/convert/test_architectures.py.

Needs torch, transformers and gguf; run from the repository root:

    HF_HUB_OFFLINE=1 python -m tests.golden.make_convert

The weights come from ``tests.convert.tiny.checkpoint``, so that only logits are kept: one array of float32
``[positions, vocab]`` a model, for the ids under ``<model>.ids``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from tests.convert.tiny import LLAMA3, TINY, Tiny, checkpoint, golden_ids

OUT = Path(__file__).with_name("convert.npz")

NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def rope_parameters(name: str, tiny: Tiny) -> dict[str, Any]:
    """The published form of the scaling that the GGUF keys and tensors stand for."""
    parameters: dict[str, Any] = {"rope_type": "default", "rope_theta": tiny.rope_base}
    if name == "llama3":
        parameters |= {"rope_type": "llama3", **LLAMA3}
    if name == "llama-linear":
        parameters |= {"rope_type": "linear", "factor": 4.0}
    if name == "qwen2-yarn":
        parameters |= {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    if tiny.factors.get("rope_factors_short"):
        parameters |= {
            "rope_type": "longrope",
            "short_factor": list(tiny.factors["rope_factors_short"]),
            "long_factor": list(tiny.factors["rope_factors_long"]),
            "original_max_position_embeddings": 16,
            "factor": 4.0,
        }
    return parameters


def config(name: str, tiny: Tiny) -> Any:
    common: dict[str, Any] = {
        "vocab_size": tiny.vocab,
        "hidden_size": tiny.hidden,
        "intermediate_size": tiny.feed_forward,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.head_dim,
        "max_position_embeddings": tiny.context,
        "rms_norm_eps": tiny.epsilon,
        "tie_word_embeddings": tiny.tied,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        "attn_implementation": "eager",
    }
    rope = rope_parameters(name, tiny)
    window = tiny.window or None
    if tiny.arch == "gemma3":
        common["rope_parameters"] = {
            "full_attention": rope,
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        }
    else:
        common["rope_parameters"] = rope
    if tiny.arch in ("gemma2", "gemma3"):
        common |= {"sliding_window": window, "query_pre_attn_scalar": tiny.head_dim}
    if tiny.arch == "phi3":
        common |= {"sliding_window": window, "original_max_position_embeddings": 16}
    classes = {
        "llama": transformers.LlamaConfig,
        "smollm3": transformers.SmolLM3Config,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "phi3": transformers.Phi3Config,
        "gemma2": transformers.Gemma2Config,
        "gemma3": transformers.Gemma3TextConfig,
    }
    return classes[tiny.arch](**common)


def state(tiny: Tiny) -> dict[str, torch.Tensor]:
    names = GEMMA_NAMES if tiny.arch.startswith("gemma") else NAMES
    out: dict[str, torch.Tensor] = {}
    for name, value in checkpoint(tiny).items():
        parts = name.split(".")
        if parts[0] == "blk":
            key = f"model.layers.{parts[1]}.{names[parts[2]]}.{parts[3]}"
        else:
            key = f"{TOP[parts[0]]}.{parts[1]}"
        out[key] = torch.from_numpy(value.copy())
    if tiny.arch == "phi3":
        for layer in range(tiny.layers):
            prefix = f"model.layers.{layer}."
            parts_ = [out.pop(f"{prefix}self_attn.{letter}_proj.weight") for letter in "qkv"]
            out[f"{prefix}self_attn.qkv_proj.weight"] = torch.cat(parts_)
            both = [out.pop(f"{prefix}mlp.{letter}_proj.weight") for letter in ("gate", "up")]
            out[f"{prefix}mlp.gate_up_proj.weight"] = torch.cat(both)
    return out


def main() -> None:
    arrays: dict[str, Any] = {}
    for name, tiny in TINY.items():
        model = transformers.AutoModelForCausalLM.from_config(config(name, tiny), dtype=torch.float32).eval()
        missing, unexpected = model.load_state_dict(state(tiny), strict=False)
        assert not unexpected, unexpected
        assert set(missing) <= {"lm_head.weight"}, missing
        model.tie_weights()
        ids = golden_ids(name)
        with torch.no_grad():
            logits = model(torch.tensor([ids]), use_cache=False).logits[0].numpy()
        arrays[name] = logits.astype(np.float32)
        arrays[f"{name}.ids"] = np.array(ids, np.int64)
        print(f"{name:16s} {logits.shape} {logits.std():.3f}")
    np.savez_compressed(OUT, **arrays)
    print(f"torch {torch.__version__}, transformers {transformers.__version__} -> {OUT}")


if __name__ == "__main__":
    main()
