"""Writes a tiny model with its files as a model package in one of the common formats."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import yaml
from tokenizers import AddedToken, Tokenizer

from tests.models import checksum, scripted
from tests.models.checksum import CHECKSUM_STYLES, ChecksumSpec, Ports, build_checksum
from tests.models.texts import BYTE_LEVEL_SPECIALS, byte_level_tokenizer, word_level_tokenizer

__all__ = [
    "CHATML",
    "Facts",
    "Format",
    "write_checksum_package",
    "write_noise_package",
    "write_package",
    "write_scripted_package",
    "write_table_package",
]

Format = Literal["optimum", "onnx_community", "genai", "native", "bare"]
"""optimum: config.json beside model.onnx. onnx_community: the graph is in onnx/. genai: genai_config.json.
native: inference_metadata.yaml. bare: model.onnx and tokenizer.json alone."""

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the files beside the graph say."""

    vocab_size: int
    eos: int | Sequence[int]
    eos_token: str
    context_length: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    tokenizer: Tokenizer
    ports: Ports = field(default_factory=Ports)
    has_mask: bool = True
    has_positions: bool = False
    is_packed: bool = False
    is_static: bool = False
    shares_buffer: bool = False
    kv_dtype: str = "float32"
    chat_template: str | None = None
    generation: dict[str, Any] = field(default_factory=dict)
    """Sampling defaults of the package, in Hugging Face's names."""


def write_checksum_package(
    folder: Path,
    style: str | ChecksumSpec,
    *,
    format: Format | None = None,
    context_length: int = 4096,
    eos: int | Sequence[int] = checksum.EOS,
    generation: dict[str, Any] | None = None,
) -> Path:
    """A package of the checksum model; `style` is a name of `CHECKSUM_STYLES` or a spec. Returns `folder`.

    Without `format` each cache style gets the format in which such graphs are found.
    """
    spec = CHECKSUM_STYLES[style] if isinstance(style, str) else style
    facts = Facts(
        vocab_size=checksum.VOCAB_SIZE,
        eos=eos,
        eos_token="<eos>",
        context_length=min(context_length, spec.capacity) if spec.is_static else context_length,
        num_layers=checksum.NUM_LAYERS,
        num_heads=checksum.NUM_HEADS,
        num_kv_heads=checksum.NUM_KV_HEADS,
        head_size=checksum.HEAD_SIZE,
        tokenizer=word_level_tokenizer(checksum.VOCAB_SIZE),
        ports=spec.ports,
        has_mask=spec.lengths == "mask",
        has_positions=spec.positions,
        is_packed=spec.cache == "packed",
        is_static=spec.is_static,
        shares_buffer=spec.cache == "gqa",
        kv_dtype=spec.kv_dtype,
        generation=generation or {},
    )
    return write_package(
        folder, build_checksum(spec), facts, format or _usual_format(spec), merged=spec.cache == "merged"
    )


def write_scripted_package(
    folder: Path,
    script: str | Sequence[int],
    *,
    format: Format = "optimum",
    context_length: int = 4096,
    chat_template: str | None = CHATML,
    specials: Sequence[str] = (),
) -> Path:
    """A package that answers `script` and then ends; see `build_scripted`.

    Its tokenizer is `byte_level_tokenizer`, with `specials` as further special tokens.
    """
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    ids = tokenizer.encode(script).ids if isinstance(script, str) else list(script)
    eos = tokenizer.token_to_id(BYTE_LEVEL_SPECIALS[2])
    vocab_size = tokenizer.get_vocab_size()
    facts = replace(
        scripted_facts(tokenizer, vocab_size, context_length),
        eos=eos,
        eos_token=BYTE_LEVEL_SPECIALS[2],
        chat_template=chat_template,
    )
    return write_package(folder, scripted.build_scripted(ids, vocab_size, eos), facts, format)


def write_table_package(folder: Path, logits: npt.ArrayLike, *, context_length: int = 4096) -> Path:
    """A package whose logits are the row of the last id; see `build_table`. Words are ``w3``, ``w4``, ..."""
    model = scripted.build_table(logits)
    vocab_size = model.graph.output[0].type.tensor_type.shape.dim[2].dim_value
    facts = scripted_facts(word_level_tokenizer(vocab_size), vocab_size, context_length)
    return write_package(folder, model, facts, "optimum")


def write_noise_package(
    folder: Path,
    seed: int,
    *,
    padding: int = 0,
    closing: float = 3.0,
    context_length: int = 4096,
    eos: Sequence[int] = (2,),
    specials: Sequence[str] = (),
    added: Sequence[str] = (),
    chat_template: str | None = CHATML,
) -> Path:
    """A package that writes at random, with the tokenizer `byte_level_tokenizer`: the row of logits of the last id.

    Args:
        folder: Is made; returned.
        seed: Of the logits, which are normal with deviation 1.
        padding: Columns of the logits beyond the tokenizer, which are the most likely ones.
        closing: Added to the logits of what ends a JSON value, so that answers under a grammar end.
        context_length: As the package says.
        eos: Ids that end an answer.
        specials: Further special tokens.
        added: Further tokens that are no special ones.
        chat_template: Of the package.
    """
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in specials])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in added])
    vocab_size = tokenizer.get_vocab_size()
    width = vocab_size + padding
    logits = np.random.default_rng(seed).standard_normal((width, width)).astype(np.float32)
    logits[:, [*eos, *(tokenizer.encode(mark).ids[0] for mark in '"]}')]] += closing
    logits[:, vocab_size:] += 2 * closing
    facts = replace(
        scripted_facts(tokenizer, width, context_length),
        eos=eos,
        eos_token=BYTE_LEVEL_SPECIALS[2],
        chat_template=chat_template,
    )
    return write_package(folder, scripted.build_table(logits), facts, "optimum")


