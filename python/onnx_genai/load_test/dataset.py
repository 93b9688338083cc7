"""What the requests of a load say: made up, or read from a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.tokenizer import Tokenizer

__all__ = ["Sample", "jsonl_samples", "open_tokenizer", "random_samples", "sharegpt_samples"]

# Each is one token, with its blank, in the vocabularies of nearly all models that know English.
_WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother area
money story fact month lot right study book eye job word business issue side kind head house service friend father
power hour game line end member law car city community name president team minute idea kid body information back
parent face others level office door health person art war history party result change morning reason research girl
guy moment air teacher force education
"""
_TOKENS_PER_WORD = 1.3
"""Of ordinary English text, where no tokenizer is there to count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One request of a load."""

    prompt: str = ""
    messages: tuple[Mapping[str, Any], ...] | None = None
    """A whole chat instead of ``prompt``."""
    prompt_tokens: int
    """As far as it is known before the server has counted."""
    output_tokens: int
    """Tokens to ask for."""


def open_tokenizer(path: Path) -> Tokenizer:
    """What counts tokens: a ``tokenizer.json``, or that of a folder.

    Raises:
        PackageError: It is none.
        NotFoundError: It is not there.
    """
    return Tokenizer.from_file(path / "tokenizer.json" if path.is_dir() else path)


def random_samples(
    count: int,
    *,
    input_tokens: int,
    output_tokens: int,
    range_ratio: float = 0.0,
    seed: int = 0,
    tokenizer: Tokenizer | None = None,
) -> list[Sample]:
    """Prompts of random words, so that no two begin alike.

    Args:
        count: Prompts.
        input_tokens: Tokens of a prompt. Without a tokenizer that many common words, nearly all of one token each.
        output_tokens: Tokens to ask for.
        range_ratio: Both lengths are drawn from (1 - ratio) to (1 + ratio) times what was asked; 0..1, below 1.
        seed: The same numbers give the same prompts.
        tokenizer: Counts tokens exactly.

    Raises:
        InvalidArgumentError: A length below 1 or a ratio out of its range.
    """
    if min(input_tokens, output_tokens) < 1:
        raise InvalidArgumentError(f"lengths are {input_tokens} and {output_tokens} tokens; allowed: 1 or more")
    if not 0 <= range_ratio < 1:
        raise InvalidArgumentError(f"range ratio is {range_ratio}; allowed: from 0 to below 1")
    words = _WORDS.split()
    draw = random.Random(f"{seed} {input_tokens} {output_tokens}")

    def length(wanted: int) -> int:
        return draw.randint(max(round(wanted * (1 - range_ratio)), 1), max(round(wanted * (1 + range_ratio)), 1))

    samples = []
    for _ in range(count):
        size = length(input_tokens)
        said = draw.choices(words, k=size)
        if tokenizer is not None:
            _fit(said, words, draw, size, tokenizer)
        samples.append(Sample(prompt=" ".join(said), prompt_tokens=size, output_tokens=length(output_tokens)))
    return samples


def jsonl_samples(
    path: Path, count: int, *, output_tokens: int, seed: int = 0, tokenizer: Tokenizer | None = None
) -> list[Sample]:
    """Prompts of a file with one JSON object a line: ``prompt`` or ``messages``, and perhaps ``max_tokens``.

    Raises:
        InvalidArgumentError: A line is no such object; it is named.
    """
    found = []
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        entry = _object(line, f"{path}:{number}")
        prompt, messages = entry.get("prompt"), entry.get("messages")
        wanted = entry.get("max_tokens", entry.get("output_tokens", output_tokens))
        if not (isinstance(prompt, str) and prompt) and not (isinstance(messages, list) and messages):
            raise InvalidArgumentError(f"{path}:{number} has no prompt; write a text 'prompt' or a list 'messages'")
        if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
            raise InvalidArgumentError(f"{path}:{number}: max_tokens is {wanted!r}; allowed: 1 or more")
        text = prompt if isinstance(prompt, str) else json.dumps(messages)
        found.append(
            Sample(
                prompt=prompt if isinstance(prompt, str) else "",
                messages=tuple(messages) if isinstance(messages, list) else None,
                prompt_tokens=_count(text, tokenizer),
                output_tokens=wanted,
            )
        )
    return _chosen(found, count, seed, path)


def sharegpt_samples(
    path: Path, count: int, *, output_tokens: int | None = None, seed: int = 0, tokenizer: Tokenizer | None = None
) -> list[Sample]:
    """First turns of a JSON file of conversations: ``[{"conversations": [{"from", "value"}, ...]}, ...]``.

    Args:
        path: The file.
        count: Prompts.
        output_tokens: Tokens to ask for; None asks for as many as the answer in the file has.
        seed: Of the order.
        tokenizer: Counts tokens exactly; else they are taken from the number of words.

    Raises:
        InvalidArgumentError: The file is not of that form.
    """
    try:
        entries = json.loads(_read(path))
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"{path} is not JSON: {error}; a file of one object a line is a jsonl") from error
    if not isinstance(entries, list):
        raise InvalidArgumentError(f"{path} holds a JSON {type(entries).__name__}; allowed: a list of conversations")
    found = []
    for entry in entries:
        turns = entry.get("conversations", entry.get("conversation")) if isinstance(entry, dict) else None
        if not isinstance(turns, list) or len(turns) < 2:
            continue
        texts = [turn.get("value", turn.get("content")) if isinstance(turn, dict) else None for turn in turns[:2]]
        if not all(isinstance(text, str) and text for text in texts):
            continue
        prompt, answer = (str(text) for text in texts)
        wanted = output_tokens if output_tokens is not None else _count(answer, tokenizer)
        found.append(Sample(prompt=prompt, prompt_tokens=_count(prompt, tokenizer), output_tokens=max(wanted, 1)))
    return _chosen(found, count, seed, path)


def _fit(said: list[str], words: list[str], draw: random.Random, size: int, tokenizer: Tokenizer) -> None:
    """Cuts or extends what is said until the tokenizer counts ``size``, or as near as whole words come."""
    for _ in range(16):
        counted = len(tokenizer.encode(" ".join(said), add_special_tokens=False))
        change = round((size - counted) * len(said) / counted)
        if change > 0:
            said += draw.choices(words, k=change)
        elif change < 0 and len(said) > 1:
            del said[max(len(said) + change, 1) :]
        else:
            return


def _count(text: str, tokenizer: Tokenizer | None) -> int:
    if tokenizer is None:
        return max(round(_TOKENS_PER_WORD * len(text.split())), 1)
    return len(tokenizer.encode(text, add_special_tokens=False))


def _chosen(found: list[Sample], count: int, seed: int, path: Path) -> list[Sample]:
    """``count`` of them in random order; again from the start when there are not as many."""
    if not found:
        raise InvalidArgumentError(f"{path} has no prompt that can be used")
    random.Random(seed).shuffle(found)

    def endless() -> Iterator[Sample]:
        while True:
            yield from found

    source = endless()
    return [next(source) for _ in range(count)]


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidArgumentError(f"{place} is not JSON: {error.msg}; write one object a line") from error
    if not isinstance(entry, dict):
        raise InvalidArgumentError(f"{place} is a JSON {type(entry).__name__}; write one object a line")
    return entry


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not UTF-8 text (byte {error.start})") from error
