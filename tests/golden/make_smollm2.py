"""Writes smollm2.json: greedy continuations by transformers on the float32 SmolLM2-135M-Instruct checkpoint.

Usage: python make_smollm2.py HF_FOLDER [--output smollm2.json]

The end token does not stop the loop, so every prompt yields exactly NUM_NEW_TOKENS tokens. The margin of a
position is its highest logit minus the second highest: where it is small, arithmetic in another order or
precision may rightly pick the other token, and the tokens after it are then not comparable.
"""

from __future__ import annotations

import argparse
import json
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

NUM_NEW_TOKENS = 64
NUM_MARGIN_DIGITS = 4

PASSAGE = (
    "Read the following passage and summarize it in two sentences. The water cycle describes how water moves "
    "around the Earth. Heat from the sun makes water evaporate from oceans, lakes, and rivers, and plants "
    "release water vapor through their leaves. As the vapor rises, it cools and condenses into tiny droplets "
    "that form clouds. When the droplets grow heavy, they fall back to the ground as rain, snow, sleet, or "
    "hail. Some of this water flows over the land into streams and rivers, some sinks into the soil and fills "
    "underground aquifers, and some is stored for many years in glaciers and ice caps. In time the water "
    "returns to the sea, and the cycle begins again. People depend on this cycle for drinking water, for "
    "farming, and for power, and changes in climate can make droughts and floods more common in many regions "
    "of the world. Scientists measure rainfall, river levels, and soil moisture to understand how the cycle "
    "is changing."
)

PROMPTS: tuple[tuple[str, str], ...] = (
    ("count", "Count from 1 to 10."),
    ("arithmetic", "What is 2+2?"),
    ("rainbow", "Name three colors of the rainbow."),
    ("capital", "What is the capital of France?"),
    ("greeting", "Hi"),
    ("code", "Write a Python function that returns the sum of two numbers."),
    ("repeat", "Repeat this sentence three times: The quick brown fox jumps over the lazy dog."),
    ("passage", PASSAGE),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One prompt and its greedy continuation.

    Attributes:
        name: Short label, unique in the file.
        prompt: The user's message, before the chat template.
        prompt_ids: Token ids of the chat-templated conversation, generation prompt included.
        new_ids: The NUM_NEW_TOKENS tokens after the prompt, end tokens included.
        text: new_ids decoded, special tokens kept.
        margins: For each of new_ids, highest minus second highest logit.
        min_margin: The smallest of margins.
    """

    name: str
    prompt: str
    prompt_ids: list[int]
    new_ids: list[int]
    text: str
    margins: list[float]
    min_margin: float


def decode_greedily(model: PreTrainedModel, prompt_ids: list[int]) -> tuple[list[int], list[float]]:
    """Returns NUM_NEW_TOKENS argmax tokens after prompt_ids and the margin of each.

    Each step runs the whole sequence anew, so the reference does not depend on any KV cache.
    """
    new_ids: list[int] = []
    margins: list[float] = []
    for _ in range(NUM_NEW_TOKENS):
        logits = model(input_ids=torch.tensor([prompt_ids + new_ids]), use_cache=False).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        new_ids.append(int(logits.argmax()))
        margins.append(round(best - second, NUM_MARGIN_DIGITS))
    return new_ids, margins


def make_case(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, name: str, prompt: str) -> GoldenCase:
    """Applies the tokenizer's chat template to prompt and decodes the reply."""
    conversation = [{"role": "user", "content": prompt}]
    rendered = str(tokenizer.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False))
    prompt_ids: list[int] = tokenizer.encode(rendered, add_special_tokens=False)
    new_ids, margins = decode_greedily(model, prompt_ids)
    return GoldenCase(
        name=name,
        prompt=prompt,
        prompt_ids=prompt_ids,
        new_ids=new_ids,
        text=str(tokenizer.decode(new_ids, skip_special_tokens=False)),
        margins=margins,
        min_margin=min(margins),
    )


def main() -> None:
    """Parses the command line and writes the golden file."""
    parser = argparse.ArgumentParser(description="Write greedy reference tokens of SmolLM2-135M-Instruct.")
    parser.add_argument("hf_folder", type=Path, help="folder of the float32 checkpoint with its tokenizer")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("smollm2.json"))
    arguments = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(arguments.hf_folder, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(arguments.hf_folder, dtype=torch.float32, local_files_only=True)
    with torch.inference_mode():
        cases = [make_case(model, tokenizer, name, prompt) for name, prompt in PROMPTS]

    document = {
        "model": "SmolLM2-135M-Instruct",
        "dtype": "float32",
        "num_new_tokens": NUM_NEW_TOKENS,
        "stops_at_end_token": False,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cases": [asdict(case) for case in cases],
    }
    arguments.output.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for case in cases:
        print(f"{case.name}: {len(case.prompt_ids)} prompt tokens, min margin {case.min_margin}")


if __name__ == "__main__":
    main()
