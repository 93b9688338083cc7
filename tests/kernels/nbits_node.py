"""One MatMulNBits node in plain onnxruntime: ours, with several parts, or ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from tests.kernels.nbits import Quantized
from tests.kernels.operator import DOMAIN, make_session

__all__ = ["ours", "ours_session", "theirs"]

Array = npt.NDArray[Any]
_PROMPT_ROWS_PLACE = 13
_TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def ours_session(
    parts: Sequence[Quantized],
    *,
    accuracy_level: int = 4,
    swiglu: bool = False,
    threads: int = 1,
    cast: bool = False,
    prompt_rows: bool = False,
    **changed: Any,
) -> onnxruntime.InferenceSession:
    """A session with one genai.runtime::MatMulNBits.

    Args:
        parts: Weights of its products.
        accuracy_level: 4 rounds activations to int8.
        swiglu: One output: silu of the first product times the second.
        threads: Of the session.
        cast: Rows and outputs are float32, cast to and from the type of the scales.
        prompt_rows: It has an input that says which rows are of prompts.
        changed: Attributes that replace the right ones.
    """
    first = parts[0]
    attributes: dict[str, Any] = {
        "K": first.k,
        "N": first.n,
        "bits": first.bits,
        "block_size": first.block_size,
        "accuracy_level": accuracy_level,
    }
    attributes |= {f"N_{place}": part.n for place, part in enumerate(parts[1:], 1)}
    if first.layout:
        attributes |= {"b_layout": first.layout, "b_signed": int(first.signed)}
    if swiglu:
        attributes["swiglu"] = 1
    outputs = ["y0"] if swiglu else [f"y{place}" for place in range(len(parts))]
    return _session(DOMAIN, parts, outputs, {**attributes, **changed}, threads, cast=cast, prompt_rows=prompt_rows)


def ours(session: onnxruntime.InferenceSession, rows: Array, prompt_rows: Sequence[int] | None = None) -> list[Array]:
    """All outputs for rows [..., K], of which some may be of prompts: 1, others 0."""
    marks = {} if prompt_rows is None else {"prompt_rows": np.array(prompt_rows, np.int32)}
    return [np.asarray(output) for output in session.run(None, {"a": rows, **marks})]


def theirs(weights: Quantized, rows: Array, *, accuracy_level: int = 4) -> Array:
    """The product as com.microsoft::MatMulNBits computes it."""
    attributes = {
        "K": weights.k,
        "N": weights.n,
        "bits": weights.bits,
        "block_size": weights.block_size,
        "accuracy_level": accuracy_level,
    }
    return np.asarray(_session("com.microsoft", [weights], ["y0"], attributes, 1).run(None, {"a": rows})[0])


def _session(
    domain: str,
    parts: Sequence[Quantized],
    outputs: list[str],
    attributes: dict[str, Any],
    threads: int,
    *,
    cast: bool = False,
    prompt_rows: bool = False,
) -> onnxruntime.InferenceSession:
    inputs, initializers = ["cast.a" if cast else "a"], []
    for place, part in enumerate(parts):
        for name, content in (("b", part.data), ("s", part.scales), ("z", part.zero_points), ("bias", part.bias)):
            if domain != DOMAIN and name == "bias":
                inputs.append("")  # g_idx
            if content is None:
                inputs.append("")
                continue
            inputs.append(f"{name}{place}")
            initializers.append(numpy_helper.from_array(content, f"{name}{place}"))
    while not inputs[-1]:
        inputs.pop()
    if prompt_rows:
        inputs += [""] * (_PROMPT_ROWS_PLACE - len(inputs)) + ["prompt_rows"]
    dtype = _TYPES[str(parts[0].scales.dtype)]
    inner = [f"cast.{name}" for name in outputs] if cast else outputs
    nodes = [helper.make_node("MatMulNBits", inputs, inner, name="product", domain=domain, **attributes)]
    if cast:
        nodes.insert(0, helper.make_node("Cast", ["a"], inputs[:1], to=dtype))
        nodes += [helper.make_node("Cast", [a], [b], to=TensorProto.FLOAT) for a, b in zip(inner, outputs, strict=True)]
        dtype = TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("a", dtype, None),
            *([helper.make_tensor_value_info("prompt_rows", TensorProto.INT32, None)] if prompt_rows else ()),
        ],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
        initializers,
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(domain, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    return make_session(model.SerializeToString(), threads)
