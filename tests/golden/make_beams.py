"""Writes beams.txt: beam searches of transformers over the fake model of the C++ engine tests.

Usage: python make_beams.py [--output-dir FOLDER]

The model is `cpp/genai/engine/fake_model.h`: logits that depend on the whole history by integer arithmetic, so both
languages compute the same float32 rows. One case a block, for a parser that only has `operator>>`:

    case NAME
    arg KEY VALUE...            fields of SamplingParams, or eos_ids; early_stopping: 0 False, 1 True, 2 "never"
    prompt ID...
    result SCORE ID...          one for each returned sequence, best first, generated ids only
    end

A case whose outcome changes when every logit moves by up to 1e-5 is drawn again: it tests rounding, not the definition.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

VOCAB = 31
MASK = 2**64 - 1
NUDGE = 1e-5
NUM_CASES = 160


def fake_row(history: Sequence[int]) -> list[float]:
    """The logits after `history`, float32."""
    state = 1469598103934665603
    for token in history:
        state = ((state ^ (token + 1)) * 1099511628211) & MASK
    row = []
    for token in range(VOCAB):
        state = ((state ^ token) * 1099511628211) & MASK
        row.append(float(np.float32(3.0) * np.float32(state >> 40) / np.float32(2**24)))
    best = sum((i + 1) * (token + 1) for i, token in enumerate(history)) % VOCAB
    row[best] = 4.0
    return row


class FakeConfig(PretrainedConfig):
    model_type = "fake"

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.vocab_size = VOCAB
        self.hidden_size = 1
        self.num_hidden_layers = 1


class FakeModel(PreTrainedModel, GenerationMixin):
    config_class = FakeConfig

    def __init__(self, nudge: float = 0.0) -> None:
        super().__init__(FakeConfig())
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.nudge = nudge

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutputWithPast:
        logits = torch.tensor([[fake_row(row)] for row in input_ids.tolist()], dtype=torch.float32)
        if self.nudge:
            generator = torch.Generator().manual_seed(int(input_ids.shape[1]))
            logits = logits + self.nudge * (2 * torch.rand(logits.shape, generator=generator) - 1)
        return CausalLMOutputWithPast(logits=logits)

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": input_ids}


@dataclass
class Case:
    prompt: list[int]
    eos_ids: list[int]
    args: dict[str, float] = field(default_factory=dict)
    lists: dict[str, list[int]] = field(default_factory=dict)


def draw(rng: np.random.Generator) -> Case:
    def one_of(*values: float) -> float:
        return values[int(rng.integers(len(values)))]

    num_beams = int(one_of(2, 3, 4, 5))
    case = Case(
        prompt=[int(x) for x in rng.integers(0, VOCAB, int(rng.integers(1, 12)))],
        eos_ids=sorted({int(x) for x in rng.integers(0, VOCAB, int(one_of(0, 1, 2)))}),
    )
    case.args = {
        "num_beams": num_beams,
        "n": int(rng.integers(1, num_beams + 1)),
        "max_new_tokens": int(one_of(1, 2, 5, 9, 14)),
        "length_penalty": one_of(-1.0, 0.0, 0.5, 1.0, 1.0, 2.0),
        "early_stopping": int(one_of(0, 1, 2)),
        "repetition_penalty": one_of(1.0, 1.0, 1.3),
        "no_repeat_ngram_size": int(one_of(0, 0, 1, 2)),
        "min_new_tokens": int(one_of(0, 0, 1, 4)),
    }
    case.args["min_new_tokens"] = min(case.args["min_new_tokens"], case.args["max_new_tokens"])
    if rng.random() < 0.3:
        case.lists["suppress_tokens"] = [int(x) for x in rng.integers(0, VOCAB, 3)]
    if rng.random() < 0.3:
        case.lists["begin_suppress_tokens"] = [int(x) for x in rng.integers(0, VOCAB, 3)]
    if rng.random() < 0.2:
        case.lists["bad_word"] = [int(x) for x in rng.integers(0, VOCAB, int(one_of(1, 2)))]
    return case


def run(case: Case, nudge: float) -> list[tuple[float, list[int]]]:
    args = SimpleNamespace(**case.args)
    config = GenerationConfig(
        num_beams=args.num_beams,
        num_return_sequences=args.n,
        max_new_tokens=args.max_new_tokens,
        length_penalty=args.length_penalty,
        early_stopping=(False, True, "never")[args.early_stopping],
        repetition_penalty=args.repetition_penalty,
        no_repeat_ngram_size=args.no_repeat_ngram_size,
        min_new_tokens=args.min_new_tokens or None,
        suppress_tokens=case.lists.get("suppress_tokens"),
        begin_suppress_tokens=case.lists.get("begin_suppress_tokens"),
        bad_words_ids=[case.lists["bad_word"]] if "bad_word" in case.lists else None,
        eos_token_id=case.eos_ids or None,
        pad_token_id=0,
        do_sample=False,
        use_cache=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    with torch.no_grad():
        out = FakeModel(nudge).generate(torch.tensor([case.prompt]), generation_config=config)
    results = []
    for sequence, beams, score in zip(out.sequences, out.beam_indices, out.sequences_scores, strict=True):
        length = int((beams >= 0).sum())
        results.append((float(score), sequence[len(case.prompt) :][:length].tolist()))
    return results


def is_clear(case: Case, results: list[tuple[float, list[int]]]) -> bool:
    """Neither rounding nor placeholders (fewer finished sequences than asked) decide."""
    if any(score < -1e8 or not ids for score, ids in results):
        return False
    return [ids for _, ids in run(case, NUDGE)] == [ids for _, ids in results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().output_dir
    rng = np.random.default_rng(20261129)
    lines: list[str] = []
    count = 0
    while count < NUM_CASES:
        case = draw(rng)
        results = run(case, 0.0)
        if not is_clear(case, results):
            continue
        lines.append(f"case beams-{count}")
        lines += [f"arg {key} {value:g}" for key, value in case.args.items()]
        lines += [" ".join(["arg", key, *map(str, ids)]) for key, ids in case.lists.items()]
        lines.append(" ".join(["arg", "eos_ids", *map(str, case.eos_ids)]))
        lines.append(" ".join(["prompt", *map(str, case.prompt)]))
        lines += [" ".join(["result", f"{score:.9g}", *map(str, ids)]) for score, ids in results]
        lines.append("end")
        count += 1
    (folder / "beams.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
