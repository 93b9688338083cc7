"""Whether our kernels for quantized products say the same as those of ONNX Runtime, on a real model.

    python -m benchmarks.offline.agreement FOLDER [--prompts 32] [--new 128] [--control slot] [--exact] [--json FILE]

Greedy answers to 32 requests in plain words, 128 tokens each, EOS ignored, with backend ort, which is the reference,
and with backend native:

- given the same history (native is led along the reference's answers): at how many positions its own first choice is
  the reference's, and how far its log-probabilities are (over whole rows, every --row-stride positions);
- running free: how many answers are equal throughout, where the others differ first;
- perplexity of fixed texts (`texts.py`, or --text FILE), one token after the other.

Both round activations to int8 where the model allows it, so the smallest difference of a sum can change how the next
layer rounds, and grows. The control shows how much: backend ort again, with a decoder whose attention sums in another
order. With --exact one more contestant is ONNX Runtime without rounding (accuracy_level 1), and all are compared with
it.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx

from benchmarks.harness import environment, report
from benchmarks.offline.led import Leader, free, lead, run, same_history
from benchmarks.offline.ours import facts, greedy, open_llm, option_parser
from benchmarks.offline.prompts import prompt_ids
from benchmarks.offline.texts import TEXTS
from onnx_genai import LLM

EXACT, CONTROL = "exact", "control"


def main() -> None:
    options = _options()
    texts = list(TEXTS) if options.text is None else [options.text.read_text(encoding="utf-8")]
    record: dict[str, Any] = {"environment": environment.capture(sys.argv), "folder": options.folder.name}
    names = [*([EXACT] if options.exact else []), "ort", "native", *([CONTROL] if options.control != "none" else [])]
    results: dict[str, Any] = {}
    led: dict[str, list[Leader]] = {}
    with _folders(options) as folders:
        for name in names:
            with _open(options, folders.get(name, options.folder), name) as llm:
                prompts = prompt_ids(llm, options.prompts)
                # All are led along the answers of the first: histories must be equal to be compared.
                path = [leader.choices for leader in led[names[0]]] if led else None
                led[name] = lead(llm, prompts, path, options.new, options.row_stride)
                answers = [list(result.token_ids) for result in llm.generate(prompts, greedy(options.new))]
                results[name] = {
                    "facts": facts(llm),
                    "answers": answers,
                    "perplexity": _perplexity(llm, texts, options.max_text_tokens),
                }
            print(f"{name}: ran", file=sys.stderr, flush=True)
    others = [(a, b) for a in names[: 2 if options.exact else 1] for b in names[names.index(a) + 1 :]]
    record["pairs"] = [_pair(a, b, led, results) for a, b in others]
    for result in results.values():
        del result["answers"]
    record["backends"] = results
    record["load_average_after"] = os.getloadavg()
    print(_table(record["pairs"]))
    if options.json:
        report.write(options.json, record)


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--row-stride", type=int, default=8, help="whole rows are compared at every so many positions")
    parser.add_argument("--text", type=Path, help="file whose perplexity is compared, instead of texts.py")
    parser.add_argument("--max-text-tokens", type=int, default=2000, help="of each text")
    parser.add_argument("--control", choices=("slot", "copy", "none"), default="slot", help="decoder of the control")
    parser.add_argument("--exact", action="store_true", help="also compare with ONNX Runtime without int8 activations")
    parser.add_argument("--max-num-seqs", type=int, default=16)
    options = parser.parse_args()
    if min(options.prompts, options.new, options.row_stride, options.max_text_tokens) < 1:
        parser.error("--prompts, --new, --row-stride and --max-text-tokens are >= 1")
    return options


@contextmanager
def _folders(options: argparse.Namespace) -> Iterator[dict[str, Path]]:
    """A copy of the package without rounding of activations, if it is wanted; its weights are the same files."""
    if not options.exact:
        yield {}
        return
    with tempfile.TemporaryDirectory(dir=options.folder.resolve().parent) as made:
        folder = Path(made) / options.folder.name
        shutil.copytree(options.folder, folder, copy_function=_link)
        for path in folder.glob("*.onnx"):
            model = onnx.load(path, load_external_data=False)
            for node in model.graph.node:
                for attribute in node.attribute:
                    if node.op_type == "MatMulNBits" and attribute.name == "accuracy_level":
                        attribute.i = 1
            path.unlink()
            onnx.save(model, path)
        yield {EXACT: folder}


def _link(source: str, target: str) -> None:
    os.link(os.path.realpath(source), target)


def _open(options: argparse.Namespace, folder: Path, name: str) -> LLM:
    return open_llm(
        folder,
        threads=options.threads,
        max_num_seqs=options.max_num_seqs,
        backend="native" if name == "native" else "ort",
        decoder=options.control if name == CONTROL else None,
        **options.our_options,
    )


def _perplexity(llm: LLM, texts: list[str], limit: int) -> dict[str, float]:
    """Of all tokens of the texts but the first of each."""
    tokens = [llm.tokenizer.encode(text)[:limit] for text in texts]
    leaders = [Leader(1, ids[1:], score=True) for ids in tokens]
    run(llm, [ids[:1] for ids in tokens], leaders, [len(ids) - 1 for ids in tokens])
    scores = [score for leader in leaders for score in leader.scores]
    return {"perplexity": math.exp(-sum(scores) / len(scores)), "tokens": len(scores)}


def _pair(a: str, b: str, led: dict[str, list[Leader]], results: dict[str, Any]) -> dict[str, Any]:
    ratio = results[b]["perplexity"]["perplexity"] / results[a]["perplexity"]["perplexity"]
    return {
        "reference": a,
        "other": b,
        "same_history": same_history(led[a], led[b]),
        "free": free(results[a]["answers"], results[b]["answers"]),
        "perplexity": [results[name]["perplexity"]["perplexity"] for name in (a, b)],
        "perplexity_ratio": ratio,
    }


def _table(pairs: list[dict[str, Any]]) -> str:
    rows: list[list[object]] = []
    for pair in pairs:
        same, own = pair["same_history"], pair["free"]
        row: list[object] = [f"{pair['other']} / {pair['reference']}", f"{100 * same['agreement']:.2f} %"]
        row += [f"{same['largest_margin_missed']:.3f}", f"{own['equal_answers']}/{own['answers']}"]
        row += [f"{100 * own['tokens_before_first_difference']:.1f} %"]
        row += [f"{same['logprob_error'][key]:.2g}" for key in ("max", "mean", "relative_rms", "mean_kl_divergence")]
        row += [f"{pair['perplexity'][1]:.4f}", f"{100 * (pair['perplexity_ratio'] - 1):+.3f} %"]
        rows.append(row)
    header = [
        "",
        "same choice",
        "margin missed",
        "equal answers",
        "until differs",
        "max error",
        "mean",
        "rel rms",
        "KL",
    ]
    return report.table([*header, "perplexity", "against reference"], rows)


if __name__ == "__main__":
    main()
