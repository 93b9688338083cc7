"""What a package says about making embeddings with it: :func:`read_encoder`.

Beside the graph these files of Sentence Transformers are read where they are: ``modules.json``,
``1_Pooling/config.json``, ``2_Dense/`` with its weights, ``config_sentence_transformers.json`` (prompts),
``sentence_bert_config.json`` (limit).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.package.fields import Fields
from onnx_genai.package.files import PackageFolder, parse_json
from onnx_genai.package.model import ContextLimit, ModelPackage
from onnx_genai.package.reader import read
from onnx_genai.package.repository import ENCODER_FILES
from onnx_genai.package.safetensors import TensorFile

__all__ = ["COMPANIONS", "Activation", "DenseLayer", "EncoderPackage", "PoolingMode", "read_encoder"]

COMPANIONS = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    *ENCODER_FILES,
    "LICENSE",
)
"""Files beside the graph of an encoder, as patterns of paths."""

PoolingMode = Literal["mean", "cls", "max", "last", "weighted_mean", "mean_sqrt"]
"""How the vectors of a text's tokens become one."""

Activation = Literal["identity", "tanh", "relu", "sigmoid"]

_POOLING_FLAGS: tuple[tuple[str, PoolingMode], ...] = (
    ("pooling_mode_cls_token", "cls"),
    ("pooling_mode_max_tokens", "max"),
    ("pooling_mode_mean_tokens", "mean"),
    ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt"),
    ("pooling_mode_weightedmean_tokens", "weighted_mean"),
    ("pooling_mode_lasttoken", "last"),
)
"""In the order in which the results of several stand one after another."""
_POOLING_WORDS: dict[str, PoolingMode] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_UNSET_LENGTH = 10**6
"""Tokenizer files write numbers beyond it for "no limit"."""
_OFFSET_FAMILIES = re.compile(r"(xlm-|xlm_)?roberta.*|camembert|mpnet|xmod|longformer|data2vec-text")
"""Their positions begin behind the id of padding, so that many fewer tokens fit than config.json says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseLayer:
    """A linear layer after pooling: ``activation(weight @ vector + bias)``."""

    file: Path
    weight: str
    """Name of the tensor in the file, [out, in]."""
    bias: str | None
    """Name of the tensor, [out]."""
    in_features: int
    out_features: int
    activation: Activation


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderPackage:
    """A package as an encoder of texts."""

    package: ModelPackage
    pooling: tuple[PoolingMode, ...] = ()
    """Empty: no file says it. The results of several stand one after another."""
    pooling_source: str = ""
    after_pooling: tuple[DenseLayer | Literal["normalize"], ...] = ()
    """What follows pooling, in this order."""
    has_modules: bool = False
    """There is a modules.json, so what it leaves out is not wanted."""
    pools_prompt: bool = True
    """Whether means take in the tokens of a prompt before the text."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts to put before a text, by the name of its purpose: ``query``, ``document``, ..."""
    default_prompt_name: str | None = None
    limits: tuple[ContextLimit, ...] = ()
    """Of a text with the special tokens around it."""
    hard_limit: ContextLimit | None = None
    """What the model was built for; ``limits`` may recommend less."""
    hidden_size: int | None = None
    """Width of the vectors, as config.json says."""
    num_labels: int | None = None
    """Of a classifier, as config.json says."""

    @property
    def limit(self) -> ContextLimit | None:
        """The smallest of ``limits``, or None if no file states one."""
        return min(self.limits, key=lambda limit: limit.tokens, default=None)


