"""Writes sampling.txt and sampling.json: rows of logits before and after each logits processor.

Usage: python make_sampling.py [--output-dir FOLDER]

Both files hold the same cases; the text file is for the C++ tests, whose only parser is `operator>>`:

    case NAME SOURCE            source: transformers or numpy
    arg KEY VALUE...            fields of SamplingParams, or eos_ids
    tokens NUM_PROMPT ID...     prompt, then generated ids
    in LOGIT...                 float32; x is -inf
    out LOGIT...                after stage 1 for penalties and bans, else after stage 2
    take ID                     mirostat only: the token that was taken; another in/out may follow
    end

Where transformers has a processor, its class computes the row in float32. The others (frequency, presence, DRY, top-a,
mirostat, XTC, ties at the border of top-p) are computed here in float64 from their published definitions. A random row
whose outcome would change if a limit moved by 1e-5 is drawn again: such a row tests rounding, not the definition.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers.generation import logits_process as hf

Row = npt.NDArray[np.float32]
Args = dict[str, Sequence[float]]
SIZES = (1, 2, 3, 7, 24, 70)
NUDGE = 1e-5


@dataclass
class Step:
    logits: Row
    expected: Row
    taken: int | None = None


@dataclass
class Case:
    name: str
    source: str
    args: Args
    steps: list[Step]
    tokens: list[int] = field(default_factory=lambda: [0])
    num_prompt_tokens: int = 1


def random_row(rng: np.random.Generator, size: int, kind: str) -> Row:
    """A row of one kind: plain, ties (many equal values), holes (some -inf), peaked, equal."""
    row = rng.normal(0.0, 2.0, size).round(3)
    if kind == "ties":
        row = (row * 1.0).round(0)
    elif kind == "holes":
        row[rng.random(size) < 0.3] = -np.inf
        row[rng.integers(size)] = 1.0
    elif kind == "peaked":
        row[rng.integers(size)] += 9.0
    elif kind == "equal":
        row[:] = 1.5
    return row.astype(np.float32)


def run_hf(processors: list[hf.LogitsProcessor], tokens: list[int], logits: Row) -> Row:
    scores = torch.from_numpy(logits.copy())[None]
    ids = torch.tensor([tokens], dtype=torch.int64)
    for processor in processors:
        scores = processor(ids, scores)
    return scores[0].numpy().astype(np.float32)


# ---- float64 definitions of the filters; each returns which tokens stay ----


def softmax(logits: Row) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    weights = np.exp(wide - wide.max())
    return weights / weights.sum()


def ranking(p: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    return np.lexsort((np.arange(p.size), -p))


def keep_top_p(logits: Row, top_p: float) -> npt.NDArray[np.bool_]:
    p = softmax(logits)
    order = ranking(p)
    before = np.concatenate(([0.0], np.cumsum(p[order])[:-1]))
    keep = np.zeros(p.size, bool)
    keep[order[before < top_p]] = True
    return keep & (p > 0)


def keep_min_p(logits: Row, min_p: float) -> npt.NDArray[np.bool_]:
    p = softmax(logits)
    return (p >= min_p * p.max()) & (p > 0)


def keep_top_a(logits: Row, top_a: float) -> npt.NDArray[np.bool_]:
    p = softmax(logits)
    return (p >= top_a * p.max() ** 2) & (p > 0)


def keep_typical(logits: Row, typical_p: float) -> npt.NDArray[np.bool_]:
    p = softmax(logits)
    alive = p > 0
    surprise = -np.log(p, where=alive, out=np.full(p.size, np.inf))
    entropy = float((p[alive] * surprise[alive]).sum())
    distance = np.abs(surprise - entropy).round(9)
    order = np.argsort(distance, kind="stable")
    reached = np.flatnonzero(np.cumsum(p[order]) >= typical_p)
    last = distance[order[reached[0]]] if reached.size else np.inf
    return alive & (distance <= last)


def keep_surprise(logits: Row, mu: float) -> npt.NDArray[np.bool_]:
    p = softmax(logits)
    keep = -np.log2(np.maximum(p, 1e-300)) <= mu
    if not keep.any():
        keep[ranking(p)[0]] = True
    return keep & (p > 0)


def keep_xtc(logits: Row, threshold: float) -> npt.NDArray[np.bool_]:
    p = softmax(logits)
    order = ranking(p)
    top = [i for i in order if p[i] >= threshold]
    keep = p > 0
    keep[top[:-1]] = False
    return keep


FILTERS: dict[str, tuple[Callable[[Row, float], npt.NDArray[np.bool_]], list[float]]] = {
    "top_p": (keep_top_p, [0.05, 0.3, 0.8, 0.95, 0.999]),
    "min_p": (keep_min_p, [0.02, 0.1, 0.5, 1.0]),
    "top_a": (keep_top_a, [0.05, 0.3, 1.0]),
    "typical_p": (keep_typical, [0.2, 0.6, 0.95]),
    "xtc_threshold": (keep_xtc, [0.05, 0.1, 0.3]),
}
HF_FILTERS: dict[str, Callable[[float], hf.LogitsProcessor]] = {
    "top_p": hf.TopPLogitsWarper,
    "min_p": hf.MinPLogitsWarper,
    "typical_p": hf.TypicalLogitsWarper,
}


def filter_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for name, (keep, values) in FILTERS.items():
        for value in values:
            for size in SIZES:
                kind = str(rng.choice(["plain", "holes", "peaked"]))
                cases.append(clear_filter_case(rng, name, value, size, kind))
            for kind in ("ties", "equal"):
                # Ties at the border: transformers sorts unstably, so the order of equal ones is taken from here.
                row = random_row(rng, 24, kind)
                cases.append(filter_case(f"{name}_{kind}", "numpy", {name: [value]}, row, keep(row, value)))
    return cases


def clear_filter_case(rng: np.random.Generator, name: str, value: float, size: int, kind: str) -> Case:
    """A case whose outcome does not hang on rounding, checked by transformers where it has the filter."""
    keep = FILTERS[name][0]
    while True:
        row = random_row(rng, size, kind)
        expected = keep(row, value)
        nudges = () if value == 1.0 else (value * (1 - NUDGE), value * (1 + NUDGE))
        if any((keep(row, nudged) != expected).any() for nudged in nudges):
            continue
        source = "numpy"
        if name in HF_FILTERS:
            source = "transformers"
            theirs = run_hf([HF_FILTERS[name](value)], [0], row)
            if (np.isfinite(theirs) != expected).any():
                raise AssertionError(f"{name}={value}: transformers disagrees with the definition on {row}")
        return filter_case(f"{name}_{kind}", source, {name: [value]}, row, expected)


def filter_case(name: str, source: str, args: Args, row: Row, keep: npt.NDArray[np.bool_]) -> Case:
    if "xtc_threshold" in args:
        args = {**args, "xtc_probability": [1.0]}
    expected = np.where(keep, row, np.float32(-np.inf))
    return Case(name, source, args, [Step(row, expected)])


def temperature_and_top_k_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for size in SIZES:
        for kind in ("plain", "ties", "holes"):
            row = random_row(rng, size, kind)
            temperature = float(rng.choice([0.1, 0.7, 1.5, 3.0]))
            out = run_hf([hf.TemperatureLogitsWarper(temperature)], [0], row)
            cases.append(Case(f"temperature_{kind}", "transformers", {"temperature": [temperature]}, [Step(row, out)]))
            for k in (1, 2, 5, 50, 1000):
                out = run_hf([hf.TopKLogitsWarper(k)], [0], row)
                cases.append(Case(f"top_k_{kind}", "transformers", {"top_k": [k]}, [Step(row, out)]))
    return cases


def mirostat_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for size, tau, eta in ((1, 5.0, 0.1), (3, 0.5, 1.0), (24, 1.0, 0.3), (70, 2.0, 0.5), (70, 0.2, 1.0)):
        mu = 2.0 * tau
        steps: list[Step] = []
        while len(steps) < 5:
            row = random_row(rng, size, str(rng.choice(["plain", "holes", "peaked"])))
            keep = keep_surprise(row, mu)
            if any((keep_surprise(row, mu + nudge) != keep).any() for nudge in (-NUDGE, NUDGE)):
                continue
            expected = np.where(keep, row, np.float32(-np.inf))
            taken = int(rng.choice(np.flatnonzero(keep)))
            mu -= eta * (-math.log2(softmax(expected)[taken]) - tau)
            steps.append(Step(row, expected, taken))
        args: Args = {"mirostat": [2.0], "mirostat_tau": [tau], "mirostat_eta": [eta]}
        cases.append(Case("mirostat", "numpy", args, steps))
    return cases


# ---- stage 1: penalties and bans ----


def random_history(rng: np.random.Generator, size: int, length: int) -> tuple[list[int], int]:
    tokens = rng.integers(0, size, length).tolist()
    return tokens, int(rng.integers(1, length + 1))


def penalty_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for size in SIZES:
        for penalty in (0.5, 1.3, 2.0):
            row = random_row(rng, size, str(rng.choice(["plain", "holes"])))
            tokens, num_prompt = random_history(rng, size, 12)
            out = run_hf([hf.RepetitionPenaltyLogitsProcessor(penalty)], tokens, row)
            args: Args = {"repetition_penalty": [penalty]}
            cases.append(Case("repetition", "transformers", args, [Step(row, out)], tokens, num_prompt))
        for frequency, presence in ((0.5, 0.0), (0.0, 1.25), (-1.0, 2.0)):
            row = random_row(rng, size, "holes")
            tokens, num_prompt = random_history(rng, size, 12)
            counts = np.bincount(tokens[num_prompt:], minlength=size)
            out = (row.astype(np.float64) - frequency * counts - presence * (counts > 0)).astype(np.float32)
            args = {"frequency_penalty": [frequency], "presence_penalty": [presence]}
            cases.append(Case("frequency_presence", "numpy", args, [Step(row, out)], tokens, num_prompt))
    return cases


def dry_penalties(tokens: list[int], breakers: list[int], allowed: int) -> dict[int, int]:
    """Longest match before each token that follows one, by comparing every place backwards."""
    longest: dict[int, int] = {}
    last = len(tokens) - 1
    for place in range(last):
        length = 0
        while length <= place and tokens[place - length] == tokens[last - length]:
            if tokens[last - length] in breakers:
                break
            length += 1
        follower = tokens[place + 1]
        if length >= allowed:
            longest[follower] = max(length, longest.get(follower, 0))
    return longest


def dry_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for number in range(24):
        size = int(rng.choice([2, 3, 7, 24]))
        period = int(rng.integers(1, 9))
        length = int(rng.integers(1, 40))
        pattern = rng.integers(0, size, period).tolist()
        tokens = [pattern[i % period] if rng.random() < 0.9 else int(rng.integers(size)) for i in range(length)]
        breakers = rng.integers(0, size, int(rng.integers(0, 2))).tolist()
        allowed = int(rng.integers(1, 4))
        multiplier, base = float(rng.choice([0.5, 0.8, 2.0])), float(rng.choice([1.0, 1.25, 1.75]))
        row = random_row(rng, size, "plain" if number % 2 else "holes")
        out = row.astype(np.float64)
        for token, match in dry_penalties(tokens, breakers, allowed).items():
            out[token] -= float(np.float32(multiplier)) * float(np.float32(base)) ** (match - allowed)
        args: Args = {
            "dry_multiplier": [multiplier],
            "dry_base": [base],
            "dry_allowed_length": [allowed],
            "dry_sequence_breakers": breakers,
        }
        cases.append(Case("dry", "numpy", args, [Step(row, out.astype(np.float32))], tokens, max(1, length // 2)))
    return cases


def ban_cases(rng: np.random.Generator) -> list[Case]:
    cases = []
    for size in (3, 7, 24):
        for ngram in (1, 2, 3, 4):
            tokens, num_prompt = random_history(rng, min(size, 5), int(rng.integers(1, 30)))
            row = random_row(rng, size, "holes")
            out = run_hf([hf.NoRepeatNGramLogitsProcessor(ngram)], tokens, row)
            args: Args = {"no_repeat_ngram_size": [ngram]}
            cases.append(Case("no_repeat_ngram", "transformers", args, [Step(row, out)], tokens, num_prompt))
        for _ in range(3):
            tokens, num_prompt = random_history(rng, size, 6)
            words = [[*tokens[-2:], 0], [*tokens[-1:], 1], [size - 1], [1, 0, 1, 0, 1, 0, 1, 0]]
            row = random_row(rng, size, "plain")
            out = run_hf([hf.NoBadWordsLogitsProcessor(words)], tokens, row)
            args = {f"bad_words_{i}": word for i, word in enumerate(words)}
            cases.append(Case("bad_words", "transformers", args, [Step(row, out)], tokens, num_prompt))
        cases += simple_ban_cases(rng, size)
    return cases


def simple_ban_cases(rng: np.random.Generator, size: int) -> list[Case]:
    cases = []
    for num_generated in (0, 1, 3):
        tokens = rng.integers(0, size, 2 + num_generated).tolist()
        banned = sorted({0, size // 2})
        processors: dict[str, tuple[hf.LogitsProcessor, Args]] = {
            "suppress": (hf.SuppressTokensLogitsProcessor(banned), {"suppress_tokens": banned}),
            "begin_suppress": (
                hf.SuppressTokensAtBeginLogitsProcessor(banned, 2),
                {"begin_suppress_tokens": banned},
            ),
            "min_new_tokens": (
                hf.MinNewTokensLengthLogitsProcessor(2, 3, banned),
                {"min_new_tokens": [3], "eos_ids": banned[:1], "stop_token_ids": banned[1:]},
            ),
            "logit_bias": (
                hf.SequenceBiasLogitsProcessor([[[0], 1.5], [[size - 1], -math.inf]]),
                {"logit_bias_ids": [0, size - 1], "logit_bias_values": [1.5, -math.inf]},
            ),
        }
        for name, (processor, args) in processors.items():
            row = random_row(rng, size, "holes")
            out = run_hf([processor], tokens, row)
            cases.append(Case(name, "transformers", args, [Step(row, out)], tokens, 2))
    tokens = [1]
    row = random_row(rng, size, "holes")
    out = run_hf([hf.ForcedBOSTokenLogitsProcessor(2)], tokens, row)
    args = {"forced_positions": [0], "forced_ids": [2]}
    cases.append(Case("forced", "transformers", args, [Step(row, out)], tokens, 1))
    return cases


def chain_cases(rng: np.random.Generator) -> list[Case]:
    """Several processors at once, in transformers' order, which ours contains."""
    cases: list[Case] = []
    while len(cases) < 12:
        size = int(rng.choice([7, 24, 70]))
        tokens, num_prompt = random_history(rng, size, 20)
        row = random_row(rng, size, str(rng.choice(["plain", "peaked", "holes"])))
        k, temperature = int(rng.integers(4, 20)), float(rng.choice([0.7, 1.3]))
        args: Args = {
            "repetition_penalty": [1.2],
            "no_repeat_ngram_size": [2],
            "temperature": [temperature],
            "top_k": [k],
        }
        chain = [
            hf.RepetitionPenaltyLogitsProcessor(1.2),
            hf.NoRepeatNGramLogitsProcessor(2),
            hf.TemperatureLogitsWarper(temperature),
            hf.TopKLogitsWarper(k),
        ]
        outcomes = []
        for factor in (1.0, 1 - NUDGE, 1 + NUDGE):
            tail = [hf.TopPLogitsWarper(0.9 * factor), hf.MinPLogitsWarper(0.05 * factor)]
            outcomes.append(run_hf([*chain, *tail, hf.TypicalLogitsWarper(0.8 * factor)], tokens, row))
        args |= {"top_p": [0.9], "min_p": [0.05], "typical_p": [0.8]}
        if all((np.isfinite(outcome) == np.isfinite(outcomes[0])).all() for outcome in outcomes):
            cases.append(Case("chain", "transformers", args, [Step(row, outcomes[0])], tokens, num_prompt))
    return cases


