"""Graphs rewritten to PagedAttention give the logits of the original, or stay as they are and say why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_genai.errors import InvalidArgumentError, UnsupportedError
from onnx_genai.graph import CacheStyle, DType, InputPort, PagedLayer, describe, resolve
from onnx_genai.package import read
from tests.graph.paged_cases import (
    CAUSAL,
    DIFFERS_IN_OLD,
    FORMS,
    IS_OLD,
    TOKENS,
    largest_error,
    nodes_of,
    paged_and_original,
    rotary,
    tolerance,
)
from tests.graph.paged_reference import PagedDriver, full_logits, ort_runner, reference_runner
from tests.graph.tiny import FLOAT, INT64, save, value
from tests.graph.tiny_attention import (
    HEADS,
    HIDDEN,
    KV_HEADS,
    LAYERS,
    VOCAB,
    WIDTH,
    Tiny,
    build,
)
from tests.models.checksum import CHECKSUM_STYLES, checksum_generate, checksum_logits
from tests.models.packages import write_checksum_package
from tests.models.reference import why_not_runnable


@pytest.mark.parametrize("name", FORMS)
def test_paged_graph_gives_the_logits_of_the_original(name: str, tmp_path: Path) -> None:
    if IS_OLD and name in DIFFERS_IN_OLD:
        pytest.skip("this onnxruntime computes the original in another way")
    contract, original = paged_and_original(FORMS[name], tmp_path)

    assert largest_error(contract, original) < tolerance()
    assert {node.op_type for node in nodes_of(contract)}.isdisjoint(
        {"GroupQueryAttention", "MultiHeadAttention", "Attention", "TensorScatter", "ReduceSum", "Range", "LessOrEqual"}
    )


def drive_checksum(driver: PagedDriver, width: int) -> None:
    """Runs four sequences in steps of 1 to 4 tokens each and compares every logit with the oracle."""
    known = {0: [5, 6, 7], 1: [1, 2, 3, 4, 5, 6, 7, 8], 2: [96], 3: [10, 0, 10, 0, 10]}
    prompts, waiting = {s: list(ids) for s, ids in known.items()}, {s: list(ids) for s, ids in known.items()}

    for step in range(7):
        sizes = {s: (3, 2, 1, 4)[(s + step) % 4] for s in known}
        rows = driver.step({s: waiting[s][: sizes[s]] for s in known})
        for s, row in rows.items():
            waiting[s] = waiting[s][sizes[s] :]
            if not waiting[s]:
                np.testing.assert_array_equal(row, checksum_logits(known[s], width))
                waiting[s] = [int(row.argmax())]
                known[s].extend(waiting[s])

    for s, prompt in prompts.items():
        assert known[s] == prompt + checksum_generate(prompt, len(known[s]) - len(prompt))


FUSED = [style for style, spec in CHECKSUM_STYLES.items() if spec.cache in ("gqa", "attention", "static")]


@pytest.mark.parametrize("style", FUSED)
def test_checksum_style_with_fused_attention_is_exact(style: str, tmp_path: Path) -> None:
    contract = resolve(read(write_checksum_package(tmp_path, style)), decoder="paged")

    drive_checksum(PagedDriver(contract, reference_runner(contract)), CHECKSUM_STYLES[style].logits_width)


@pytest.mark.parametrize("style", FUSED)
def test_checksum_style_is_exact_in_onnxruntime_with_our_operator(style: str, tmp_path: Path) -> None:
    core = pytest.importorskip("onnx_genai._core")
    if reason := why_not_runnable(CHECKSUM_STYLES[style]):
        pytest.skip(reason)
    contract = resolve(read(write_checksum_package(tmp_path, style)), decoder="paged")
    runner = ort_runner(contract, Path(core.__file__))

    drive_checksum(PagedDriver(contract, runner, block_size=16), CHECKSUM_STYLES[style].logits_width)


@pytest.mark.parametrize("style", [style for style in CHECKSUM_STYLES if style not in FUSED])
def test_checksum_style_without_fused_attention_says_why_it_is_not_paged(style: str, tmp_path: Path) -> None:
    contract = resolve(read(write_checksum_package(tmp_path, style)))

    assert contract.cache is not CacheStyle.PAGED
    assert contract.coverage.num_problems > 0


def test_float16_graph_computes_attention_in_float32_with_float16_caches(tmp_path: Path) -> None:
    """ONNX Runtime would replace a float16 operator by its float32 kernel, and cast the caches to copies."""
    contract = resolve(read(write_checksum_package(tmp_path, "gqa_fp16")))

    graph = onnx.load_from_string(contract.model_bytes).graph
    types = {item.name: item.type.tensor_type.elem_type for item in (*graph.input, *graph.value_info)}
    node = next(node for node in graph.node if node.op_type == "PagedAttention")
    assert types[contract.paged_layers[0].key_cache] == onnx.TensorProto.FLOAT16
    assert types[node.output[0]] == FLOAT
    assert all(name.startswith("genai.wide.") for name in node.input[:3])


def test_contract_of_a_paged_graph_names_its_new_inputs(tmp_path: Path) -> None:
    contract, _ = paged_and_original(Tiny(form="gqa_packed", **rotary()), tmp_path)

    assert contract.cache is CacheStyle.PAGED
    assert contract.kv == ()
    assert contract.attention_mask is contract.position_ids is None
    assert contract.cumulative_sequence_length == InputPort(
        name="genai.cumulative_sequence_length", dtype=DType.INT32, rank=1
    )
    assert contract.past_seqlens == InputPort(name="genai.past_seqlens", dtype=DType.INT32, rank=1)
    assert contract.block_table == InputPort(name="genai.block_table", dtype=DType.INT32, rank=2)
    assert contract.logits_indices == InputPort(name="genai.logits_indices", dtype=DType.INT64, rank=1)
    assert contract.paged_layers == tuple(
        PagedLayer(
            key_cache=f"genai.key_cache.{layer}",
            value_cache=f"genai.value_cache.{layer}",
            dtype=DType.FLOAT32,
            kv_heads=KV_HEADS,
            head_dim=WIDTH,
            value_dim=WIDTH,
        )
        for layer in range(LAYERS)
    )
    graph = onnx.load_from_string(contract.model_bytes).graph
    assert [output.name for output in graph.output] == ["logits"]
    assert {value.name for value in graph.input} == {
        "input_ids",
        "genai.cumulative_sequence_length",
        "genai.past_seqlens",
        "genai.block_table",
        "genai.logits_indices",
        *(f"genai.{kind}_cache.{layer}" for kind in ("key", "value") for layer in range(LAYERS)),
    }
    assert not any(tensor.name.startswith("one") for tensor in graph.initializer)


def test_group_query_attention_becomes_one_node_with_its_attributes(tmp_path: Path) -> None:
    contract, _ = paged_and_original(Tiny(form="gqa_packed", **rotary(local_window_size=5)), tmp_path)

    nodes = [node for node in nodes_of(contract) if node.op_type == "PagedAttention"]

    assert [node.name for node in nodes] == ["attention.0", "attention.1"]
    assert list(nodes[1].input) == [
        *("qkv.1", "", "", "genai.key_cache.1", "genai.value_cache.1"),
        *("genai.cumulative_sequence_length", "genai.past_seqlens", "genai.block_table", "cos", "sin"),
    ]
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in nodes[1].attribute}
    assert (attributes["num_heads"], attributes["kv_num_heads"]) == (HEADS, KV_HEADS)
    assert (attributes["do_rotary"], attributes["local_window_size"]) == (1, 5)
    assert not any(node.op_type in ("Reshape", "Transpose", "Cast", "Shape") for node in nodes_of(contract))


def test_heads_axis_that_a_transpose_made_needs_no_transpose(tmp_path: Path) -> None:
    contract, _ = paged_and_original(Tiny(form="attention_4d", attributes=CAUSAL), tmp_path)

    node = next(node for node in nodes_of(contract) if node.op_type == "PagedAttention")

    assert list(node.input[:3]) == ["q.0", "k.0", "v.0"]


def test_query_norms_are_handed_on(tmp_path: Path) -> None:
    norms = {"qn": np.ones(WIDTH, np.float32), "kn": np.ones(WIDTH, np.float32)}
    tiny = Tiny(inputs={14: "qn", 15: "kn"}, initializers=norms, attributes={"qk_norm_epsilon": 1e-5})

    contract, _ = paged_and_original(tiny, tmp_path)

    node = next(node for node in nodes_of(contract) if node.op_type == "PagedAttention")
    assert list(node.input[12:14]) == ["qn", "kn"]
    epsilon = next(attribute.f for attribute in node.attribute if attribute.name == "qk_norm_epsilon")
    assert epsilon == pytest.approx(1e-5)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [("float32", 1), ("float16", 10), ("bfloat16", 16), ("int8", 3)],
)
def test_kv_dtype_is_that_of_the_cache_inputs(dtype: Any, element: int, tmp_path: Path) -> None:
    package = read(save(build(Tiny()), tmp_path))

    contract = resolve(package, kv_dtype=dtype)

    inputs = {item.name: item.type.tensor_type for item in onnx.load_from_string(contract.model_bytes).graph.input}
    assert inputs["genai.key_cache.0"].elem_type == element
    dims = inputs["genai.key_cache.0"].shape.dim
    assert [dim.dim_param or dim.dim_value for dim in dims] == ["genai.num_blocks", KV_HEADS, WIDTH, "genai.block_size"]
    layer = contract.paged_layers[0]
    assert layer.dtype.value == dtype
    assert (layer.key_scale in inputs) == (layer.value_scale in inputs) == (dtype == "int8")


def test_kv_of_quantized_weights_is_float16(tmp_path: Path) -> None:
    def product(source: str, output: str) -> list[onnx.NodeProto]:
        wide = helper.make_node("DequantizeLinear", ["square", "scale"], ["square.wide"])
        return [wide, helper.make_node("MatMul", [source, "square.wide"], [output])]

    arrays = {"square": np.eye(HIDDEN, dtype=np.int8), "scale": np.array(0.5, np.float32)}
    quantized = read(save(build(Tiny(tail=product, initializers=arrays)), tmp_path / "quantized"))
    plain = read(save(build(Tiny()), tmp_path / "plain"))

    found = [resolve(quantized), resolve(quantized, kv_dtype="float32"), resolve(plain)]

    kept = [[layer.dtype.value for layer in contract.paged_layers] for contract in found]
    assert kept == [["float16"] * LAYERS, ["float32"] * LAYERS, ["float32"] * LAYERS]


@pytest.mark.parametrize(("dtype", "roundoff"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8), ("int8", 1 / 254)])
def test_smaller_kv_stays_near_the_original(dtype: Any, roundoff: float, tmp_path: Path) -> None:
    """A low scale keeps the weights of the keys apart from their rounding, so the error is that of the values."""
    package = read(save(build(Tiny(**rotary(scale=0.01))), tmp_path))
    original = resolve(package, last_logits=False)

    error = largest_error(resolve(package, kv_dtype=dtype), original)

    assert 0 < error < 4 * LAYERS * roundoff * float(np.abs(full_logits(original, TOKENS[0])).max())


def test_int32_ports_become_int64(tmp_path: Path) -> None:
    contract = resolve(read(write_checksum_package(tmp_path, "gqa_int32")))

    assert contract.input_ids.dtype is DType.INT64
    assert contract.position_ids == InputPort(name="position_ids", dtype=DType.INT64, rank=2)


def test_static_capacity_is_no_limit_of_a_paged_graph(tmp_path: Path) -> None:
    package = read(save(build(Tiny(form="static", attributes=CAUSAL)), tmp_path))
    package = replace(package, context_limits=())
    places = [helper.make_node("Identity", ["position_ids"], ["positions"])]
    ports = [value("position_ids", INT64, ("batch", "new"))]
    table = Tiny(form="static", attributes=CAUSAL, positions=True, nodes=places, ports=ports)
    other = read(save(build(table), tmp_path / "table"))

    assert resolve(package).context_source == "model.onnx static cache capacity"  # nothing else tells a limit
    assert resolve(other).context_source == "model.onnx table places"


def test_concatenated_past_is_refused_for_each_tensor(tmp_path: Path) -> None:
    package = read(write_checksum_package(tmp_path, "concat"))

    contract = resolve(package)

    assert contract.cache is CacheStyle.COPY
    assert contract.coverage.num_problems == len(contract.coverage.problems) == 4
    assert contract.coverage.problems[0].startswith("past_key_values.0.key is read by Concat")


def test_paged_decoder_that_is_not_possible_says_why(tmp_path: Path) -> None:
    package = read(write_checksum_package(tmp_path, "concat"))

    with pytest.raises(
        UnsupportedError, match=r"decoder is 'paged'.*past_key_values\.0\.key is read by Concat.*'auto'"
    ):
        resolve(package, decoder="paged")


def test_kv_dtype_of_another_decoder_is_that_of_the_graph(tmp_path: Path) -> None:
    package = read(write_checksum_package(tmp_path, "concat"))

    with pytest.raises(UnsupportedError, match=r"kv_dtype is 'int8', but the decoder 'copy' keeps KV.*float32"):
        resolve(package, kv_dtype="int8")
    assert resolve(package, kv_dtype="float32").cache is CacheStyle.COPY


@pytest.mark.parametrize(
    ("style", "decoder", "cache"),
    [
        ("gqa", "slot", CacheStyle.SLOT_GQA),
        ("gqa", "copy", CacheStyle.COPY),
        ("static", "slot", CacheStyle.SLOT_STATIC),
        ("attention", "copy", CacheStyle.COPY),
    ],
)
def test_other_decoders_take_the_graph_as_it_is(style: str, decoder: Any, cache: CacheStyle, tmp_path: Path) -> None:
    contract = resolve(read(write_checksum_package(tmp_path, style)), decoder=decoder)

    assert contract.cache is cache
    assert len(contract.kv) == 4


@pytest.mark.parametrize(("style", "decoder"), [("static", "copy"), ("attention", "slot")])
def test_decoder_that_does_not_fit_the_graph_is_refused(style: str, decoder: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=f"decoder is '{decoder}', but the graph runs as"):
        resolve(read(write_checksum_package(tmp_path, style)), decoder=decoder)


@pytest.mark.parametrize("option", [{"decoder": "fast"}, {"kv_dtype": "int4"}])
def test_unknown_option_lists_the_known_ones(option: Mapping[str, Any], tmp_path: Path) -> None:
    package = read(save(build(Tiny()), tmp_path))

    with pytest.raises(InvalidArgumentError, match="allowed: auto, "):
        resolve(package, **option)


def test_logits_whose_end_is_not_known_have_no_row_input(tmp_path: Path) -> None:
    def tail(a: str, b: str) -> list[onnx.NodeProto]:
        return [helper.make_node("Identity", [a], [b])]

    tiny = Tiny(tail=tail)
    graph = build(tiny)
    graph.graph.node[-1].output[0] = "scores"
    graph.graph.node.append(helper.make_node("Softmax", ["scores"], ["logits"], axis=-1))
    package = read(save(graph, tmp_path))

    contract = resolve(package)

    assert contract.cache is CacheStyle.PAGED
    assert contract.logits_indices is None
    assert contract.rewrite_reason.startswith("logits of all tokens are computed")
    assert largest_error(contract, resolve(package, last_logits=False)) < tolerance()


def test_description_of_a_paged_graph_counts_nodes_and_layers(tmp_path: Path) -> None:
    shown = describe(resolve(read(save(build(Tiny()), tmp_path)), kv_dtype="float16"))

    assert shown["decoder"].startswith("paged")
    assert shown["coverage"] == {"attention_nodes": 2, "replaced": 2, "problems": [], "num_problems": 0}
    assert shown["kv"] == {
        "tensors": 4,
        "layers": 2,
        "dtype": "float16",
        "heads": KV_HEADS,
        "head_dim": WIDTH,
        "value_dim": WIDTH,
        "block_size": 16,
        "uniform": True,
    }
    assert shown["vocab_size"] == VOCAB


def test_weights_stay_in_their_file(tmp_path: Path) -> None:
    folder = save(build(Tiny()), tmp_path, external=True)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    contract = resolve(read(folder))

    tensors = {t.name: t for t in onnx.load_from_string(contract.model_bytes).graph.initializer}
    assert tensors["wq.0"].data_location == onnx.TensorProto.EXTERNAL
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