def scripted_facts(tokenizer: Tokenizer, vocab_size: int, context_length: int) -> Facts:
    return Facts(
        vocab_size=vocab_size,
        eos=0,
        eos_token=tokenizer.id_to_token(0),
        context_length=context_length,
        num_layers=1,
        num_heads=scripted.NUM_KV_HEADS,
        num_kv_heads=scripted.NUM_KV_HEADS,
        head_size=scripted.HEAD_SIZE,
        tokenizer=tokenizer,
    )


def _usual_format(spec: ChecksumSpec) -> Format:
    if spec.cache in {"gqa", "packed"}:
        return "genai"
    if spec.is_static or spec.ports == checksum.CUSTOM_PORTS:
        return "native"
    if spec.cache == "merged":
        return "onnx_community"
    return "optimum" if spec.lengths == "mask" else "bare"


def write_package(folder: Path, model: onnx.ModelProto, facts: Facts, format: Format, *, merged: bool = False) -> Path:
    """Writes graph, tokenizer and the format's own files into `folder`, which is made if needed; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    name = "decoder_model_merged.onnx" if merged else "model.onnx"
    graph = folder / "onnx" / name if format == "onnx_community" else folder / name
    graph.parent.mkdir(exist_ok=True)
    onnx.save_model(model, graph)
    facts.tokenizer.save(str(folder / "tokenizer.json"))
    if format == "bare":
        return folder
    tokenizer_config: dict[str, Any] = {"eos_token": facts.eos_token, "tokenizer_class": "PreTrainedTokenizerFast"}
    if facts.chat_template is not None:
        tokenizer_config["chat_template"] = facts.chat_template
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    if format == "native":
        text = yaml.safe_dump(_native_metadata(facts), sort_keys=False)
        (folder / "inference_metadata.yaml").write_text(text, encoding="utf-8")
    elif format == "genai":
        _write_json(folder / "genai_config.json", _genai_config(facts, name))
    else:
        _write_json(folder / "config.json", _hf_config(facts))
        _write_json(folder / "generation_config.json", {"eos_token_id": _plain(facts.eos), **facts.generation})
    return folder


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _plain(eos: int | Sequence[int]) -> int | list[int]:
    return eos if isinstance(eos, int) else list(eos)


def _hf_config(facts: Facts) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": facts.vocab_size,
        "max_position_embeddings": facts.context_length,
        "num_hidden_layers": facts.num_layers,
        "num_attention_heads": facts.num_heads,
        "num_key_value_heads": facts.num_kv_heads,
        "head_dim": facts.head_size,
        "hidden_size": facts.num_heads * facts.head_size,
        "eos_token_id": _plain(facts.eos),
    }


def _genai_config(facts: Facts, filename: str) -> dict[str, Any]:
    ports = facts.ports
    inputs = {"input_ids": ports.input_ids}
    if facts.has_mask:
        inputs["attention_mask"] = ports.attention_mask
    if facts.has_positions:
        inputs["position_ids"] = ports.position_ids
    outputs = {"logits": ports.logits}
    if facts.is_packed:
        inputs["past_names"] = ports.past_key.format("%d")
        outputs["present_names"] = ports.present_key.format("%d")
    else:
        inputs["past_key_names"] = ports.past_key.format("%d")
        inputs["past_value_names"] = ports.past_value.format("%d")
        outputs["present_key_names"] = ports.present_key.format("%d")
        outputs["present_value_names"] = ports.present_value.format("%d")
    return {
        "model": {
            "type": "gpt2" if facts.is_packed else "llama",
            "vocab_size": facts.vocab_size,
            "context_length": facts.context_length,
            "bos_token_id": 1,
            "eos_token_id": _plain(facts.eos),
            "pad_token_id": 0,
            "decoder": {
                "filename": filename,
                "hidden_size": facts.num_heads * facts.head_size,
                "num_attention_heads": facts.num_heads,
                "num_key_value_heads": facts.num_kv_heads,
                "num_hidden_layers": facts.num_layers,
                "head_size": facts.head_size,
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "inputs": inputs,
                "outputs": outputs,
            },
        },
        "search": {
            "do_sample": False,
            "max_length": facts.context_length,
            "past_present_share_buffer": facts.shares_buffer,
            **facts.generation,
        },
    }


def _native_metadata(facts: Facts) -> dict[str, Any]:
    ports = facts.ports
    io: dict[str, Any] = {"token_input": ports.input_ids, "logits_output": ports.logits}
    if facts.has_mask:
        io["attention_mask_input"] = ports.attention_mask
    if facts.has_positions:
        io["position_ids_input"] = ports.position_ids
    metadata: dict[str, Any] = {
        "schema_version": "v1",
        "model": {"max_sequence_length": facts.context_length, "vocab_size": facts.vocab_size, "io": io},
        "tokens": {"eos_token_id": [facts.eos] if isinstance(facts.eos, int) else list(facts.eos)},
    }
    if not facts.is_static:
        # Static caches are recognised from the graph; the metadata of such exports does not list them.
        io["kv_inputs"] = ports.past[: 2 * facts.num_layers]
        io["kv_outputs"] = ports.present[: 2 * facts.num_layers]
    if facts.shares_buffer:
        io["kv_update"] = "shared_buffer"
        metadata["kv_cache"] = {"native_dtype": facts.kv_dtype}
        metadata["model"]["attention"] = {
            "type": "grouped_query",
            "num_attention_heads": facts.num_heads,
            "num_kv_heads": facts.num_kv_heads,
            "head_dim": facts.head_size,
        }
    if facts.generation:
        metadata["generation"] = facts.generation
    return metadata
