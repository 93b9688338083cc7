"""Models that are led along given tokens by a sampler that notes what they would have said themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.offline.workload import first_difference
from onnx_genai import LLM, SamplingParams


class Leader:
    """A sampler for one request that notes the model's own choice, and takes it or the token it is told to.

    Args:
        prompt_length: Tokens of the prompt.
        path: Tokens to take; None takes the model's own choice.
        stride: The log-probabilities of every ``stride``-th row are kept; 0 keeps none.
        score: Note the log-probability of each token of the path.
    """

    def __init__(self, prompt_length: int, path: Sequence[int] | None, stride: int = 0, *, score: bool = False) -> None:
        self._prompt_length = prompt_length
        self._path = path
        self._stride = stride
        self._score = score
        self.choices: list[int] = []
        self.margins: list[float] = []
        self.rows: list[npt.NDArray[np.float32]] = []
        self.scores: list[float] = []

    def sample(self, token_ids: Sequence[npt.NDArray[np.int32]], logits: npt.NDArray[np.float32]) -> Sequence[int]:
        picked = []
        for history, row in zip(token_ids, logits, strict=True):
            position = len(history) - self._prompt_length
            if position != len(self.choices):
                raise ValueError(f"row of position {position} came, {len(self.choices)} was expected")
            choice = int(row.argmax())
            second, first = np.partition(row, -2)[-2:]
            self.choices.append(choice)
            self.margins.append(float(first - second))
            taken = choice if self._path is None else self._path[position]
            if self._stride and position % self._stride == 0:
                self.rows.append(log_softmax(row))
            if self._score:
                self.scores.append(float(log_softmax(row)[taken]))
            picked.append(taken)
        return picked


def log_softmax(row: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    wide = row.astype(np.float64)
    wide -= wide.max()
    return (wide - math.log(float(np.exp(wide).sum()))).astype(np.float32)


def lead(llm: LLM, prompts: list[list[int]], paths: list[list[int]] | None, new: int, stride: int) -> list[Leader]:
    """Answers of ``new`` tokens under samplers that note them; ``paths`` are the tokens to take, None for the own."""
    leaders = [
        Leader(len(prompt), None if paths is None else paths[index], stride) for index, prompt in enumerate(prompts)
    ]
    run(llm, prompts, leaders, [new] * len(prompts))
    return leaders


def run(llm: LLM, prompts: list[list[int]], leaders: Sequence[Leader], lengths: Sequence[int]) -> None:
    """One request for each leader; every processor is off, so that it sees the model's own logits."""
    params = [
        SamplingParams(
            max_new_tokens=length,
            ignore_eos=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            min_p=0.0,
            repetition_penalty=1.0,
            no_repeat_ngram_size=0,
            sampler=leader,
        )
        for leader, length in zip(leaders, lengths, strict=True)
    ]
    llm.generate(prompts, params)


def same_history(reference: list[Leader], led: list[Leader]) -> dict[str, Any]:
    """How a model that was led along another one's answers differs from it; needs kept rows."""
    pairs = [
        (own == theirs, margin)
        for a, b in zip(reference, led, strict=True)
        for theirs, own, margin in zip(a.choices, b.choices, a.margins, strict=True)
    ]
    largest, absolute, squared, signal, kl, count, rows = 0.0, 0.0, 0.0, 0.0, 0.0, 0, 0
    for a, b in zip(reference, led, strict=True):
        for expected, row in zip(a.rows, b.rows, strict=True):
            wide = expected.astype(np.float64)
            error = row - wide
            largest = max(largest, float(np.abs(error).max()))
            absolute += float(np.abs(error).sum())
            squared += float(np.square(error).sum())
            signal += float(np.square(wide - wide.mean()).sum())
            kl += float((np.exp(wide) * -error).sum())
            count += error.size
            rows += 1
    missed = sorted(margin for same, margin in pairs if not same)
    return {
        "agreement": sum(same for same, _ in pairs) / len(pairs),
        "positions": len(pairs),
        "largest_margin_missed": missed[-1] if missed else 0.0,
        "logprob_error": {
            "max": largest,
            "mean": absolute / count,
            "relative_rms": math.sqrt(squared / signal),
            "mean_kl_divergence": kl / rows,
            "rows": rows,
        },
    }


def free(paths: list[list[int]], answers: list[list[int]]) -> dict[str, Any]:
    """How answers that were not led differ from others."""
    first = [first_difference(a, b) for a, b in zip(paths, answers, strict=True)]
    equal = [x == y for a, b in zip(paths, answers, strict=True) for x, y in zip(a, b, strict=True)]
    return {
        "equal_answers": sum(a == b for a, b in zip(paths, answers, strict=True)),
        "answers": len(paths),
        "first_difference": first,
        "tokens_before_first_difference": sum(first) / len(equal),
        "equal_positions": sum(equal) / len(equal),
    }
