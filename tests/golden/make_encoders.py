"""Makes encoders.npz: what transformers computes with MiniLM and with tiny BERT and RoBERTa models.

``python -m tests.golden.make_encoders MINILM_CHECKPOINT``; see PROVENANCE.md.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.embedding.tiny_bert import CHECKPOINTS, IDS, TYPES, write_checkpoint

TEXTS = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "",
    "x",
    "Zürich, naïve café: 東京タワー 😀",
    "def add(a, b):\n    return a + b",
    "The quick brown fox jumps over the lazy dog. " * 3,
    "one two three four five six seven eight nine ten " * 15,
    "Two men pushed carts through the woods.",
    "a",
    "Embeddings of short texts, long texts, and texts in between must not depend on their company in a batch.",
)


def minilm(checkpoint: str) -> np.ndarray:
    """Mean pooling and unit length, each text alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    model = transformers.AutoModel.from_pretrained(checkpoint, dtype=torch.float32, attn_implementation="eager").eval()
    rows = []
    for text in TEXTS:
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].double()
        vector = hidden.mean(dim=0)
        rows.append((vector / vector.norm()).numpy())
    return np.stack(rows).astype(np.float32)


def tiny(name: str, folder: Path) -> list[np.ndarray]:
    """Hidden states or scores of each text alone."""
    config = transformers.AutoConfig.from_pretrained(write_checkpoint(folder, name))
    kind = transformers.AutoModelForSequenceClassification if name.endswith("score") else transformers.AutoModel
    model = kind.from_pretrained(folder, config=config, dtype=torch.float32, attn_implementation="eager").eval()
    found = []
    for ids, types in zip(IDS, TYPES, strict=True):
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        if config.type_vocab_size > 1:
            inputs["token_type_ids"] = torch.tensor([types])
        with torch.no_grad():
            outputs = model(**inputs)
        found.append((outputs.logits if name.endswith("score") else outputs.last_hidden_state)[0].numpy())
    return found


def main(checkpoint: str) -> None:
    arrays = {"minilm_texts": np.array(TEXTS), "minilm_vectors": minilm(checkpoint)}
    for name in CHECKPOINTS:
        with tempfile.TemporaryDirectory() as folder:
            for number, array in enumerate(tiny(name, Path(folder))):
                arrays[f"{name}_{number}"] = array
    np.savez_compressed(Path(__file__).with_name("encoders.npz"), **arrays)


if __name__ == "__main__":
    main(sys.argv[1])