def read_encoder(path: Path | str, *, variant: str | None = None) -> EncoderPackage:
    """Reads the package in a folder, or the one that a file belongs to, and the files for embeddings beside it.

    Args:
        path: As for :func:`onnx_genai.package.read`.
        variant: Which graph to take; None takes the one without a suffix if there is one: an encoder computes whole
            texts at once, so that smaller weights save no time.

    Raises:
        NotFoundError, PackageError, UnsupportedError: As for ``read``; and a file for embeddings is broken, or asks
            for what is not known.
    """
    package = read(path, variant=variant)
    is_chosen = variant is not None or Path(path).suffix == ".onnx"
    if not is_chosen and package.variant != "base" and any(each.name == "base" for each in package.variants):
        package = read(path, variant="base")
    folder = PackageFolder(package.root)
    config = _fields(folder, "config.json")
    modules = _modules(folder)
    pooling: tuple[PoolingMode, ...] = ()
    source, pools_prompt = "", True
    after: list[DenseLayer | Literal["normalize"]] = []
    for kind, place in modules:
        if kind == "Pooling":
            pooling, pools_prompt = _pooling(folder, place)
            source = f"{place}/config.json" if place else "config.json"
        elif kind == "Normalize":
            after.append("normalize")
        elif kind == "Dense":
            after.append(_dense(folder, place))
        elif kind not in ("Transformer", "Dropout"):
            raise UnsupportedError(
                f"{folder.root / 'modules.json'}: has the module {kind!r}, which this version does not know; it knows "
                "Transformer, Pooling, Dense, Normalize"
            )
    if not modules and folder.find(["1_Pooling/config.json"]) is not None:
        pooling, pools_prompt = _pooling(folder, "1_Pooling")
        source = "1_Pooling/config.json"
    prompts, default = _prompts(folder)
    hard = _hard_limits(package, config)
    return EncoderPackage(
        package=package,
        pooling=pooling,
        pooling_source=source,
        after_pooling=tuple(after),
        has_modules=bool(modules),
        pools_prompt=pools_prompt,
        prompts=prompts,
        default_prompt_name=default,
        limits=(*_recommended(folder), *hard),
        hard_limit=min(hard, key=lambda limit: limit.tokens, default=None),
        hidden_size=_whole(config, ("hidden_size", "d_model", "dim", "n_embd")),
        num_labels=_num_labels(config),
    )


def _fields(folder: PackageFolder, name: str) -> Fields | None:
    values = folder.json(name)
    return None if values is None else Fields(values, folder.root / name)


