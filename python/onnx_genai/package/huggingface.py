"""Reads the files that come with a Hugging Face model: config, generation_config, tokenizer_config, templates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_genai.package.fields import Fields
from onnx_genai.package.files import PackageFolder, read_bytes_head
from onnx_genai.package.generation import defaults_from
from onnx_genai.package.model import ChatTemplateSource, ContextLimit, GenerationDefaults, KvHints
from onnx_genai.package.templates import read_chat_template, read_special_tokens

__all__ = ["HfFiles", "find_token_id", "find_usual_ends", "load"]

# The first of these keys that config.json has gives the context length.
_LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_target_positions", "max_seq_len", "seq_length", "n_ctx")
_FALLBACK_EOS = ("<|endoftext|>", "</s>", "<eos>", "[EOS]")
"""Looked up in the vocabulary when no file names an end-of-sequence token: the first one that is there."""
_FALLBACK_TURN_END = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>", "<|end_of_text|>", "<|end_of_turn|>")
"""Then also these, where they are special tokens: the ends of a chat turn."""


_HEAD_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFiles:
    """Facts from the companion files; parts that they leave out are empty."""

    model_type: str | None = None
    is_encoder_decoder: bool = False
    kv: KvHints = field(default_factory=KvHints)
    context_limits: tuple[ContextLimit, ...] = ()
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Of generation_config.json, else of config.json (the former replaces the latter)."""
    eos_source: str = ""
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    decoder_start_token_id: int | None = None
    forced_bos_token_id: int | None = None
    forced_bos_source: str = ""
    """File and key."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    chat_template: ChatTemplateSource = field(default_factory=ChatTemplateSource)
    generation: GenerationDefaults | None = None
    warnings: tuple[str, ...] = ()


def load(folder: PackageFolder) -> HfFiles:
    """Reads those of the companion files that the folder has.

    Raises:
        PackageError: A file is broken or a key has the wrong type.
    """
    warnings: list[str] = []
    config = _fields(folder, "config.json")
    generation = _fields(folder, "generation_config.json")
    tokenizer = _fields(folder, "tokenizer_config.json")
    inner = config.sub("text_config") if config is not None else None
    eos: tuple[int, ...] = ()
    source = forced_source = ""
    bos = pad = start = None
    forced: int | None = None
    for fields, name in ((generation, "generation_config.json"), (config, "config.json"), (inner, "config.json")):
        if fields is None:
            continue
        if not eos and (eos := fields.ids("eos_token_id")):
            source = f"{name} eos_token_id"
        bos = bos if bos is not None else fields.one_id("bos_token_id")
        pad = pad if pad is not None else fields.one_id("pad_token_id")
        start = start if start is not None else fields.one_id("decoder_start_token_id")
        if forced is None and type(value := fields.raw("forced_bos_token_id")) is int:
            forced, forced_source = value, fields.where("forced_bos_token_id")
    defaults = None
    if generation is not None:
        defaults = defaults_from(generation, folder.root / "generation_config.json", warnings, report_unknown=False)
    return HfFiles(
        model_type=config.text("model_type") if config is not None else None,
        is_encoder_decoder=bool(config is not None and config.flag("is_encoder_decoder")),
        kv=_kv_hints(config, inner),
        context_limits=_limits(config, inner),
        vocab_size=_first_whole((config, inner), ("vocab_size",)),
        eos_token_ids=eos,
        eos_source=source,
        bos_token_id=bos,
        pad_token_id=pad,
        decoder_start_token_id=start,
        forced_bos_token_id=forced,
        forced_bos_source=forced_source,
        special_tokens=read_special_tokens(tokenizer, _fields(folder, "special_tokens_map.json")),
        chat_template=read_chat_template(folder, tokenizer, warnings),
        generation=defaults,
        warnings=tuple(warnings),
    )


def find_token_id(folder: PackageFolder, tokenizer_path: Path | None, token: str) -> int | None:
    """Returns the id of a special token given as text, or None.

    Cheap places are asked first: tokenizer.json may have tens of megabytes.
    """
    config = folder.json("tokenizer_config.json")
    added = config.get("added_tokens_decoder") if config is not None else None
    if isinstance(added, dict):
        for key, entry in added.items():
            if isinstance(entry, dict) and entry.get("content") == token and re.fullmatch("[0-9]{1,9}", key):
                return int(key)
    if tokenizer_path is None:
        return None
    head = _added_tokens_at_head(folder, tokenizer_path)
    if token in head:
        return head[token]
    return _vocabulary(folder.json_file(tokenizer_path)).get(token)


def find_usual_ends(folder: PackageFolder, tokenizer_path: Path | None) -> tuple[int, ...]:
    """Returns the ids of the usual end tokens that the vocabulary has, for packages that name none."""
    if tokenizer_path is None:
        return ()
    tokenizer = folder.json_file(tokenizer_path)
    vocabulary = _vocabulary(tokenizer)
    found = [vocabulary[text] for text in _FALLBACK_EOS if text in vocabulary][:1]
    special = _added_tokens(tokenizer.get("added_tokens"), special_only=True)
    found += [special[text] for text in _FALLBACK_TURN_END if text in special]
    return tuple(dict.fromkeys(found))


def _added_tokens_at_head(folder: PackageFolder, path: Path) -> dict[str, int]:
    """Added tokens read from the start of tokenizer.json, where they usually stand; empty if they do not."""
    folder.check_inside(path, origin=path.name)
    text = read_bytes_head(path, _HEAD_BYTES).decode("utf-8", "ignore")
    start = text.find('"added_tokens":')
    if start < 0:
        return {}
    try:
        value, _ = json.JSONDecoder().raw_decode(text, text.index("[", start))
    except (ValueError, RecursionError):  # cut off by the head; the caller then reads the whole file
        return {}
    return _added_tokens(value)


def _added_tokens(entries: Any, *, special_only: bool = False) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in entries if isinstance(entries, list) else ():
        if not isinstance(entry, dict) or (special_only and entry.get("special") is not True):
            continue
        text, number = entry.get("content"), entry.get("id")
        if isinstance(text, str) and type(number) is int and number >= 0:
            found[text] = number
    return found


def _vocabulary(tokenizer: dict[str, Any]) -> dict[str, int]:
    """Token text to id; entries of an unexpected form are left out (the tokenizer floor judges them)."""
    found: dict[str, int] = {}
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):
        found.update((text, number) for text, number in vocab.items() if type(number) is int and number >= 0)
    elif isinstance(vocab, list):  # unigram: [text, score] by position
        for number, entry in enumerate(vocab):
            if isinstance(entry, list) and entry and isinstance(entry[0], str):
                found.setdefault(entry[0], number)
    found.update(_added_tokens(tokenizer.get("added_tokens")))
    return found


def _fields(folder: PackageFolder, name: str) -> Fields | None:
    values = folder.json(name)
    return None if values is None else Fields(values, folder.root / name)


def _first_whole(objects: Iterable[Fields | None], keys: Iterable[str]) -> int | None:
    for fields in objects:
        for key in keys:
            if fields is None or isinstance(fields.raw(key), list):  # one value a layer: the graph decides
                continue
            value = fields.whole(key)
            if value is not None and value > 0:
                return value
    return None


def _limits(config: Fields | None, inner: Fields | None) -> tuple[ContextLimit, ...]:
    for fields, prefix in ((config, ""), (inner, "text_config.")):
        for key in _LENGTH_KEYS:
            value = fields.whole(key) if fields is not None else None
            if value is not None and value > 0:
                return (ContextLimit(tokens=value, source=f"config.json {prefix}{key}"),)
    return ()


def _kv_hints(config: Fields | None, inner: Fields | None) -> KvHints:
    if config is None:
        return KvHints()
    objects = (config, inner)
    heads = _first_whole(objects, ("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"))
    hidden = _first_whole(objects, ("hidden_size", "n_embd", "d_model"))
    head_dim = _first_whole(objects, ("head_dim", "kv_channels"))
    if head_dim is None and heads and hidden and hidden % heads == 0:
        head_dim = hidden // heads
    kv_heads = _first_whole(objects, ("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num"))
    if kv_heads is None and config.raw("multi_query") is True:
        kv_heads = 1
    window = _first_whole(objects, ("sliding_window",))
    return KvHints(
        num_layers=_first_whole(objects, ("num_hidden_layers", "n_layer", "n_layers", "decoder_layers")),
        num_attention_heads=heads,
        num_kv_heads=kv_heads or heads,
        head_dim=head_dim,
        sliding_window=window,
        source="config.json",
    )
