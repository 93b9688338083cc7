"""What the readers take from sound packages of each format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnx_genai.package import ContextLimit, IoRoles, KvNameTemplates, Variant, read
from tests.package.folders import GENAI, TOKENIZER, genai_with, write


def test_genai_config_gives_facts_defaults_and_roles(tmp_path: Path) -> None:
    config = genai_with("model.decoder.inputs", {"input_ids": "ids", "past_key_names": "past.%d.k"})
    config["model"]["decoder"]["outputs"] = {"logits": "scores", "present_key_names": "now.%d.k"}
    write(tmp_path, {"genai_config.json": config, "model.onnx": None, "tokenizer.json": TOKENIZER})

    package = read(tmp_path)

    assert (package.format, package.model_type) == ("genai_config", "llama")
    assert package.model_path == tmp_path / "model.onnx"
    assert package.context_limits == (ContextLimit(tokens=4096, source="genai_config.json model.context_length"),)
    assert (package.vocab_size, package.vocab_source) == (32000, "genai_config.json model.vocab_size")
    assert (package.eos_token_ids, package.bos_token_id, package.pad_token_id) == ((2, 5), 1, 0)
    assert (package.kv.num_kv_heads, package.kv.num_attention_heads, package.kv.head_dim) == (8, 32, 64)
    assert package.io.kv_templates == KvNameTemplates(past_key="past.%d.k", present_key="now.%d.k")
    assert (package.io.input_ids, package.io.logits, package.io.strict) == ("ids", "scores", False)
    assert package.require_tokenizer() == tmp_path / "tokenizer.json"
    assert package.warnings == ()


def test_search_max_length_is_a_default_and_no_limit(tmp_path: Path) -> None:
    write(tmp_path, {"genai_config.json": GENAI, "model.onnx": None})

    package = read(tmp_path)

    assert package.context_limit == ContextLimit(tokens=4096, source="genai_config.json model.context_length")
    assert package.generation.max_length == 2048
    assert package.generation.max_new_tokens is None


def test_smallest_known_limit_wins_and_is_named(tmp_path: Path) -> None:
    files = {"genai_config.json": GENAI, "model.onnx": None, "config.json": {"max_position_embeddings": 1000}}
    write(tmp_path, files)

    assert read(tmp_path).context_limit == ContextLimit(tokens=1000, source="config.json max_position_embeddings")


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 77}, "config.json max_position_embeddings"),
        ({"n_positions": 77}, "config.json n_positions"),
        ({"max_target_positions": 77}, "config.json max_target_positions"),
        ({"max_seq_len": 77}, "config.json max_seq_len"),
        ({"text_config": {"max_position_embeddings": 77}}, "config.json text_config.max_position_embeddings"),
    ],
)
def test_context_length_has_several_names_in_config_json(config: dict[str, Any], limit: str, tmp_path: Path) -> None:
    write(tmp_path, {"config.json": config, "model.onnx": None})

    assert read(tmp_path).context_limits == (ContextLimit(tokens=77, source=limit),)


def test_session_options_are_read_and_the_rest_is_reported(tmp_path: Path) -> None:
    options = {
        "log_id": "x",
        "intra_op_num_threads": 3,
        "inter_op_num_threads": 0,
        "graph_optimization_level": "ORT_ENABLE_BASIC",
        "enable_profiling": "trace",
        "session.use_env_allocators": "1",
        "ep.context_file_path": "/tmp/x",
        "provider_options": [{"CUDA": {"enable_cuda_graph": "1", "n": 2}}, {}],
        "mystery": 1,
    }
    write(tmp_path, {"genai_config.json": genai_with("model.decoder.session_options", options), "model.onnx": None})

    package = read(tmp_path)

    session = package.session_options
    assert (session.intra_op_num_threads, session.inter_op_num_threads) == (3, None)
    assert session.graph_optimization_level == "basic"
    assert session.config_entries == {"session.use_env_allocators": "1"}
    assert [(item.name, item.options) for item in session.provider_options] == [
        ("cuda", {"enable_cuda_graph": "1", "n": "2"})
    ]
    assert [text.rpartition(": ")[2] for text in package.warnings] == [
        "model.decoder.session_options.enable_profiling is ignored",
        "model.decoder.session_options.ep.context_file_path is ignored",
        "model.decoder.session_options.mystery is not known and is ignored",
    ]


@pytest.mark.parametrize(
    ("path", "value", "warned"),
    [
        ("model.decoder.novelty", {"a": [1]}, "model.decoder.novelty"),
        ("model.visual_features", "x", "model.visual_features"),
        ("model.decoder.inputs", {"novel_input": "x"}, "model.decoder.inputs.novel_input"),
        ("search.novel", 1, "search.novel"),
        ("novel", None, "novel"),
    ],
)
def test_unknown_key_is_ignored_with_a_warning(path: str, value: Any, warned: str, tmp_path: Path) -> None:
    write(tmp_path, {"genai_config.json": genai_with(path, value), "model.onnx": None})

    package = read(tmp_path)

    assert package.warnings == (f"{tmp_path / 'genai_config.json'}: {warned} is not known and is ignored",)


METADATA: dict[str, Any] = {
    "schema_version": "v1",
    "required_capabilities": ["kv_cache", "grouped_query_attention"],
    "model": {
        "attention": {
            "type": "gqa",
            "num_attention_heads": 32,
            "num_kv_heads": 8,
            "head_dim": 128,
            "sliding_window": 4,
        },
        "max_sequence_length": 131072,
        "vocab_size": 151936,
        "io": {
            "token_input": "tokens",
            "attention_mask_input": "mask",
            "position_ids_input": "places",
            "logits_output": "scores",
            "kv_inputs": ["a", "b"],
            "kv_outputs": ["c", "d"],
            "kv_update": "shared_buffer",
        },
    },
    "kv_cache": {"native_dtype": "bf16"},
    "tokens": {"eos_token_id": [9, 10], "bos_token_id": 1, "pad_token_id": 0},
    "generation": {"do_sample": True, "top_p": 0.9},
}


@pytest.mark.parametrize("suffix", ["yaml", "yml", "json"])
def test_inference_metadata_gives_facts_and_strict_roles(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path, {f"inference_metadata.{suffix}": METADATA, "model.onnx": None})

    package = read(path)

    assert package.format == "inference_metadata"
    assert package.io == IoRoles(
        strict=True,
        source=str(tmp_path / f"inference_metadata.{suffix}"),
        input_ids="tokens",
        attention_mask="mask",
        position_ids="places",
        logits="scores",
        kv_inputs=("a", "b"),
        kv_outputs=("c", "d"),
    )
    assert (package.kv.num_kv_heads, package.kv.head_dim, package.kv.dtype) == (8, 128, "bf16")
    assert (package.kv.shared_buffer, package.kv.sliding_window) == (True, 4)
    assert (package.eos_token_ids, package.bos_token_id, package.pad_token_id) == ((9, 10), 1, 0)
    assert (package.generation.temperature, package.generation.top_p) == (1.0, 0.9)
    assert package.required_capabilities == ("kv_cache", "grouped_query_attention")
    assert package.context_limit is not None
    assert package.context_limit.tokens == 131072
    assert package.warnings == ()


def test_newer_spelling_of_tokens_and_defaults_is_read(tmp_path: Path) -> None:
    special = {"eos": {"id": 4, "content": "<end>"}, "bos_token": {"id": 3, "content": "<start>"}}
    metadata = {
        "schema_version": 1.0,
        "model": {"max_sequence_length": 8},
        "package": {"tokenizer": {"vocab_size": 99, "special_tokens": special}},
        "generation": {"defaults": {"temperature": 0.25}, "overrides": {}},
    }
    write(tmp_path, {"inference_metadata.yaml": metadata, "model.onnx": None})

    package = read(tmp_path)

    assert (package.eos_token_ids, package.bos_token_id, package.vocab_size) == ((4,), 3, 99)
    assert package.special_tokens == {"eos_token": "<end>", "bos_token": "<start>"}
    assert package.generation.temperature == 0.25


def test_metadata_wins_over_genai_config(tmp_path: Path) -> None:
    metadata = {"model": {"max_sequence_length": 7}}
    write(tmp_path, {"inference_metadata.yaml": metadata, "genai_config.json": GENAI, "model.onnx": None})

    assert read(tmp_path).format == "inference_metadata"
    assert read(tmp_path / "genai_config.json").format == "genai_config"


def test_pipeline_of_one_decoder_is_a_single_graph(tmp_path: Path) -> None:
    component = {"filename": "net/talk.onnx", "type": "decoder", "tokenizer": "text/tokenizer.json"}
    component["io"] = {"token_input": "tokens"}  # type: ignore[assignment]
    pipeline = {"models": {"talk": component}, "strategy": {"kind": "autoregressive", "decoder": "talk"}}
    files = {"net/talk.onnx": None, "text/tokenizer.json": TOKENIZER}
    write(tmp_path, {"inference_metadata.yaml": {"pipeline": pipeline}, **files})

    package = read(tmp_path)

    assert package.model_path == tmp_path / "net" / "talk.onnx"
    assert package.tokenizer_path == tmp_path / "text" / "tokenizer.json"
    assert package.io.input_ids == "tokens"


LAYOUTS = [
    (["model.onnx"], None, "model.onnx", "base"),
    (["decoder_model_merged.onnx"], None, "decoder_model_merged.onnx", "base"),
    (
        ["decoder_model_merged.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"],
        None,
        "decoder_model_merged.onnx",
        "base",
    ),
    (["onnx/model.onnx", "onnx/model_fp16.onnx"], None, "onnx/model.onnx", "base"),
    (["onnx/model.onnx", "onnx/model_fp16.onnx"], "fp16", "onnx/model_fp16.onnx", "fp16"),
    (["onnx/model.onnx", "onnx/model_q4.onnx", "onnx/model_q4f16.onnx"], None, "onnx/model_q4.onnx", "q4"),
    (["onnx/model.onnx", "onnx/model_q4.onnx"], "base", "onnx/model.onnx", "base"),
    (["onnx/model.onnx", "onnx/model_q4.onnx"], "fp32", "onnx/model.onnx", "base"),
    (["onnx/model.onnx", "onnx/model_quantized.onnx"], None, "onnx/model.onnx", "base"),
    (["onnx/model_quantized.onnx", "onnx/model_int8.onnx"], None, "onnx/model_quantized.onnx", "quantized"),
    (["onnx/model_quantized.onnx", "onnx/model.onnx"], "q8", "onnx/model_quantized.onnx", "quantized"),
    (["onnx/model_uint8.onnx", "onnx/model_bnb4.onnx"], "bnb4", "onnx/model_bnb4.onnx", "bnb4"),
    (["onnx/model.onnx", "onnx/model_q4.onnx"], "model_q4.onnx", "onnx/model_q4.onnx", "q4"),
    (
        ["onnx/decoder_model_merged_q4.onnx", "onnx/decoder_model_merged.onnx"],
        None,
        "onnx/decoder_model_merged_q4.onnx",
        "q4",
    ),
    (["odd_name.onnx"], None, "odd_name.onnx", "base"),
]


@pytest.mark.parametrize(("files", "variant", "chosen", "name"), LAYOUTS)
def test_layouts_without_package_file(
    files: list[str], variant: str | None, chosen: str, name: str, tmp_path: Path
) -> None:
    write(tmp_path, {"config.json": {}, **dict.fromkeys(files)})

    package = read(tmp_path, variant=variant)

    assert package.format == "optimum"
    assert package.root == tmp_path
    assert (package.model_path, package.variant) == (tmp_path / chosen, name)
    assert package.variants[0] == Variant(name=name, path=tmp_path / chosen)


@pytest.mark.parametrize("target", ["onnx", "onnx/model_q4.onnx", "config.json", "onnx/../onnx"])
def test_any_path_inside_a_package_means_the_package(target: str, tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, "tokenizer.json": TOKENIZER, "onnx/model_q4.onnx": None})

    package = read(tmp_path / target)

    assert package.tokenizer_path is not None
    assert package.tokenizer_path.samefile(tmp_path / "tokenizer.json")
    assert package.variant == "q4"


def test_path_of_a_graph_chooses_that_graph(tmp_path: Path) -> None:
    write(tmp_path, {"genai_config.json": GENAI, "model.onnx": None, "other.onnx": None})

    assert read(str(tmp_path / "other.onnx")).model_path == tmp_path / "other.onnx"


def test_half_of_the_old_pair_may_be_chosen_by_its_path(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": {}, "decoder_model.onnx": None, "decoder_with_past_model.onnx": None})

    assert read(tmp_path / "decoder_model.onnx").model_path.name == "decoder_model.onnx"


def test_bare_graph_is_enough(tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, "model.onnx_data": b"1", "model.onnx.data": b"1", "model.onnx_data_1": b"1"})

    package = read(tmp_path)

    assert package.format == "onnx"
    assert package.context_limits == ()
    assert [path.name for path in package.data_files] == ["model.onnx.data", "model.onnx_data", "model.onnx_data_1"]


def test_path_that_is_not_ascii_is_fine(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "dïr 日本 😀", {"genai_config.json": GENAI, "model.onnx": None, "tokenizer.json": TOKENIZER}
    )

    assert read(folder).model_path == folder / "model.onnx"


def test_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    write(tmp_path, {"config.json": b'\xef\xbb\xbf{"vocab_size": 5}', "model.onnx": None})

    assert read(tmp_path).vocab_size == 5


def test_manifest_of_another_tool_is_no_concern(tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, "manifest.json": {"generator": "x", "files": {}}})

    assert read(tmp_path).format == "onnx"


def test_links_of_a_hub_cache_are_followed(tmp_path: Path) -> None:
    repo = tmp_path / "models--a--b"
    snapshot = repo / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    write(repo / "blobs", {"x": None, "y": b'{"vocab_size": 5}'})
    (snapshot / "model.onnx").symlink_to(Path("../../blobs/x"))
    (snapshot / "config.json").symlink_to(Path("../../blobs/y"))

    package = read(snapshot)

    assert (package.vocab_size, package.model_path) == (5, snapshot / "model.onnx")


# ------------------------------------------------------------------ ends of a sequence

EOS = [
    # name, files, expected ids
    ("generation_config alone", {"generation_config.json": {"eos_token_id": [3, [4]]}}, (3, 4)),
    (
        "generation_config replaces config",
        {"generation_config.json": {"eos_token_id": 3}, "config.json": {"eos_token_id": 9}},
        (3,),
    ),
    ("config alone", {"config.json": {"eos_token_id": 9}}, (9,)),
    ("text_config", {"config.json": {"text_config": {"eos_token_id": 9}}}, (9,)),
    (
        "tokenizer adds its own",
        {"config.json": {"eos_token_id": 9}, "tokenizer_config.json": {"eos_token": "</s>"}},
        (9, 2),
    ),
    ("token as object", {"tokenizer_config.json": {"eos_token": {"content": "</s>"}}}, (2,)),
    ("token of the plain vocabulary", {"tokenizer_config.json": {"eos_token": "plain"}}, (5,)),
    (
        "token of the decoder table",
        {"tokenizer_config.json": {"eos_token": "<e>", "added_tokens_decoder": {"6": {"content": "<e>"}}}},
        (6,),
    ),
    ("special_tokens_map", {"special_tokens_map.json": {"eos_token": "</s>"}}, (2,)),
    ("genai replaces config", {"genai_config.json": GENAI, "config.json": {"eos_token_id": 9}}, (2, 5)),
    (
        "genai and generation_config",
        {"genai_config.json": GENAI, "generation_config.json": {"eos_token_id": 9}},
        (2, 5, 9),
    ),
    ("genai without eos takes pad", {"genai_config.json": genai_with("model.eos_token_id", None)}, (0,)),
    ("minus one means none", {"config.json": {"eos_token_id": -1}}, (2, 7)),
    ("nothing: the usual ends", {}, (2, 7)),
]


@pytest.mark.parametrize(("name", "files", "ids"), EOS, ids=[row[0] for row in EOS])
def test_ends_of_a_sequence(name: str, files: dict[str, Any], ids: tuple[int, ...], tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, "tokenizer.json": TOKENIZER, **files})

    assert read(tmp_path).eos_token_ids == ids


def test_end_token_of_a_unigram_vocabulary_is_found(tmp_path: Path) -> None:
    tokenizer = {"added_tokens": [], "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["</s>", -1.0]]}}
    write(tmp_path, {"model.onnx": None, "tokenizer.json": tokenizer})

    assert read(tmp_path).eos_token_ids == (1,)


# ------------------------------------------------------------------ generation defaults

DEFAULTS = [
    ({}, None),
    ({"do_sample": True}, 1.0),
    ({"do_sample": True, "temperature": 0.6}, 0.6),
    ({"do_sample": False, "temperature": 0.6}, 0.0),
    ({"do_sample": False}, 0.0),
    ({"temperature": 0.6}, 0.6),
    ({"do_sample": None, "temperature": None}, None),
]


@pytest.mark.parametrize(("config", "temperature"), DEFAULTS)
def test_default_temperature_respects_do_sample(
    config: dict[str, Any], temperature: float | None, tmp_path: Path
) -> None:
    write(tmp_path, {"model.onnx": None, "generation_config.json": config})

    assert read(tmp_path).generation.temperature == temperature


OUT_OF_RANGE = [
    ("top_p", 1.5, "top_p is 1.5, outside 0..1"),
    ("top_p", 0, "top_p is 0, which forbids every token"),
    ("temperature", -1, "temperature is -1, outside"),
    ("min_p", 2, "min_p is 2, outside"),
    ("repetition_penalty", 0, "repetition_penalty is 0"),
    ("num_beams", 4, "num_beams is 4; beam search is used only where a request asks for it"),
    ("length_penalty", 1e9, "length_penalty is 1e+09, outside"),
    ("early_stopping", "often", "early_stopping is 'often', not true, false"),
]


@pytest.mark.parametrize(("key", "value", "text"), OUT_OF_RANGE)
def test_poor_default_is_left_out_with_a_warning(key: str, value: float, text: str, tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, "generation_config.json": {key: value}})

    package = read(tmp_path)

    assert getattr(package.generation, key, None) is None
    assert len(package.warnings) == 1
    assert text in package.warnings[0]


def test_top_k_of_minus_one_is_off(tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, "generation_config.json": {"top_k": -1}})

    assert read(tmp_path).generation.top_k == 0


def test_package_file_replaces_generation_config(tmp_path: Path) -> None:
    files = {"genai_config.json": GENAI, "generation_config.json": {"temperature": 0.1, "top_p": 0.2, "min_p": 0.3}}
    write(tmp_path, {"model.onnx": None, **files})

    defaults = read(tmp_path).generation

    assert (defaults.temperature, defaults.top_p, defaults.min_p) == (0.7, 0.9, None)


# ------------------------------------------------------------------ chat templates

TEMPLATES = [
    ({"tokenizer_config.json": {"chat_template": "T"}}, "T", {}),
    ({"chat_template.jinja": "J", "tokenizer_config.json": {"chat_template": "J"}}, "J", {}),
    (
        {
            "tokenizer_config.json": {
                "chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]
            }
        },
        "D",
        {"tool_use": "U"},
    ),
    ({"chat_template.json": {"chat_template": "C"}}, "C", {}),
    ({"chat_template.jinja": "J", "additional_chat_templates/rag.jinja": "R"}, "J", {"rag": "R"}),
    ({"additional_chat_templates/rag.jinja": "R"}, None, {"rag": "R"}),
    ({"tokenizer_config.json": {"chat_template": [{"name": "tool_use", "template": "U"}]}}, None, {"tool_use": "U"}),
    ({}, None, {}),
]


@pytest.mark.parametrize(("files", "default", "named"), TEMPLATES)
def test_chat_templates(files: dict[str, Any], default: str | None, named: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, **files})

    template = read(tmp_path).chat_template

    assert (template.default, template.named) == (default, named)
    assert template.texts == {**named, **({} if default is None else {"default": default})}
    assert bool(template.source) == bool(template.texts)


def test_template_file_wins_over_the_tokenizers_with_a_warning(tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, "chat_template.jinja": "J", "tokenizer_config.json": {"chat_template": "T"}})

    package = read(tmp_path)

    assert package.chat_template.default == "J"
    assert "differs from chat_template.jinja, which is used" in package.warnings[0]


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"forced_bos_token_id": 7}, {}, ("config.json", 7)),
        ({"forced_bos_token_id": 7}, {"forced_bos_token_id": 0}, ("generation_config.json", 0)),
        ({"forced_bos_token_id": None}, {"decoder_start_token_id": 2}, None),
    ],
)
def test_forced_first_token_of_an_encoder_decoder_is_warned_of(
    config: dict[str, Any], generation: dict[str, Any], expected: tuple[str, int] | None, tmp_path: Path
) -> None:
    files: dict[str, Any] = {"encoder_model.onnx": None, "decoder_model_merged.onnx": None}
    config = {"is_encoder_decoder": True, "decoder_start_token_id": 2, **config}
    write(tmp_path, {**files, "config.json": config, "generation_config.json": generation})

    warnings = read(tmp_path).warnings

    if expected is None:
        assert warnings == ()
        return
    file, token = expected
    assert warnings == (
        f"{tmp_path / file}: forced_bos_token_id is {token}, and is not applied; ask for forced_tokens={{0: {token}}} "
        "where an answer shall begin with it",
    )


def test_forced_first_token_of_another_model_is_no_warning(tmp_path: Path) -> None:
    write(tmp_path, {"model.onnx": None, "config.json": {"forced_bos_token_id": 7}})

    assert read(tmp_path).warnings == ()
