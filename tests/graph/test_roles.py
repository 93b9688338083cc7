"""Roles of inputs and outputs: found by declaration, name, shape and operator; refused with a way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from onnx import TensorProto, helper

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.graph import CacheStyle, DType, InputPort, describe, resolve
from onnx_genai.package import IoRoles, KvHints, KvNameTemplates, read
from tests.graph.tiny import (
    BOOL,
    FLOAT,
    HEADS,
    INT32,
    INT64,
    VOCAB,
    WIDTH,
    contract_of,
    gqa_decoder,
    kv_decoder,
    save,
    value,
)

KV_NAMES = [
    ("past_key_values.0.key", "past_key_values.0.value", "present.0.key", "present.0.value"),
    ("past.0.key", "past.0.value", "present.0.key", "present.0.value"),
    ("past_key_values_0_key", "past_key_values_0_value", "present_0_key", "present_0_value"),
    ("past_key_0", "past_value_0", "present_key_0", "present_value_0"),
    ("past_key_self_0", "past_value_self_0", "present_key_self_0", "present_value_self_0"),
    ("past.key.0", "past.value.0", "present.key.0", "present.value.0"),
    (
        "past_key_values.0.decoder.key",
        "past_key_values.0.decoder.value",
        "present.0.decoder.key",
        "present.0.decoder.value",
    ),
    ("past_key_values.0.k", "past_key_values.0.v", "present_key_values.0.k", "present_key_values.0.v"),
    ("cache_k_in", "cache_v_in", "cache_k_out", "cache_v_out"),  # by the operator alone
]


@pytest.mark.parametrize("names", KV_NAMES, ids=lambda names: names[0])
def test_past_and_present_are_paired_whatever_the_exporter_calls_them(names: tuple[str, ...], tmp_path: Path) -> None:
    contract = contract_of(kv_decoder(past=names[:2], present=names[2:]), tmp_path)

    assert contract.cache is CacheStyle.COPY
    assert [(pair.past, pair.present) for pair in contract.kv] == [(names[0], names[2]), (names[1], names[3])]
    assert contract.kv[0].dims == (-1, HEADS, -1, WIDTH)


def test_pairs_are_ordered_by_layer_with_key_before_value(tmp_path: Path) -> None:
    layers = [11, 2, 0]
    past = [f"past_key_values.{layer}.{part}" for layer in layers for part in ("value", "key")]
    present = [name.replace("past_key_values", "present") for name in past]

    contract = contract_of(kv_decoder(past=past, present=present), tmp_path)

    wanted = [f"past_key_values.{layer}.{part}" for layer in (0, 2, 11) for part in ("key", "value")]
    assert [pair.past for pair in contract.kv] == wanted
    assert [pair.present for pair in contract.kv] == [name.replace("past_key_values", "present") for name in wanted]


LAYOUTS = [
    (("batch", HEADS, "past", WIDTH), 0, 2, (-1, HEADS, -1, WIDTH)),
    ((1, HEADS, "past", WIDTH), 0, 2, (1, HEADS, -1, WIDTH)),
    (("batch", "past", HEADS, WIDTH), 0, 1, (-1, -1, HEADS, WIDTH)),
    (("past", "batch", HEADS, WIDTH), 1, 0, (-1, -1, HEADS, WIDTH)),
    (("batch", "past", 2 * WIDTH), 0, 1, (-1, -1, 2 * WIDTH)),
    ((2, "batch", HEADS, "past", WIDTH), 1, 3, (2, -1, HEADS, -1, WIDTH)),
]


@pytest.mark.parametrize(("shape", "batch_axis", "sequence_axis", "dims"), LAYOUTS)
def test_axes_come_from_the_shape(
    shape: tuple[int | str, ...], batch_axis: int, sequence_axis: int, dims: tuple[int, ...], tmp_path: Path
) -> None:
    pair = contract_of(kv_decoder(shape=shape), tmp_path).kv[0]

    assert (pair.batch_axis, pair.sequence_axis, pair.dims) == (batch_axis, sequence_axis, dims)


def test_packed_past_is_one_pair_a_layer(tmp_path: Path) -> None:
    graph = kv_decoder(
        past=("past_0", "past_1"), present=("present_0", "present_1"), shape=(2, "batch", HEADS, "past", WIDTH)
    )

    contract = contract_of(graph, tmp_path)

    assert [(pair.past, pair.present) for pair in contract.kv] == [("past_0", "present_0"), ("past_1", "present_1")]


def _port(name: str, dtype: DType, rank: int) -> InputPort:
    return InputPort(name=name, dtype=dtype, rank=rank)


EXTRA_INPUTS = [
    ("attention_mask", value("attention_mask", INT64, ("batch", "total")), DType.INT64),
    ("attention_mask", value("attention_mask", INT32, ("batch", "total")), DType.INT32),
    ("attention_mask", value("attention_mask", FLOAT, ("batch", "total")), DType.FLOAT32),
    ("position_ids", value("position_ids", INT64, ("batch", "new")), DType.INT64),
    ("cache_position", value("cache_position", INT64, ("new",)), DType.INT64),
    ("use_cache_branch", value("use_cache_branch", BOOL, (1,)), DType.BOOL),
    ("seqlens_k", value("seqlens_k", INT32, ("batch",)), DType.INT32),
    ("seqlens_k", value("seqlens_k", INT32, ()), DType.INT32),
    ("total_sequence_length", value("total_sequence_length", INT32, (1,)), DType.INT32),
    ("past_sequence_length", value("past_key_values_length", INT64, (1,)), DType.INT64),
]


@pytest.mark.parametrize(("role", "info", "dtype"), EXTRA_INPUTS, ids=lambda item: getattr(item, "name", None))
def test_input_with_a_usual_name_gets_its_role(
    role: str, info: onnx.ValueInfoProto, dtype: DType, tmp_path: Path
) -> None:
    contract = contract_of(kv_decoder(extra=[info]), tmp_path)

    rank = len(info.type.tensor_type.shape.dim)
    assert getattr(contract, role) == _port(info.name, dtype, rank)


def test_constant_inputs_are_bound_to_their_value(tmp_path: Path) -> None:
    extra = [value("num_logits_to_keep", INT64, ()), value("token_type_ids", INT64, ("batch", "new"))]

    contract = contract_of(kv_decoder(extra=extra), tmp_path)

    keep, types = contract.constants
    assert (keep.port.name, keep.value, keep.dims, keep.shape) == ("num_logits_to_keep", 1, (), "fixed")
    assert (types.port.name, types.value, types.shape) == ("token_type_ids", 0, "like_ids")
    assert contract.last_logits_only


@pytest.mark.parametrize("dtype", [INT32, INT64])
def test_token_ids_of_any_name_are_the_only_integer_matrix(dtype: int, tmp_path: Path) -> None:
    contract = contract_of(kv_decoder(ids="words", ids_dtype=dtype), tmp_path)

    assert contract.input_ids == _port("words", DType.INT32 if dtype == INT32 else DType.INT64, 2)


def test_logits_of_any_name_are_the_only_output_of_the_right_shape(tmp_path: Path) -> None:
    contract = contract_of(kv_decoder(logits="scores"), tmp_path)

    assert (contract.logits, contract.vocab_size) == ("scores", VOCAB)


def test_width_of_the_projection_is_the_vocabulary_when_the_shape_hides_it(tmp_path: Path) -> None:
    contract = contract_of(kv_decoder(logits_shape=("batch", "new", "vocab")), tmp_path)

    assert contract.vocab_size == VOCAB


def test_graph_without_past_runs_without_cache(tmp_path: Path) -> None:
    contract = contract_of(kv_decoder(past=(), present=()), tmp_path)

    assert contract.cache is CacheStyle.NONE
    assert contract.kv == ()


@pytest.mark.parametrize(
    ("options", "noted"),
    [
        ({"ids_shape": (1, "new")}, 1),
        ({"shape": (1, HEADS, "past", WIDTH)}, 1),
        ({"logits_shape": (1, "new", VOCAB)}, 1),
        ({}, 0),
    ],
)
def test_static_batch_limits_the_rows_of_a_run(options: dict[str, Any], noted: int, tmp_path: Path) -> None:
    assert contract_of(kv_decoder(**options), tmp_path).max_batch == noted


# What each operator condition says when it does not hold.
SPOILED = [("past_read", "past_key_values.0.key is read by"), ("present_read", "present.0.key is not, or not only")]


@pytest.mark.parametrize("packed", [False, True])
def test_past_that_only_gqa_reads_may_share_a_buffer(packed: bool, tmp_path: Path) -> None:
    contract = contract_of(gqa_decoder(packed=packed), tmp_path)

    assert contract.cache is CacheStyle.SLOT_GQA
    assert contract.seqlens_k == _port("seqlens_k", DType.INT32, 1)
    assert contract.total_sequence_length == _port("total_sequence_length", DType.INT32, 0)


@pytest.mark.parametrize(("spoil", "reason"), SPOILED)
def test_other_readers_forbid_a_shared_buffer(spoil: str, reason: str, tmp_path: Path) -> None:
    contract = contract_of(gqa_decoder(spoil=spoil), tmp_path)

    assert contract.cache is CacheStyle.COPY
    assert contract.cache_reason.startswith(reason)


@pytest.mark.parametrize("packed", [False, True])
def test_symbolic_head_size_is_taken_from_the_projection(packed: bool, tmp_path: Path) -> None:
    contract = contract_of(gqa_decoder(head_dim="kv_cache_dim", packed=packed), tmp_path)

    assert contract.kv[0].dims == (-1, HEADS, -1, WIDTH)


def test_symbolic_head_size_is_taken_from_the_package(tmp_path: Path) -> None:
    package = read(save(kv_decoder(shape=("batch", "heads", "past", "width")), tmp_path))
    package = replace(package, kv=KvHints(num_kv_heads=3, head_dim=5))

    assert resolve(package).kv[0].dims == (-1, 3, -1, 5)


def test_symbolic_head_size_that_nothing_tells_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"dimension 3 of the past input past_key_values\.0\.key .* head_dim"):
        contract_of(kv_decoder(shape=("batch", HEADS, "past", "width")), tmp_path)


def _static(**options: Any) -> onnx.ModelProto:
    return kv_decoder(
        past=("key_cache.0", "value_cache.0"),
        present=("updated_key_cache.0", "updated_value_cache.0"),
        **{"shape": ("batch", 32, HEADS * WIDTH), "extra": _lengths(), **options},
    )


def _lengths() -> list[onnx.ValueInfoProto]:
    return [value("write_indices", INT64, ("batch",)), value("nonpad_kv_seqlen", INT64, ("batch",))]


def test_static_cache_is_recognised_and_limits_the_context(tmp_path: Path) -> None:
    contract = contract_of(_static(), tmp_path)

    assert contract.cache is CacheStyle.SLOT_STATIC
    assert contract.write_indices == _port("write_indices", DType.INT64, 1)
    assert contract.nonpad_kv_seqlen == _port("nonpad_kv_seqlen", DType.INT64, 1)
    assert (contract.kv[0].dims, contract.kv[0].sequence_axis) == ((-1, 32, HEADS * WIDTH), 1)
    assert (contract.context_limit, contract.context_source) == (32, "model.onnx static cache capacity")


def test_static_cache_of_any_names_is_declared_in_the_metadata(tmp_path: Path) -> None:
    extra = [value("at", INT64, ("batch",)), value("upto", INT64, ("batch",))]
    save(kv_decoder(past=("a", "b"), present=("c", "d"), shape=("batch", "cap", 8), extra=extra), tmp_path)
    cache = {"write_indices_input": "at", "kv_sequence_length_input": "upto"}
    cache |= {"key_cache_inputs": ["a"], "value_cache_inputs": ["b"]}
    cache |= {"key_cache_outputs": ["c"], "value_cache_outputs": ["d"]}
    (tmp_path / "inference_metadata.yaml").write_text(yaml.safe_dump({"model": {"io": {"static_cache": cache}}}))

    contract = resolve(read(tmp_path))

    assert contract.cache is CacheStyle.SLOT_STATIC
    assert [(pair.past, pair.present) for pair in contract.kv] == [("a", "c"), ("b", "d")]
    assert contract.kv[0].dims == (-1, -1, 8)
    assert contract.context_limit == 0


def test_declared_roles_win_over_names(tmp_path: Path) -> None:
    """Ports are named so that a guess by name would be wrong."""
    graph = kv_decoder(
        ids="attention_mask",
        past=("past_key_values.1.value", "past_key_values.0.key"),
        present=("present.0.key", "present.1.value"),
        logits="scores",
        extra=[value("input_ids", INT64, ("batch", "total"))],
    )
    io = {"token_input": "attention_mask", "attention_mask_input": "input_ids", "logits_output": "scores"}
    io |= {"kv_inputs": ["past_key_values.1.value", "past_key_values.0.key"]}
    io |= {"kv_outputs": ["present.0.key", "present.1.value"]}
    save(graph, tmp_path)
    (tmp_path / "inference_metadata.yaml").write_text(yaml.safe_dump({"model": {"io": io}}))

    contract = resolve(read(tmp_path))

    assert contract.input_ids.name == "attention_mask"
    assert contract.attention_mask is not None
    assert contract.attention_mask.name == "input_ids"
    assert [(pair.past, pair.present) for pair in contract.kv] == list(
        zip(io["kv_inputs"], io["kv_outputs"], strict=True)
    )


def test_name_templates_pair_the_layers_that_the_graph_has(tmp_path: Path) -> None:
    past = ("k_in_3", "v_in_3", "k_in_0", "v_in_0")
    save(kv_decoder(past=past, present=tuple(name.replace("in", "out") for name in past)), tmp_path)
    templates = KvNameTemplates(
        past_key="k_in_%d", past_value="v_in_%d", present_key="k_out_%d", present_value="v_out_%d"
    )
    package = replace(read(tmp_path), io=IoRoles(kv_templates=templates, position_ids="position_ids"))

    contract = resolve(package)

    assert [pair.present for pair in contract.kv] == ["k_out_0", "v_out_0", "k_out_3", "v_out_3"]
    assert contract.position_ids is None


WRONG_DECLARATIONS = [
    ({"token_input": "nope"}, "declares the input 'nope' as token ids, but model.onnx does not have it"),
    ({"attention_mask_input": "nope"}, "declares the input 'nope' as attention mask"),
    ({"logits_output": "nope"}, "declares the output 'nope' as logits"),
    ({"kv_inputs": ["nope"], "kv_outputs": ["present.0.key"]}, "declares the input 'nope' as KV input"),
    ({"kv_inputs": ["past_key_values.0.key"], "kv_outputs": ["nope"]}, "declares the KV output 'nope'"),
]


@pytest.mark.parametrize(("io", "text"), WRONG_DECLARATIONS)
def test_declared_port_that_the_graph_lacks_is_named(io: dict[str, Any], text: str, tmp_path: Path) -> None:
    save(kv_decoder(), tmp_path)
    (tmp_path / "inference_metadata.yaml").write_text(yaml.safe_dump({"model": {"io": io}}))

    with pytest.raises(PackageError) as caught:
        resolve(read(tmp_path))

    assert text in str(caught.value)
    assert "inference_metadata.yaml" in str(caught.value)


def _embeds() -> onnx.ModelProto:
    graph = kv_decoder()
    graph.graph.input[0].CopyFrom(value("inputs_embeds", FLOAT, ("batch", "new", 8)))
    graph.graph.node[0].CopyFrom(helper.make_node("Identity", ["inputs_embeds"], ["hidden"]))
    return graph


def _extra(
    name: str, dtype: int = FLOAT, shape: tuple[int | str, ...] = ("batch", "n", 8)
) -> Callable[[], onnx.ModelProto]:
    return lambda: kv_decoder(extra=[value(name, dtype, shape)])


UNSUPPORTED = [
    (_embeds, "a decoder on embeddings"),
    (_extra("inputs_embeds"), "a decoder on embeddings"),
    (_extra("encoder_hidden_states"), "encoder-decoder"),
    (_extra("past_key_values.0.encoder.key", FLOAT, ("batch", 2, "n", 4)), "encoder-decoder"),
    (_extra("past_key_cross_0", FLOAT, ("batch", 2, "n", 4)), "encoder-decoder"),
    (_extra("pixel_values", FLOAT, ("batch", 3, "h", "w")), "vision-language"),
    (_extra("image_features"), "vision-language"),
    (_extra("input_features"), "audio"),
    (_extra("past_conv.0"), "hybrid or recurrent"),
    (_extra("past_key_values.0.conv_state"), "hybrid or recurrent"),
    (_extra("past_key_values.0.recurrent_state"), "hybrid or recurrent"),
    (_extra("rnn_states_prev"), "hybrid or recurrent"),
    (_extra("block_table", INT32, ("batch", "n")), "paged attention"),
    (lambda: kv_decoder(ids_shape=("batch", 1)), "fixed shape"),
    (lambda: kv_decoder(shape=("batch", HEADS, 128, WIDTH)), "fixed shape"),
    (lambda: kv_decoder(ids_shape=(4, "new")), "fixed batch of 4"),
    (lambda: kv_decoder(extra=[value("position_ids", INT64, (3, "batch", "new"))]), "positions on several"),
    (lambda: kv_decoder(extra=[value("attention_mask", INT64, ("b", 1, "s", "t"))]), "attention mask"),
    (lambda: kv_decoder(kv_dtype=TensorProto.FLOAT8E4M3FN), "float8e4m3fn"),
    (lambda: kv_decoder(logits_shape=("batch", 2)), "A classifier"),
    (lambda: kv_decoder(logits="last_hidden_state", past=(), present=()), "it is an embedding model"),
]


@pytest.mark.parametrize(("build", "text"), UNSUPPORTED)
def test_graph_of_another_kind_is_refused_by_name(
    build: Callable[[], onnx.ModelProto], text: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        contract_of(build(), tmp_path)

    assert text in str(caught.value)
    assert "model.onnx" in str(caught.value)


UNCLEAR = [
    (_extra("temperature", FLOAT, (1,)), ["input temperature (float [1]) has no known role", "model.io"]),
    (_extra("other_ids", INT64, ("batch", "n")), ["input other_ids (int64 [batch, n])"]),
    (lambda: kv_decoder(ids="a", extra=[value("b", INT64, ("batch", "n"))]), ["2 inputs could be them (a, b)"]),
    (lambda: kv_decoder(ids="input_ids", ids_dtype=FLOAT), ["input_ids (token ids) has the element type float"]),
    (lambda: kv_decoder(extra=[value("use_cache_branch", INT64, (1,))]), ["use_cache_branch", "expected bool"]),
    (
        lambda: kv_decoder(logits="a", extra_outputs=[value("b", FLOAT, ("batch", "new", 30))]),
        ["2 outputs could be them (a, b)", "model.io.logits_output"],
    ),
    (lambda: _static(extra=[]), ["no input that says where to write"]),
    (lambda: _static(extra=_lengths()[:1]), ["no input that says how much of it is valid"]),
    (lambda: kv_decoder(extra=_lengths()), ["no cache that is written at given positions"]),
]


@pytest.mark.parametrize(("build", "texts"), UNCLEAR)
def test_unclear_port_is_an_error_that_says_how_to_declare_it(
    build: Callable[[], onnx.ModelProto], texts: list[str], tmp_path: Path
) -> None:
    with pytest.raises(PackageError) as caught:
        contract_of(build(), tmp_path)

    for text in texts:
        assert text in str(caught.value)


def test_past_without_present_is_named(tmp_path: Path) -> None:
    graph = kv_decoder()
    del graph.graph.output[2]

    with pytest.raises(PackageError, match=r"past_key_values\.0\.value has no present output"):
        contract_of(graph, tmp_path)


def test_rotary_table_of_the_graph_is_a_limit(tmp_path: Path) -> None:
    contract = contract_of(gqa_decoder(rotary_rows=48), tmp_path)

    assert (contract.context_limit, contract.context_source) == (48, "model.onnx table cos")


def test_vocabulary_that_differs_from_the_package_is_noted_and_the_graph_wins(tmp_path: Path) -> None:
    save(kv_decoder(), tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 10}', encoding="utf-8")

    contract = resolve(read(tmp_path))

    assert contract.vocab_size == VOCAB
    assert contract.notes == (
        f"the graph has logits for {VOCAB} tokens, config.json vocab_size says 10; the graph wins",
    )


def test_description_holds_plain_values(tmp_path: Path) -> None:
    contract = resolve(read(save(gqa_decoder(), tmp_path)), decoder="slot")

    shown = describe(contract)

    assert shown["decoder"].startswith("slot")
    assert shown["ports"]["input_ids"] == "input_ids (int64, rank 2)"
    assert shown["kv"] == {"tensors": 2, "dtype": "float32", "shape": [None, HEADS, None, WIDTH], "uniform": True}
    assert shown["rewrite"].startswith("only the last position reaches MatMul")
    assert shown["context_limit"] is None
