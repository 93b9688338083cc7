"""Tiny BERT and RoBERTa checkpoints with random weights, as their authors publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.models.encoder import word_tokenizer, write_safetensors

__all__ = ["CHECKPOINTS", "IDS", "TYPES", "checkpoint_tensors", "config_of", "write_checkpoint"]

VOCAB, HIDDEN, HEADS, LAYERS, INNER, PLACES = 61, 24, 3, 2, 40, 36

CHECKPOINTS = {
    "bert": {"model_type": "bert", "architectures": ["BertModel"]},
    "bert_relu": {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "relu"},
    "bert_score": {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "num_labels": 1},
    "roberta": {"model_type": "roberta", "architectures": ["RobertaModel"]},
    "roberta_score": {"model_type": "roberta", "architectures": ["RobertaForSequenceClassification"], "num_labels": 1},
}
"""Name -> what its config.json says beyond the sizes."""

IDS = ((0, 5, 9, 33, 1), (0, 60, 1), (0, 7, 7, 8, 4, 21, 1, 40, 41, 1))
"""Texts to compare, with special tokens."""
TYPES = ((0,) * 5, (0,) * 3, (0,) * 7 + (1,) * 3)


def config_of(name: str) -> dict[str, Any]:
    """The whole config.json."""
    is_roberta = name.startswith("roberta")
    return {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": INNER,
        "max_position_embeddings": PLACES + (3 if is_roberta else 0),
        "type_vocab_size": 1 if is_roberta else 2,
        "pad_token_id": 2,
        "layer_norm_eps": 1e-5 if is_roberta else 1e-12,
        "hidden_act": "gelu",
        **CHECKPOINTS[name],
    }


def checkpoint_tensors(name: str) -> dict[str, npt.NDArray[np.float32]]:
    """Weights under the names of the transformers library."""
    config = config_of(name)
    random = np.random.default_rng(11)
    tensors: dict[str, npt.NDArray[np.float32]] = {}

    def add(key: str, *shape: int, scale: float = 0.4, center: float = 0.0) -> None:
        tensors[key] = (random.random(shape, np.float32) * 2 - 1) * np.float32(scale) + np.float32(center)

    def norm(key: str) -> None:
        add(f"{key}.weight", HIDDEN, scale=0.2, center=1.0)
        add(f"{key}.bias", HIDDEN, scale=0.2)

    def linear(key: str, columns: int, rows: int) -> None:
        add(f"{key}.weight", rows, columns)
        add(f"{key}.bias", rows, scale=0.2)

    has_head = name.endswith("score")
    prefix = f"{config['model_type']}." if has_head else ""
    add(f"{prefix}embeddings.word_embeddings.weight", VOCAB, HIDDEN)
    add(f"{prefix}embeddings.position_embeddings.weight", config["max_position_embeddings"], HIDDEN)
    add(f"{prefix}embeddings.token_type_embeddings.weight", config["type_vocab_size"], HIDDEN)
    norm(f"{prefix}embeddings.LayerNorm")
    for layer in range(LAYERS):
        base = f"{prefix}encoder.layer.{layer}"
        for part in ("query", "key", "value"):
            linear(f"{base}.attention.self.{part}", HIDDEN, HIDDEN)
        linear(f"{base}.attention.output.dense", HIDDEN, HIDDEN)
        norm(f"{base}.attention.output.LayerNorm")
        linear(f"{base}.intermediate.dense", HIDDEN, INNER)
        linear(f"{base}.output.dense", INNER, HIDDEN)
        norm(f"{base}.output.LayerNorm")
    if name == "roberta_score":
        linear("classifier.dense", HIDDEN, HIDDEN)
        linear("classifier.out_proj", HIDDEN, 1)
    else:
        linear(f"{prefix}pooler.dense", HIDDEN, HIDDEN)
        if has_head:
            linear("classifier", HIDDEN, 1)
    return tensors


def write_checkpoint(folder: Path, name: str) -> Path:
    """config.json, model.safetensors and tokenizer.json. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(name)), encoding="utf-8")
    write_safetensors(folder / "model.safetensors", checkpoint_tensors(name))
    word_tokenizer().save(str(folder / "tokenizer.json"))
    return folder
