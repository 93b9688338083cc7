"""The text files of a package: tokenizer, templates, metadata."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from onnx_genai.convert.architectures import ModelSpec
from onnx_genai.convert.gguf_file import GgufFile
from onnx_genai.convert.tokenizer import Vocabulary, special_text, tokenizer_json

__all__ = ["write_text_files"]

Json = dict[str, object]

SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
"""Recommended sampling in GGUF metadata, and the same under the names of ``generation_config.json``."""


def write_text_files(folder: Path, file: GgufFile, spec: ModelSpec, vocabulary: Vocabulary, weights: str) -> None:
    """Writes all files but the graph and its data.

    Args:
        folder: The package folder.
        file: Source of the recommended sampling.
        spec: The model.
        vocabulary: Its tokenizer.
        weights: Short name of the weight format, for readers.
    """
    half = weights == "float16"
    generation = _generation(file)
    _write_json(folder / "tokenizer.json", tokenizer_json(vocabulary))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(spec, vocabulary))
    _write_json(folder / "config.json", _config(spec, vocabulary, half))
    _write_json(folder / "generation_config.json", _token_ids(vocabulary) | generation)
    metadata = _inference_metadata(spec, vocabulary, weights, generation, half)
    text = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True, width=120)
    (folder / "inference_metadata.yaml").write_text(text, encoding="utf-8")


def _write_json(path: Path, value: Json) -> None:
    compact = path.name == "tokenizer.json"
    text = json.dumps(value, ensure_ascii=False, indent=None if compact else 2)
    path.write_text(text + "\n", encoding="utf-8")


def _generation(file: GgufFile) -> Json:
    found: Json = {name: file.metadata[key] for key, name in SAMPLING.items() if key in file.metadata}
    return {"do_sample": True, **found} if found else {}


def _token_ids(vocabulary: Vocabulary) -> Json:
    ids: Json = {}
    if vocabulary.bos_id is not None:
        ids["bos_token_id"] = vocabulary.bos_id
    if vocabulary.eos_ids:
        ids["eos_token_id"] = list(vocabulary.eos_ids)
    if vocabulary.pad_id is not None:
        ids["pad_token_id"] = vocabulary.pad_id
    return ids


def _tokenizer_config(spec: ModelSpec, vocabulary: Vocabulary) -> Json:
    config: Json = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": spec.context,
        "clean_up_tokenization_spaces": False,
        "add_bos_token": vocabulary.add_bos,
        "add_eos_token": vocabulary.add_eos,
    }
    eos = vocabulary.eos_ids[0] if vocabulary.eos_ids else None
    ids = {"bos": vocabulary.bos_id, "eos": eos, "unk": vocabulary.unk_id, "pad": vocabulary.pad_id}
    for name, token_id in ids.items():
        text = special_text(vocabulary, token_id)
        if text is not None:
            config[f"{name}_token"] = text
    if vocabulary.chat_template is not None:
        config["chat_template"] = vocabulary.chat_template
    return config


def _config(spec: ModelSpec, vocabulary: Vocabulary, half: bool) -> Json:
    return {
        "architectures": [spec.family.class_name],
        "model_type": spec.family.model_type,
        "hidden_size": spec.hidden,
        "intermediate_size": spec.feed_forward,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab,
        "max_position_embeddings": spec.context,
        "rms_norm_eps": spec.epsilon,
        "rope_theta": spec.ropes["global"].base,
        "tie_word_embeddings": spec.tied,
        "torch_dtype": "float16" if half else "float32",
        **_token_ids(vocabulary),
    }


def _inference_metadata(spec: ModelSpec, vocabulary: Vocabulary, weights: str, generation: Json, half: bool) -> Json:
    kinds = [f"{index}.{kind}" for index in range(len(spec.layers)) for kind in ("key", "value")]
    # No attention.sliding_window: it would let a runtime drop rows, and only some layers may lose them.
    metadata: Json = {
        "schema_version": "v1",
        "required_capabilities": ["kv_cache", "grouped_query_attention"],
        "model": {
            "architecture": spec.architecture,
            "max_sequence_length": spec.context,
            "vocab_size": spec.vocab,
            "attention": {
                "type": "gqa",
                "num_attention_heads": spec.heads,
                "num_kv_heads": spec.kv_heads,
                "head_dim": spec.head_dim,
            },
            "io": {
                "token_input": "input_ids",
                "attention_mask_input": "attention_mask",
                "logits_output": "logits",
                "kv_inputs": [f"past_key_values.{kind}" for kind in kinds],
                "kv_outputs": [f"present.{kind}" for kind in kinds],
                "kv_update": "shared_buffer",
            },
        },
        "kv_cache": {"native_dtype": "float16" if half else "float32"},
        "quantization": {"default": weights},
        "tokens": _token_ids(vocabulary),
    }
    if generation:
        metadata["generation"] = generation
    return metadata