def _modules(folder: PackageFolder) -> list[tuple[str, str]]:
    """Kinds and folders of the modules, in order; empty without a modules.json."""
    path = folder.find(["modules.json"])
    if path is None:
        return []
    document = parse_json(folder.text(path), path)
    if not isinstance(document, list):
        raise PackageError(f"{path}: expected a list of modules")
    found = []
    for number, entry in enumerate(document):
        kind, place = (entry.get("type"), entry.get("path", "")) if isinstance(entry, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(place, str):
            raise PackageError(
                f"{path}: entry {number} is {entry!r}; expected an object with 'type' and 'path' as text"
            )
        if place:
            folder.resolve(place, origin=f"{path}: path")
        found.append((kind.rpartition(".")[2], place))
    if not found or found[0][0] != "Transformer":
        raise UnsupportedError(f"{path}: does not begin with a Transformer; this version runs no other kind of model")
    return found


def _pooling(folder: PackageFolder, place: str) -> tuple[tuple[PoolingMode, ...], bool]:
    name = f"{place}/config.json" if place else "config.json"
    fields = _fields(folder, name)
    if fields is None:
        raise PackageError(f"{folder.root / name}: is missing, but modules.json has a Pooling there. Download it.")
    pools_prompt = fields.flag("include_prompt")
    word: Any = fields.raw("pooling_mode")
    if word is not None:  # written instead of the flags
        words = [word] if isinstance(word, str) else word
        if not isinstance(words, (list, tuple)) or not all(isinstance(each, str) for each in words) or not words:
            fields.fail("pooling_mode", "text or a list of texts")
        unknown = [each for each in words if each not in _POOLING_WORDS]
        modes = tuple(_POOLING_WORDS[each] for each in words if each in _POOLING_WORDS)
    else:
        known = dict(_POOLING_FLAGS)
        on = [key for key in fields.names() if key.startswith("pooling_mode_") and fields.flag(key)]
        unknown = [key for key in on if key not in known]
        modes = tuple(mode for key, mode in _POOLING_FLAGS if key in on)
    if unknown or not modes:
        raise UnsupportedError(
            f"{folder.root / name}: asks for the pooling {', '.join(unknown) or '(none)'}; this version knows "
            f"{', '.join(get_args(PoolingMode))}"
        )
    return modes, True if pools_prompt is None else pools_prompt


def _dense(folder: PackageFolder, place: str) -> DenseLayer:
    fields = _fields(folder, f"{place}/config.json")
    if fields is None:
        raise PackageError(f"{folder.root / place / 'config.json'}: is missing, but modules.json has a Dense there.")
    path = folder.find([f"{place}/model.safetensors"])
    if path is None:
        raise UnsupportedError(
            f"{folder.root / place}: has no model.safetensors; other forms of the weights are not read. Save the model "
            "again with a newer version of sentence-transformers."
        )
    folder.check_inside(path, origin=path.name)
    wanted = (fields.text("activation_function") or "Tanh").rpartition(".")[2].lower()
    if wanted not in get_args(Activation):
        fields.fail("activation_function", f"one of {', '.join(get_args(Activation))}")
    shapes = TensorFile(path).shapes
    weight = next((name for name in ("linear.weight", "weight") if name in shapes), None)
    if weight is None or len(shapes[weight]) != 2:
        raise PackageError(f"{path}: has no tensor linear.weight of two dimensions; it has {', '.join(shapes)}")
    bias = weight.replace("weight", "bias")
    out_features, in_features = shapes[weight]
    if bias in shapes and shapes[bias] != (out_features,):
        raise PackageError(f"{path}: {bias} has the shape {shapes[bias]}; expected ({out_features},)")
    return DenseLayer(
        file=path,
        weight=weight,
        bias=bias if bias in shapes else None,
        in_features=in_features,
        out_features=out_features,
        activation=next(each for each in get_args(Activation) if each == wanted),
    )


def _prompts(folder: PackageFolder) -> tuple[dict[str, str], str | None]:
    fields = _fields(folder, "config_sentence_transformers.json")
    if fields is None:
        return {}, None
    inner = fields.sub("prompts")
    prompts = {} if inner is None else {name: inner.text(name) or "" for name in inner.names()}
    default = fields.text("default_prompt_name")
    if default is not None and default not in prompts:
        fields.fail("default_prompt_name", f"one of the prompts ({', '.join(prompts) or 'there are none'})")
    return prompts, default


def _recommended(folder: PackageFolder) -> tuple[ContextLimit, ...]:
    """Lengths that the model was trained for."""
    found: list[ContextLimit] = []
    for name in ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json"):
        fields = _fields(folder, name)
        value = fields.whole("max_seq_length") if fields is not None else None
        if value is not None and 0 < value < _UNSET_LENGTH:
            found.append(ContextLimit(tokens=value, source=f"{name} max_seq_length"))
    tokenizer = _fields(folder, "tokenizer_config.json")
    length = tokenizer.number("model_max_length") if tokenizer is not None else None
    if length is not None and 0 < length < _UNSET_LENGTH:
        found.append(ContextLimit(tokens=int(length), source="tokenizer_config.json model_max_length"))
    return tuple(found)


def _hard_limits(package: ModelPackage, config: Fields | None) -> tuple[ContextLimit, ...]:
    offset = 0
    if config is not None and _OFFSET_FAMILIES.fullmatch(package.model_type or ""):
        offset = (config.one_id("pad_token_id") or 0) + 1
    why = f" minus {offset} positions that its family leaves out" if offset else ""
    return tuple(
        ContextLimit(tokens=max(limit.tokens - offset, 1), source=limit.source + why)
        for limit in package.context_limits
    )


def _whole(config: Fields | None, keys: tuple[str, ...]) -> int | None:
    values = (config.whole(key) for key in keys if config is not None)
    return next((value for value in values if value is not None and value > 0), None)


def _num_labels(config: Fields | None) -> int | None:
    if config is None:
        return None
    labels = config.raw("id2label")
    return len(labels) if isinstance(labels, (dict, list)) else config.whole("num_labels")