def text_of(value: float) -> str:
    if value == -math.inf:
        return "x"
    if float(value).is_integer():
        return str(int(value))
    return str(value)


def write_text(cases: list[Case], path: Path) -> None:
    lines = []
    for case in cases:
        lines.append(f"case {case.name} {case.source}")
        lines += [" ".join(["arg", key, *map(text_of, values)]) for key, values in case.args.items()]
        lines.append(" ".join(["tokens", str(case.num_prompt_tokens), *map(str, case.tokens)]))
        for step in case.steps:
            lines.append(" ".join(["in", *map(text_of, step.logits)]))
            lines.append(" ".join(["out", *map(text_of, step.expected)]))
            if step.taken is not None:
                lines.append(f"take {step.taken}")
        lines.append("end")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_json(cases: list[Case], path: Path) -> None:
    def row(values: Row) -> list[float | None]:
        return [None if value == -math.inf else float(str(value)) for value in values]

    data = [
        {
            "name": case.name,
            "source": case.source,
            "args": {key: [None if v == -math.inf else v for v in values] for key, values in case.args.items()},
            "tokens": case.tokens,
            "num_prompt_tokens": case.num_prompt_tokens,
            "steps": [
                {"logits": row(step.logits), "expected": row(step.expected), "taken": step.taken} for step in case.steps
            ],
        }
        for case in cases
    ]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in data)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output-dir", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().output_dir
    rng = np.random.default_rng(20261129)
    makers = (
        temperature_and_top_k_cases,
        filter_cases,
        mirostat_cases,
        penalty_cases,
        dry_cases,
        ban_cases,
        chain_cases,
    )
    cases = [case for maker in makers for case in maker(rng)]
    write_text(cases, folder / "sampling.txt")
    write_json(cases, folder / "sampling.json")
    print(f"{len(cases)} cases")


if __name__ == "__main__":
    main()
