"""``onnx-genai embed``: vectors of texts, or texts in the order in which they fit a query."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import numpy.typing as npt

from onnx_genai.cli import console
from onnx_genai.cli.models import MODEL, fetched_model
from onnx_genai.cli.options import encoder_options
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.pipelines import Embedder

__all__ = ["embed"]

_CHUNK = 512
"""Texts that are embedded before their lines are written."""
_SHOWN_VALUES = 4
_SHOWN_TEXT = 40
_MATRIX = 8
"""Texts up to which all cosines are shown."""


@click.command()
@click.argument("model", type=MODEL)
@click.argument("texts", metavar="[TEXT]...", nargs=-1)
@click.option("--file", type=click.Path(path_type=Path, allow_dash=True), help="File of texts, one a line; - is stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a line: index, tokens, embedding.")
@click.option(
    "--npy", type=click.Path(path_type=Path, allow_dash=True), help="Write a NumPy file of float32; - is stdout."
)
@click.option("--query", metavar="TEXT", help="Print the texts in the order in which they fit this one, with scores.")
@click.option("--top-n", type=click.IntRange(1), metavar="N", help="With --query: the best N only.")
@click.option("--dimensions", type=click.IntRange(1), metavar="D", help="Keep the first D values of each vector.")
@click.option(
    "--prompt-name", metavar="NAME", help="The package's prompt to put before each text: query, document, ..."
)
@click.option("--no-normalize", is_flag=True, help="Leave the length of vectors as the model made it.")
@click.option("--truncate", is_flag=True, help="Cut texts that are too long; else they are an error.")
@encoder_options
def embed(model: str, texts: tuple[str, ...], **values: Any) -> None:
    """Print vectors of TEXTs, made by the embedding model MODEL.

    Without --json and --npy a summary for eyes is printed: the first values of each vector, and how alike the texts are
    (cosines). Texts that are piped in count one a line.
    """
    _check_usage(values)
    given = _given_texts(texts, values["file"])
    path = fetched_model(model, variant=values["variant"], offline=values["offline"])

    def load() -> Embedder:
        from onnx_genai.pipelines import Embedder

        return Embedder(
            path,
            ep=values["ep"],
            ep_strict=values["ep_strict"],
            variant=values["variant"],
            threads=values["threads"],
        )

    with console.interruptible(load) as embedder:
        if values["query"] is not None:
            _print_ranking(embedder, given, values)
        elif values["as_json"]:
            _print_json(embedder, given, values)
        elif values["npy"] is not None:
            _write_npy(values["npy"], np.concatenate([part for _, _, part in _vectors(embedder, given, values)]))
        else:
            _print_summary(embedder, given, values)


def _check_usage(values: dict[str, Any]) -> None:
    if values["as_json"] and values["npy"] is not None:
        raise click.UsageError("--json and --npy exclude each other; give one of them")
    if values["npy"] is not None:
        _check_npy(values["npy"])
    if values["query"] is None:
        if values["top_n"] is not None:
            raise click.UsageError("--top-n belongs to --query")
        return
    for name in ("npy", "dimensions", "prompt_name", "no_normalize"):
        if values[name]:
            raise click.UsageError(f"--query prints texts and scores; drop --{name.replace('_', '-')}")


def _check_npy(path: Path) -> None:
    """Found now, and not after the vectors that took minutes."""
    if str(path) == "-":
        if sys.stdout.isatty():
            raise click.UsageError(
                "--npy - writes bytes that no terminal shows; redirect standard output or name a file"
            )
    elif path.is_dir() or not path.absolute().parent.is_dir():
        raise click.UsageError(f"--npy is {str(path)!r}; name a file in a folder that exists")


def _given_texts(texts: Sequence[str], file: Path | None) -> list[str]:
    """Arguments, then the lines of the file; piped lines if there is neither."""
    found = list(texts)
    if file is not None and str(file) != "-":
        found += _lines(console.read_file(file))
    elif file is not None or (not found and console.has_piped_stdin()):
        found += _lines(console.read_stdin())
    if not found:
        raise click.UsageError("no text was given; write it behind MODEL, or use --file, or pipe it in")
    return found


def _lines(text: str) -> list[str]:
    """One text a line. ``str.splitlines`` also cuts at characters that stand inside of a text, such as U+2028."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []


def _vectors(
    embedder: Embedder, texts: Sequence[str], values: dict[str, Any]
) -> Iterator[tuple[int, Sequence[int], npt.NDArray[np.float32]]]:
    """Place of the first text, numbers of tokens and vectors, some texts at a time."""
    for start in range(0, len(texts), _CHUNK):
        part = texts[start : start + _CHUNK]
        prepared = embedder.prepare(part, prompt_name=values["prompt_name"], truncate=values["truncate"])
        vectors = embedder.embed_prepared(
            prepared, normalize=False if values["no_normalize"] else None, dimensions=values["dimensions"]
        )
        yield start, [len(text.ids) for text in prepared.texts], vectors


def _print_json(embedder: Embedder, texts: Sequence[str], values: dict[str, Any]) -> None:
    for start, tokens, vectors in _vectors(embedder, texts, values):
        for place, (count, vector) in enumerate(zip(tokens, vectors, strict=True), start):
            console.write(json.dumps({"index": place, "tokens": count, "embedding": vector.tolist()}) + "\n")


def _write_npy(path: Path, vectors: npt.NDArray[np.float32]) -> None:
    if str(path) != "-":
        with path.open("wb") as file:
            np.save(file, vectors)
        return
    buffer = io.BytesIO()
    np.save(buffer, vectors)
    sys.stdout.buffer.write(buffer.getvalue())


def _print_summary(embedder: Embedder, texts: Sequence[str], values: dict[str, Any]) -> None:
    rows, parts = [], []
    for start, tokens, vectors in _vectors(embedder, texts, values):
        parts.append(vectors)
        for place, (count, vector) in enumerate(zip(tokens, vectors, strict=True), start):
            shown = " ".join(f"{value:8.4f}" for value in vector[:_SHOWN_VALUES])
            more = f" ... ({counted(len(vector), 'value')})" if len(vector) > _SHOWN_VALUES else ""
            rows.append((str(place), _short(texts[place]), counted(count, "token"), shown + more))
    console.write(_table(rows))
    if 2 <= len(texts) <= _MATRIX:
        vectors = np.concatenate(parts).astype(np.float64)
        lengths = np.linalg.norm(vectors, axis=1)
        cosines = vectors @ vectors.T / np.maximum(np.outer(lengths, lengths), np.finfo(np.float64).tiny)
        head = ("cosine", *(str(place) for place in range(len(texts))))
        body = [(str(place), *(f"{value:.4f}" for value in row)) for place, row in enumerate(cosines)]
        console.write("\n" + _table([head, *body]))


def _print_ranking(embedder: Embedder, texts: Sequence[str], values: dict[str, Any]) -> None:
    ranked = embedder.rerank(values["query"], texts, top_n=values["top_n"], truncate=values["truncate"])
    for each in ranked:
        if values["as_json"]:
            line = json.dumps({"index": each.index, "score": each.score, "text": each.document}, ensure_ascii=False)
        else:
            line = f"{each.score:.4f}\t{each.index}\t{each.document}"
        console.write(line + "\n")


def _short(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= _SHOWN_TEXT else plain[: _SHOWN_TEXT - 1] + "…"


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Columns of equal width; the last one is as it is."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "".join(f"{line}\n" for line in lines)
