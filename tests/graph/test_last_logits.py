"""The cut before the last projection: equal rows, many endings, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_genai.graph import GraphContract, resolve
from onnx_genai.package import read
from tests.graph.tiny import EMBEDDING, FLOAT, HEAD, HIDDEN, VOCAB, open_session, save, tail_model, value, weights

IDS = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
FLOAT16 = TensorProto.FLOAT16
node = helper.make_node


def plain() -> onnx.ModelProto:
    return tail_model([node("MatMul", ["hidden", "head"], ["logits"])], [weights("head", HEAD)])


def with_bias() -> onnx.ModelProto:
    nodes = [node("MatMul", ["hidden", "head"], ["product"]), node("Add", ["bias", "product"], ["logits"])]
    return tail_model(nodes, [weights("head", HEAD), weights("bias", np.arange(VOCAB, dtype=np.float32))])


def with_softcap() -> onnx.ModelProto:
    nodes = [
        node("Constant", [], ["cap"], value_float=30.0),
        node("MatMul", ["hidden", "head"], ["product"]),
        node("Div", ["product", "cap"], ["small"]),
        node("Tanh", ["small"], ["bent"]),
        node("Mul", ["bent", "cap"], ["logits"]),
    ]
    return tail_model(nodes, [weights("head", HEAD)])


def with_cast() -> onnx.ModelProto:
    nodes = [node("MatMul", ["hidden", "head"], ["product"]), node("Cast", ["product"], ["logits"], to=FLOAT16)]
    return tail_model(nodes, [weights("head", HEAD)], logits_dtype=FLOAT16)


def tied_transpose() -> onnx.ModelProto:
    nodes = [node("Transpose", ["embedding"], ["head"]), node("MatMul", ["hidden", "head"], ["logits"])]
    return tail_model(nodes, [])


def dequantized_weight() -> onnx.ModelProto:
    nodes = [
        node("DequantizeLinear", ["head_q", "scale", "zero"], ["head"]),
        node("MatMul", ["hidden", "head"], ["logits"]),
    ]
    quantized = weights("head_q", np.clip(HEAD * 20, -127, 127).astype(np.int8))
    return tail_model(nodes, [quantized, weights("scale", np.float32(0.05)), weights("zero", np.int8(0))])


def dynamic_int8() -> onnx.ModelProto:
    """The chain that dynamic quantization writes; the scale comes from all rows and must stay so."""
    nodes = [
        node("DynamicQuantizeLinear", ["hidden"], ["q", "q_scale", "q_zero"]),
        node("MatMulInteger", ["q", "head_q", "q_zero", "zero"], ["sums"]),
        node("Cast", ["sums"], ["sums_f"], to=FLOAT),
        node("Mul", ["q_scale", "scale"], ["both"]),
        node("Mul", ["sums_f", "both"], ["logits"]),
    ]
    quantized = weights("head_q", np.clip(HEAD * 20, -127, 127).astype(np.int8))
    return tail_model(nodes, [quantized, weights("scale", np.float32(0.05)), weights("zero", np.int8(0))])


def four_bit() -> onnx.ModelProto:
    """MatMulNBits, block 16, K = 16."""
    embedding = np.concatenate([EMBEDDING, EMBEDDING[:, ::-1]], axis=1)
    packed = np.random.default_rng(1).integers(0, 256, (VOCAB, 1, 8), dtype=np.uint8)
    nodes = [
        node(
            "MatMulNBits",
            ["hidden", "packed", "scales"],
            ["logits"],
            domain="com.microsoft",
            K=16,
            N=VOCAB,
            bits=4,
            block_size=16,
        )
    ]
    scales = weights("scales", np.full(VOCAB, 0.1, np.float32))
    return tail_model(nodes, [weights("packed", packed), scales], embedding=embedding)


def table() -> onnx.ModelProto:
    square = np.arange(VOCAB * VOCAB, dtype=np.float32).reshape(VOCAB, VOCAB)
    return tail_model([node("Gather", ["table", "input_ids"], ["logits"])], [weights("table", square)])


def constant_weight() -> onnx.ModelProto:
    """A large weight in a Constant node."""
    wide = np.random.default_rng(2).standard_normal((HIDDEN, 400)).astype(np.float32)
    embedding = np.random.default_rng(3).standard_normal((400, HIDDEN)).astype(np.float32)
    nodes = [
        node("Constant", [], ["head"], value=weights("head_value", wide)),
        node("MatMul", ["hidden", "head"], ["logits"]),
    ]
    return tail_model(nodes, [], embedding=embedding)


def branches() -> onnx.ModelProto:
    """An If node makes the logits, as in merged decoders."""

    def branch(name: str, sign: float) -> onnx.GraphProto:
        nodes = [
            node("Mul", ["hidden", f"{name}_sign"], [f"{name}_x"]),
            node("MatMul", [f"{name}_x", "head"], [f"{name}_logits"]),
        ]
        output = value(f"{name}_logits", FLOAT, None)
        return helper.make_graph(nodes, name, [], [output], [weights(f"{name}_sign", np.float32(sign))])

    nodes = [
        node("Constant", [], ["yes"], value=weights("yes_value", np.array(True))),
        node("If", ["yes"], ["logits"], then_branch=branch("then", -1.0), else_branch=branch("else", 1.0)),
    ]
    return tail_model(nodes, [weights("head", HEAD)])


RECOGNISED: list[Callable[[], onnx.ModelProto]] = [
    plain,
    with_bias,
    with_softcap,
    with_cast,
    tied_transpose,
    dequantized_weight,
    dynamic_int8,
    four_bit,
    table,
    constant_weight,
    branches,
]


def reshaped() -> onnx.ModelProto:
    nodes = [node("MatMul", ["hidden", "head"], ["product"]), node("Reshape", ["product", "shape"], ["logits"])]
    return tail_model(nodes, [weights("head", HEAD), weights("shape", np.array([0, 0, VOCAB]))])


def over_all_rows() -> onnx.ModelProto:
    nodes = [node("MatMul", ["hidden", "head"], ["product"]), node("Softmax", ["product"], ["logits"], axis=1)]
    return tail_model(nodes, [weights("head", HEAD)])


def bias_by_row() -> onnx.ModelProto:
    nodes = [node("MatMul", ["hidden", "head"], ["product"]), node("Add", ["product", "rows"], ["logits"])]
    return tail_model(nodes, [weights("head", HEAD), weights("rows", np.ones((5, VOCAB), np.float32))])


def bias_from_data() -> onnx.ModelProto:
    nodes = [
        node("MatMul", ["hidden", "head"], ["product"]),
        node("ReduceMax", ["product"], ["top"], axes=[1], keepdims=1),
        node("Sub", ["product", "top"], ["logits"]),
    ]
    return tail_model(nodes, [weights("head", HEAD)])


def read_twice() -> onnx.ModelProto:
    nodes = [node("MatMul", ["hidden", "head"], ["logits"]), node("ReduceMean", ["logits"], ["mean"])]
    return tail_model(nodes, [weights("head", HEAD)], extra_outputs=[value("mean", FLOAT, None)])


def computed_weight() -> onnx.ModelProto:
    """The other operand may have any rank."""
    nodes = [
        node("Transpose", ["hidden"], ["turned"], perm=[0, 2, 1]),
        node("MatMul", ["hidden", "turned"], ["logits"]),
    ]
    return tail_model(nodes, [])


def one_fused_quantized_product() -> onnx.ModelProto:
    """Its scale comes from all rows, inside the operator."""
    nodes = [node("DynamicQuantizeMatMul", ["hidden", "head_q", "scale"], ["logits"], domain="com.microsoft")]
    quantized = weights("head_q", np.clip(HEAD * 20, -127, 127).astype(np.int8))
    return tail_model(nodes, [quantized, weights("scale", np.float32(0.05))])


LEFT_ALONE: list[tuple[Callable[[], onnx.ModelProto], str]] = [
    (reshaped, "the operator Reshape follows the projection"),
    (over_all_rows, "the operator Softmax follows"),
    (bias_by_row, "the operator Add follows"),
    (bias_from_data, "the operator Sub follows"),
    (read_twice, "is used in 2 places"),
    (computed_weight, "the operator MatMul follows"),
    (one_fused_quantized_product, "the operator DynamicQuantizeMatMul of com.microsoft follows"),
]


def _logits(contract: GraphContract, ids: np.ndarray = IDS) -> np.ndarray:
    result = open_session(contract).run([contract.logits], {contract.input_ids.name: ids})[0]
    assert isinstance(result, np.ndarray)
    return result


@pytest.mark.parametrize("build", RECOGNISED, ids=lambda build: build.__name__)
def test_recognised_ending_gives_the_last_row_of_the_full_graph(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    package = read(save(build(), tmp_path))

    full = resolve(package, last_logits=False)
    cut = resolve(package)

    assert not full.model_bytes
    assert cut.model_bytes
    assert cut.last_logits_only
    assert cut.rewrite_reason.startswith("only the last position reaches")
    assert _logits(cut).shape == (2, 1, full.vocab_size)
    np.testing.assert_array_equal(_logits(cut)[:, 0], _logits(full)[:, -1])
    np.testing.assert_array_equal(_logits(cut, IDS[:, :1]), _logits(full, IDS[:, :1]))


@pytest.mark.parametrize(("build", "reason"), LEFT_ALONE, ids=lambda item: getattr(item, "__name__", ""))
def test_unknown_ending_is_left_alone_and_says_why(
    build: Callable[[], onnx.ModelProto], reason: str, tmp_path: Path
) -> None:
    contract = resolve(read(save(build(), tmp_path)))

    assert contract.model_bytes == b""
    assert not contract.last_logits_only
    assert reason in contract.rewrite_reason
    assert _logits(contract).shape[1] in (1, IDS.shape[1])


def _large() -> onnx.ModelProto:
    """Weights above the size that stays inline."""
    rng = np.random.default_rng(5)
    embedding = rng.standard_normal((500, HIDDEN)).astype(np.float32)
    head = rng.standard_normal((HIDDEN, 500)).astype(np.float32)
    return tail_model([node("MatMul", ["hidden", "head"], ["logits"])], [weights("head", head)], embedding=embedding)


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_rewritten_model_refers_to_the_weights_of_the_original(external: bool, tmp_path: Path) -> None:
    folder = save(_large(), tmp_path, external=external)
    before = sorted(path.name for path in folder.iterdir())

    cut = resolve(read(folder))

    assert len(cut.model_bytes) < 4096
    assert cut.external_folder == folder.resolve()
    assert sorted(path.name for path in folder.iterdir()) == before
    full = resolve(read(folder), last_logits=False)
    np.testing.assert_array_equal(_logits(cut)[:, 0], _logits(full)[:, -1])


def test_large_weights_inside_are_mapped_even_where_nothing_is_cut(tmp_path: Path) -> None:
    wide = np.random.default_rng(4).standard_normal((HIDDEN, 40_000)).astype(np.float32)
    embedding = np.random.default_rng(6).standard_normal((40_000, HIDDEN)).astype(np.float32)
    nodes = [node("MatMul", ["hidden", "head"], ["product"]), node("Reshape", ["product", "shape"], ["logits"])]
    initializers = [weights("head", wide), weights("shape", np.array([0, 0, 40_000]))]
    save(tail_model(nodes, initializers, embedding=embedding), tmp_path)

    contract = resolve(read(tmp_path))

    assert not contract.last_logits_only
    assert 0 < len(contract.model_bytes) < 4096
    np.testing.assert_array_equal(_logits(contract), _logits(resolve(read(tmp_path), last_logits=False)))


@pytest.mark.parametrize("pad", range(5))
def test_weights_at_any_alignment_inside_the_file_are_read(pad: int, tmp_path: Path) -> None:
    graph = _large()
    graph.producer_name = "p" * pad

    cut = resolve(read(save(graph, tmp_path / "ünïcode 日本")))

    full = resolve(read(tmp_path / "ünïcode 日本"), last_logits=False)
    np.testing.assert_array_equal(_logits(cut)[:, 0], _logits(full)[:, -1])


def test_float_data_is_referred_to_like_raw_data(tmp_path: Path) -> None:
    graph = _large()
    for tensor in graph.graph.initializer:
        tensor.float_data.extend(np.frombuffer(tensor.raw_data, np.float32).tolist())
        tensor.ClearField("raw_data")

    cut = resolve(read(save(graph, tmp_path)))

    assert len(cut.model_bytes) < 4096
    full = resolve(read(tmp_path), last_logits=False)
    np.testing.assert_array_equal(_logits(cut)[:, 0], _logits(full)[:, -1])


@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_hub_cache_of_links_can_be_opened_after_the_rewrite(external: bool, tmp_path: Path) -> None:
    """ONNX Runtime refuses weights that a link leads out of the folder; the rewrite names the real files."""
    blobs, snapshot = tmp_path / "models--x" / "blobs", tmp_path / "models--x" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    save(_large(), tmp_path / "made", external=external)
    blobs.mkdir()
    for number, path in enumerate(sorted((tmp_path / "made").iterdir())):
        path.rename(blobs / f"blob{number}")
        (snapshot / path.name).symlink_to(Path("..") / ".." / "blobs" / f"blob{number}")

    cut = resolve(read(snapshot))

    assert cut.external_folder == blobs.resolve()
    assert _logits(cut).shape == (2, 1, 500)


def test_stated_shapes_after_the_cut_are_corrected(tmp_path: Path) -> None:
    graph = with_bias()
    graph.graph.value_info.append(value("product", FLOAT, ("batch", "new", VOCAB)))
    graph.graph.value_info.append(value("hidden", FLOAT, ("batch", "new", HIDDEN)))

    rewritten = onnx.ModelProto.FromString(resolve(read(save(graph, tmp_path))).model_bytes)

    assert [info.name for info in rewritten.graph.value_info] == ["hidden"]
    assert rewritten.graph.output[0].type.tensor_type.shape.dim[1].dim_value == 1
    onnx.checker.check_model(rewritten)
