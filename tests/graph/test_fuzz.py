"""Whatever bytes a folder holds, reading it ends in a package or in a typed error."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onnx_genai.errors import GenAIError
from onnx_genai.graph import resolve
from onnx_genai.package import read
from tests.graph import tiny_attention
from tests.graph.native_cases import packed_mlp
from tests.graph.tiny import gqa_decoder, kv_decoder, save

SETTINGS = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
GRAPHS: list[Callable[[], onnx.ModelProto]] = [
    kv_decoder,
    gqa_decoder,
    lambda: tiny_attention.build(
        tiny_attention.Tiny(
            form="attention",
            nodes=tiny_attention.causal_mask(),
            initializers=tiny_attention.mask_constants(),
            inputs={3: "mask"},
        )
    ),
    lambda: tiny_attention.build(tiny_attention.Tiny(form="static_4d", attributes={"is_causal": 1})),
    packed_mlp,
]
TEXT_FILES = [
    "inference_metadata.yaml",
    "inference_metadata.json",
    "genai_config.json",
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "tokenizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "manifest.json",
]
GENAI = {
    "model": {
        "type": "llama",
        "context_length": 64,
        "eos_token_id": [2, 3],
        "vocab_size": 12,
        "decoder": {
            "filename": "model.onnx",
            "head_size": 4,
            "inputs": {"input_ids": "input_ids", "past_key_names": "past_key_values.%d.key"},
            "outputs": {"logits": "logits", "present_key_names": "present.%d.key"},
            "session_options": {"provider_options": [{"cuda": {"a": "1"}}], "session.x": "1"},
        },
    },
    "search": {"do_sample": True, "temperature": 0.5, "top_k": 5, "max_length": 64},
}
METADATA = {
    "schema_version": "v1",
    "required_capabilities": ["kv_cache"],
    "model": {
        "attention": {"type": "gqa", "num_kv_heads": 2, "head_dim": 4, "sliding_window": 8},
        "max_sequence_length": 32,
        "io": {"token_input": "input_ids", "kv_inputs": ["past_key_values.0.key"], "kv_outputs": ["present.0.key"]},
    },
    "tokens": {"eos_token_id": [2]},
    "generation": {"temperature": 0.1},
    "package": {"tokenizer": {"special_tokens": {"eos": {"id": 2, "content": "</s>"}}}},
}
TOKENIZER_CONFIG = {
    "eos_token": {"content": "</s>"},
    "added_tokens_decoder": {"2": {"content": "</s>"}},
    "chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}],
}
CONFIG = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "text_config": {"vocab_size": 12}}
SAMPLES = {
    "genai_config.json": GENAI,
    "inference_metadata.json": METADATA,
    "inference_metadata.yaml": METADATA,
    "tokenizer_config.json": TOKENIZER_CONFIG,
    "config.json": CONFIG,
    "generation_config.json": {"eos_token_id": [1, [2]], "do_sample": False},
}
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["../x", "/etc/passwd", "\ud800", "a\0b", "model.onnx", "x" * 300, 10**400]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def _open(folder: Path) -> None:
    with contextlib.suppress(GenAIError):
        resolve(read(folder), backend="auto")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(kv_decoder(), tmp_path / "package")


@SETTINGS
@given(data=st.binary(max_size=300))
def test_any_bytes_as_graph(data: bytes, folder: Path) -> None:
    (folder / "model.onnx").write_bytes(data)

    _open(folder)


@SETTINGS
@given(data=st.data(), build=st.sampled_from(GRAPHS))
def test_graph_with_changed_bytes(data: st.DataObject, build: Callable[[], onnx.ModelProto], folder: Path) -> None:
    content = bytearray(build().SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    keep = data.draw(st.integers(0, len(content)))
    (folder / "model.onnx").write_bytes(bytes(content[:keep]) if data.draw(st.booleans()) else bytes(content))

    _open(folder)


@SETTINGS
@given(name=st.sampled_from(TEXT_FILES), data=st.binary(max_size=200))
def test_any_bytes_as_text_file(name: str, data: bytes, folder: Path) -> None:
    (folder / name).write_bytes(data)

    _open(folder)
    (folder / name).unlink()


@SETTINGS
@given(name=st.sampled_from(TEXT_FILES), text=st.text(alphabet='{}[]:,&*-"<!|>%@ \n\tab01.', max_size=60))
def test_any_punctuation_as_text_file(name: str, text: str, folder: Path) -> None:
    (folder / name).write_text(text, encoding="utf-8")

    _open(folder)
    (folder / name).unlink()


def _places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += _places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += _places(inner, (*path, index))
    return found


@SETTINGS
@given(data=st.data(), name=st.sampled_from(sorted(SAMPLES)))
def test_any_value_in_any_place_of_a_sound_file(data: st.DataObject, name: str, folder: Path) -> None:
    content = json.loads(json.dumps(SAMPLES[name]))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(_places(content)))
        target = content
        for key in place[:-1]:
            target = target[key]
        target[place[-1]] = data.draw(JSON_VALUES)
    (folder / name).write_text(json.dumps(content), encoding="utf-8")

    _open(folder)
    (folder / name).unlink()
