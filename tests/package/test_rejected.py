"""What the readers refuse, and that the text says where, what and how to fix it."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.errors import GenAIError, NotFoundError, PackageError, UnsupportedError
from onnx_genai.package import read
from tests.package.folders import GENAI, LFS_POINTER, TOKENIZER, genai_with, write

WRONG_GENAI = [
    ("model", None, "model is missing; expected an object with a 'decoder'"),
    ("model", [1], "model is [1] (a list); expected an object"),
    ("model.decoder", None, "model.decoder is missing; expected an object with 'filename'"),
    ("model.decoder.filename", 7, "model.decoder.filename is 7 (a whole number); expected text"),
    ("model.decoder.filename", "gone.onnx", "gone.onnx, which does not exist. The folder has: model.onnx."),
    ("model.decoder.filename", "/etc/passwd", "is the absolute path '/etc/passwd'"),
    ("model.decoder.filename", "C:\\x.onnx", "is the absolute path"),
    ("model.decoder.filename", "../model.onnx", "leaves the package folder"),
    ("model.decoder.filename", "a\\..\\..\\x", "leaves the package folder"),
    ("model.decoder.filename", "", "expected the relative path of a file"),
    ("model.decoder.filename", "x" * 5000, "which does not exist"),
    ("model.context_length", "4096", "model.context_length is '4096' (text); expected a whole number >= 1"),
    ("model.context_length", 0, "model.context_length is 0 (a whole number); expected a whole number >= 1"),
    ("model.context_length", 10**400, "expected a whole number"),
    ("model.vocab_size", True, "model.vocab_size is True (a boolean)"),
    ("model.vocab_size", 3.5, "model.vocab_size is 3.5 (a number)"),
    ("model.eos_token_id", "2", "model.eos_token_id is '2' (text); expected a token id or a list of token ids"),
    ("model.eos_token_id", [2, "x"], "expected a token id or a list of token ids"),
    ("model.decoder.head_size", -1, "expected a whole number >= 1"),
    ("model.decoder.inputs", "x", "model.decoder.inputs is 'x' (text); expected an object"),
    ("model.decoder.inputs", {"past_key_names": "past.key"}, "expected a name with one %d"),
    ("model.decoder.inputs", {"input_ids": 3}, "model.decoder.inputs.input_ids is 3"),
    ("model.decoder.session_options", {"intra_op_num_threads": "8"}, "intra_op_num_threads is '8'"),
    ("model.decoder.session_options", {"graph_optimization_level": "MAX"}, "expected one of ORT_DISABLE_ALL"),
    ("model.decoder.session_options", {"provider_options": {"cuda": {}}}, "expected a list of objects"),
    ("model.tokenizer_dir", "../other", "leaves the package folder"),
    ("search.temperature", "hot", "search.temperature is 'hot' (text); expected a finite number"),
    ("search.do_sample", 1, "search.do_sample is 1 (a whole number); expected true or false"),
    ("search.top_k", [1], "search.top_k is [1] (a list)"),
]


@pytest.mark.parametrize(("path", "value", "text"), WRONG_GENAI)
def test_wrong_value_in_genai_config_names_file_and_key(path: str, value: Any, text: str, tmp_path: Path) -> None:
    write(tmp_path, {"genai_config.json": genai_with(path, value), "model.onnx": None})

    with pytest.raises(PackageError, match=r"genai_config\.json") as caught:
        read(tmp_path)

    assert text in str(caught.value)


WRONG_METADATA: list[tuple[dict[str, Any], str]] = [
    ({"required_capabilities": "kv_cache"}, "required_capabilities is 'kv_cache' (text); expected a list of texts"),
    ({"model": {"max_sequence_length": "long"}}, "model.max_sequence_length is 'long'"),
    ({"model": {"attention": {"sliding_window": 0}}}, "model.attention.sliding_window is 0"),
    ({"model": {"attention": {"key_sequence_lengths": {"scalar_broadcast": "all"}}}}, "expected unit_batch"),
    ({"model": {"io": {"kv_inputs": ["a"]}}}, "must be declared together"),
    ({"model": {"io": {"kv_inputs": ["a"], "kv_outputs": ["b", "c"]}}}, "has 1 names and kv_outputs 2"),
    ({"model": {"io": {"kv_inputs": ["a", "a"], "kv_outputs": ["b", "c"]}}}, "names 'a' twice"),
    ({"model": {"io": {"kv_update": "ring"}}}, "kv_update is 'ring' (text); expected append or shared_buffer"),
    ({"model": {"io": {"sequence_source": "audio"}}}, "expected token_ids or inputs_embeds"),
    ({"model": {"io": {"static_cache": {"key_cache_inputs": ["a"]}}}}, "value_cache_inputs is missing or empty"),
    ({"tokens": {"eos_token_id": "2"}}, "tokens.eos_token_id is '2'"),
    ({"pipeline": {}}, "pipeline.models must name at least one component"),
    ({"pipeline": {"models": {"a": {}}, "workflow": {}}}, "stands beside pipeline.models"),
    ({"pipeline": {"models": {"a": {"type": "decoder"}}}}, "filename is missing"),
    ({"schema_version": ["v1"]}, "schema_version is ['v1'] (a list)"),
]


@pytest.mark.parametrize(("metadata", "text"), WRONG_METADATA)
def test_wrong_value_in_metadata_names_file_and_key(metadata: dict[str, Any], text: str, tmp_path: Path) -> None:
    write(tmp_path, {"inference_metadata.yaml": metadata, "model.onnx": None})

    with pytest.raises(PackageError, match=r"inference_metadata\.yaml") as caught:
        read(tmp_path)

    assert text in str(caught.value)


def _pipeline(types: dict[str, str], strategy: dict[str, Any], to: str = "a.x") -> dict[str, Any]:
    models = {name: {"filename": f"{name}.onnx", "type": kind} for name, kind in types.items()}
    return {"pipeline": {"models": models, "strategy": strategy, "dataflow": [{"from": "b.y", "to": to}]}}


AR = {"kind": "autoregressive", "decoder": "a"}
NOT_YET: list[tuple[dict[str, Any], str]] = [
    ({"schema_version": "v9"}, "schema_version is 'v9'"),
    ({"required_capabilities": ["kv_cache", "telepathy", "levitation"]}, "asks for telepathy, levitation,"),
    ({"model": {"io": {"sequence_source": "inputs_embeds"}}}, "a decoder on embeddings"),
    ({"model": {"io": {"kv_ownership": "shared"}}}, "a drafter for speculative decoding"),
    ({"model": {"io": {"encoder_hidden_states_input": "x"}}}, "an encoder-decoder pipeline"),
    ({"model": {"io": {"state_pairs": [{"input": "a", "output": "b"}]}}}, "a hybrid or recurrent model"),
    ({"pipeline": {"workflow": {"components": {"m": {}}}}}, "a workflow package (pipeline.workflow, components: m)"),
    (_pipeline({"a": "decoder", "see": "vision_encoder"}, AR), "a vision-language pipeline (components: a, see)"),
    (_pipeline({"a": "decoder", "ear": "audio_encoder"}, AR), "an audio-language pipeline"),
    (_pipeline({"a": "decoder", "s": "vision_encoder", "e": "audio_encoder"}, AR), "a vision, audio and language"),
    (_pipeline({"a": "decoder", "b": "encoder"}, AR, "a.encoder_hidden_states"), "an encoder-decoder pipeline"),
    (_pipeline({"a": "decoder", "b": "vocoder"}, AR), "a speech synthesis pipeline"),
    (_pipeline({"a": "denoiser"}, {"kind": "diffusion-steps", "denoiser": "a"}), "a diffusion pipeline"),
    (_pipeline({"a": "encoder"}, {"kind": "single_pass", "model": "a"}), "a single-pass pipeline"),
]


@pytest.mark.parametrize(("metadata", "text"), NOT_YET)
def test_metadata_of_a_kind_that_cannot_run_yet_names_the_kind(
    metadata: dict[str, Any], text: str, tmp_path: Path
) -> None:
    write(tmp_path, {"inference_metadata.yaml": metadata, "model.onnx": None})

    with pytest.raises(UnsupportedError) as caught:
        read(tmp_path)

    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"encoder": {"inputs": {"audio_features": "a"}}}, "an encoder-decoder pipeline for speech"),
        ({"encoder": {}, "embedding": {}}, "an encoder-decoder pipeline"),
        ({"vision": {}, "encoder": {}, "embedding": {}}, "a vision-language pipeline (components: encoder, embedding,"),
        ({"vision": {}, "speech": {}}, "a vision, audio and language pipeline"),
        ({"speech": {}}, "an audio-language pipeline"),
        ({"joiner": {}, "encoder": {}}, "a transducer"),
        ({"decoder": {"pipeline": []}}, "a decoder split into several graphs"),
    ],
)
def test_genai_config_of_several_graphs_names_the_kind(block: dict[str, Any], text: str, tmp_path: Path) -> None:
    write(tmp_path, {"genai_config.json": {"model": {**GENAI["model"], **block}}, "model.onnx": None})

    with pytest.raises(UnsupportedError) as caught:
        read(tmp_path)

    assert text in str(caught.value)


FOLDERS = [
    (["encoder_model.onnx", "decoder_with_past_model.onnx"], "an encoder-decoder pipeline"),
    (["onnx/vision_encoder.onnx", "onnx/embed_tokens.onnx", "onnx/decoder.onnx"], "a vision-language"),
    (["audio_encoder.onnx", "decoder_model_merged.onnx"], "an audio-language"),
    (["onnx/encoder_model.onnx", "onnx/embed_tokens.onnx", "onnx/decoder_model_merged.onnx"], "an encoder-decoder"),
    (["encoder_model.onnx", "decoder_postnet_and_vocoder.onnx"], "a speech synthesis"),
    (["model_index.json"], "a diffusion pipeline"),
    (["decoder_model.onnx", "decoder_with_past_model.onnx"], "a pair of graphs that this version does not join"),
]


@pytest.mark.parametrize(("files", "text"), FOLDERS)
def test_folder_of_several_graphs_names_the_kind(files: list[str], text: str, tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, **{name: "{}" if name.endswith("json") else None for name in files}})

    with pytest.raises(UnsupportedError) as caught:
        read(tmp_path)

    assert text in str(caught.value)


def test_embedding_without_a_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"genai_config.json": {"model": {**GENAI["model"], "embedding": {}}}, "model.onnx": None})

    with pytest.raises(PackageError, match=r"model\.embedding\.filename is missing"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"encoder": {}}, r"model\.encoder\.filename is missing"),
        (
            {"encoder": {"filename": "e.onnx"}, "bos_token_id": None, "pad_token_id": None},
            "decoder_start_token_id is mi",
        ),
        ({"encoder": {"filename": "e.onnx"}, "bos_token_id": 1}, r"e\.onnx"),
    ],
)
def test_encoder_without_what_it_needs_is_named(block: dict[str, Any], text: str, tmp_path: Path) -> None:
    write(tmp_path, {"genai_config.json": {"model": {**GENAI["model"], **block}}, "model.onnx": None})

    with pytest.raises(PackageError, match=text):
        read(tmp_path)


def test_encoder_decoder_without_a_start_token_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, "onnx/encoder_model_q4.onnx": None, "onnx/decoder_model_merged_q4.onnx": None})

    with pytest.raises(PackageError, match=r"is an encoder-decoder pipeline .* has decoder_start_token_id"):
        read(tmp_path)


def test_encoder_decoder_config_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {"is_encoder_decoder": True}, "model.onnx": None})

    with pytest.raises(UnsupportedError, match="an encoder-decoder pipeline"):
        read(tmp_path)


@pytest.mark.parametrize("folder", ["plain", "x.ortpackage"])
def test_model_package_of_onnx_runtime_is_refused(folder: str, tmp_path: Path) -> None:
    manifest = {"schema_version": "1.0", "components": {"model": {}}}
    files = {"manifest.json": manifest} if folder == "plain" else {"model.onnx": None}

    with pytest.raises(UnsupportedError, match="an ONNX Runtime model package"):
        read(write(tmp_path / folder, files))


TEXT_FILES = [
    "genai_config.json",
    "inference_metadata.yaml",
    "inference_metadata.json",
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "manifest.json",
]
BROKEN_TEXTS: list[tuple[str | bytes, str]] = [
    (LFS_POINTER, "this is a Git LFS pointer"),
    ("", "the file is empty"),
    (b"\xff\xfe\x00x", "is not UTF-8 text"),
    ('{"a": ', "is not valid"),
    ("[1, 2]", "holds a list at the top; expected an object"),
]


@pytest.mark.parametrize("name", TEXT_FILES)
@pytest.mark.parametrize(("content", "text"), BROKEN_TEXTS, ids=["lfs", "empty", "utf16", "cut", "list"])
def test_broken_text_file_is_named(name: str, content: str | bytes, text: str, tmp_path: Path) -> None:
    write(tmp_path, {name: content, "model.onnx": None})

    with pytest.raises(PackageError, match=name.replace(".", r"\.")) as caught:
        read(tmp_path)

    assert text in str(caught.value)


@pytest.mark.parametrize("name", TEXT_FILES)
@pytest.mark.parametrize(
    "content", ['{"a": ' * 9000 + "1" + "}" * 9000, '{"a": 1' + "0" * 5000 + "}"], ids=["deep", "huge"]
)
def test_extreme_text_file_never_ends_in_another_error(name: str, content: str, tmp_path: Path) -> None:
    """Depth or digits are no fault by themselves where a key is not used."""
    write(tmp_path, {name: content, "model.onnx": None})

    with contextlib.suppress(PackageError):
        read(tmp_path)


@pytest.mark.parametrize("name", ["model.onnx", "tokenizer.json"])
@pytest.mark.parametrize(("content", "text"), [(LFS_POINTER, "Git LFS pointer"), ("", "is empty")])
def test_graph_and_tokenizer_are_looked_at(name: str, content: str, text: str, tmp_path: Path) -> None:
    files: dict[str, Any] = {"genai_config.json": GENAI, "model.onnx": None, "tokenizer.json": TOKENIZER}
    write(tmp_path, {**files, name: content})

    with pytest.raises(PackageError, match=name.replace(".", r"\.")) as caught:
        read(tmp_path)

    assert text in str(caught.value)


WRONG_COMPANIONS = [
    ("config.json", {"vocab_size": "x"}, "vocab_size is 'x'"),
    ("config.json", {"max_position_embeddings": 1.5}, "max_position_embeddings is 1.5"),
    ("config.json", {"text_config": 3}, "text_config is 3"),
    ("config.json", {"eos_token_id": {"a": 1}}, "eos_token_id is"),
    ("generation_config.json", {"temperature": [1]}, "temperature is [1]"),
    ("tokenizer_config.json", {"eos_token": 3}, "eos_token is 3"),
    ("tokenizer_config.json", {"chat_template": 3}, "chat_template: expected text, or a list"),
    ("tokenizer_config.json", {"chat_template": [{"name": "x"}]}, "chat_template: expected text, or a list"),
]


@pytest.mark.parametrize(("name", "content", "text"), WRONG_COMPANIONS)
def test_wrong_value_in_a_companion_file_names_file_and_key(
    name: str, content: dict[str, Any], text: str, tmp_path: Path
) -> None:
    write(tmp_path, {name: content, "model.onnx": None})

    with pytest.raises(PackageError, match=name.replace(".", r"\.")) as caught:
        read(tmp_path)

    assert text in str(caught.value)


def test_one_value_a_layer_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {"num_attention_heads": [4, 8], "num_key_value_heads": [1, 2]}, "model.onnx": None})

    assert read(tmp_path).kv.num_kv_heads is None


WRONG_YAML = [
    ("model: {a: 1\n", "is not valid YAML"),
    ("a: &x [*x]\n", "holds itself through an alias"),
    ("a: &x {b: *x}\n", "holds itself through an alias"),
    ("model: {}\nmodel: {}\n", "line 2 gives the key 'model' a second time"),
    ("a: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    (
        "a: &a [1,1,1,1,1,1,1,1,1]\n"
        + "".join(f"{c}: &{c} [{','.join([f'*{p}'] * 9)}]\n" for p, c in zip("abcdefgh", "bcdefghi", strict=True)),
        "values once its aliases are followed",
    ),
    ("- 1\n", "holds a list at the top"),
    ("1: 2\n", "key 1 is a whole number; expected text"),
    ("? [1]\n: 2\n", ""),
    ("\tmodel: 1\n", "is not valid YAML"),
    ("[" * 3000, "YAML"),
]


@pytest.mark.parametrize(("text", "wanted"), WRONG_YAML)
def test_strange_yaml_is_a_package_error(text: str, wanted: str, tmp_path: Path) -> None:
    write(tmp_path, {"inference_metadata.yaml": text, "model.onnx": None})

    with pytest.raises(PackageError, match=r"inference_metadata\.yaml") as caught:
        read(tmp_path)

    assert wanted in str(caught.value)


def test_yaml_alias_that_repeats_a_value_is_fine(tmp_path: Path) -> None:
    text = "model: {io: {kv_inputs: &n [a], kv_outputs: *n}}\n"
    write(tmp_path, {"inference_metadata.yaml": text, "model.onnx": None})

    assert read(tmp_path).io.kv_outputs == ("a",)


LINKED = ["model.onnx", "tokenizer.json", "genai_config.json", "config.json", "chat_template.jinja"]


@pytest.mark.parametrize("name", LINKED)
def test_link_out_of_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    files: dict[str, Any] = {"genai_config.json": GENAI, "model.onnx": None, "tokenizer.json": TOKENIZER}
    folder = write(tmp_path / "package", {**files, "config.json": {}, "chat_template.jinja": "x"})
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(PackageError, match="outside the package folder"):
        read(folder)


def test_link_to_itself_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None})
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")

    with pytest.raises(GenAIError, match=r"config\.json"):
        read(tmp_path)


PATHS = [
    ("nothing", NotFoundError, "no such file or folder"),
    ("x\0y", NotFoundError, "no such file or folder"),
    ("x" * 5000, NotFoundError, "no usable path"),
]


@pytest.mark.parametrize(("name", "kind", "text"), PATHS, ids=["missing", "null", "long"])
def test_path_that_does_not_exist(name: str, kind: type[GenAIError], text: str, tmp_path: Path) -> None:
    with pytest.raises(kind) as caught:
        read(tmp_path / name)

    assert text in str(caught.value)


OTHER_FOLDERS = [
    ({}, "is no model package (looked for inference_metadata.yaml"),
    ({"model.safetensors": b"x", "config.json": {}}, "export it first"),
    ({"x.gguf": b"GGUF"}, "onnx-genai import"),
    ({"decoder/model.onnx": None}, "Its graphs are in subfolders"),
    ({"a.onnx": None, "b.onnx": None}, "has several graphs (a.onnx, b.onnx)"),
    ({"inference_metadata.yaml": {"model": {}}}, "has no .onnx file, but inference_metadata.yaml names none"),
    ({"genai_config.json": GENAI}, "model.onnx, which does not exist"),
]


@pytest.mark.parametrize(("files", "text"), OTHER_FOLDERS)
def test_folder_without_a_model_says_what_it_seems_to_be(files: dict[str, Any], text: str, tmp_path: Path) -> None:
    with pytest.raises(PackageError) as caught:
        read(write(tmp_path, files))

    assert text in str(caught.value)


def test_gguf_file_is_sent_to_the_converter(tmp_path: Path) -> None:
    write(tmp_path, {"x.gguf": b"GGUF"})

    with pytest.raises(PackageError, match=r"onnx-genai import .*x\.gguf"):
        read(tmp_path / "x.gguf")


def test_missing_variant_lists_those_that_exist(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, "onnx/model.onnx": None, "onnx/model_q4.onnx": None})

    with pytest.raises(NotFoundError, match=r"no variant 'int3'; it has q4 \(model_q4\.onnx\), base \(model\.onnx\)"):
        read(tmp_path, variant="int3")


def test_graph_and_variant_together_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, "model.onnx": None})

    with pytest.raises(NotFoundError, match="give only one of them"):
        read(tmp_path / "model.onnx", variant="q4")


def test_missing_tokenizer_is_an_error_only_when_it_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, "onnx/model.onnx": None, "tokenizer.model": b"x"})

    package = read(tmp_path)

    assert package.tokenizer_path is None
    with pytest.raises(PackageError) as caught:
        package.require_tokenizer()
    text = str(caught.value)
    assert f"looked for {tmp_path / 'tokenizer.json'}, {tmp_path / 'onnx' / 'tokenizer.json'}" in text
    assert "It has tokenizer.model" in text


def test_error_texts_stay_short(tmp_path: Path) -> None:
    value = {"a": ["x" * 10000] * 50}
    write(tmp_path, {"genai_config.json": genai_with("model.context_length", value), "model.onnx": None})

    with pytest.raises(PackageError) as caught:
        read(tmp_path)

    assert len(str(caught.value)) < 400 + len(str(tmp_path))
    assert json.dumps(value) not in str(caught.value)
