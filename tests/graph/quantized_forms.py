"""Small decoders without KV that are made of quantized products, in the forms that exporters write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.graph.tiny import INT64, model, value, weights
from tests.kernels.nbits import Quantized, make_weights

__all__ = ["HIDDEN", "VOCAB", "Builder", "node"]

VOCAB, HIDDEN = 12, 40

_TYPES = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}


def node(op_type: str, inputs: Sequence[str], output: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, list(inputs), [output], name=f"node.{output}", domain=domain, **attributes)


class Builder:
    """Adds nodes and their weights. The graph begins with ``hidden`` [batch, new, 40] and ends with ``logits``."""

    def __init__(self, *, dtype: str = "float32", opset: int = 18) -> None:
        self.dtype = dtype
        self.opset = opset
        table = np.random.default_rng(5).standard_normal((VOCAB, HIDDEN)).astype(dtype)
        self.initializers = [weights("embedding", table)]
        self.nodes = [node("Gather", ["embedding", "input_ids"], "hidden")]
        self.outputs = [value("logits", _TYPES[dtype], ("batch", "new", VOCAB))]
        self.inputs = [value("input_ids", INT64, ("batch", "new"))]

    def constant(self, name: str, content: Any) -> str:
        self.initializers.append(weights(name, content))
        return name

    def add(self, *nodes: onnx.NodeProto) -> None:
        self.nodes += nodes

    def output(self, name: str) -> None:
        """Makes a value an output of the graph."""
        self.outputs.append(value(name, _TYPES[self.dtype], ("batch", "new", "width")))

    def product(
        self,
        source: str,
        output: str,
        n: int = VOCAB,
        k: int = HIDDEN,
        *,
        made: Quantized | None = None,
        constant_nodes: bool = False,
        more_inputs: Sequence[str] = (),
        attributes: dict[str, Any] | None = None,
        **options: Any,
    ) -> str:
        """Adds a MatMulNBits; ``options`` are those of ``make_weights``."""
        seed = len(self.nodes)
        made = made or make_weights(n, k, dtype=self.dtype, seed=seed, **{"block_size": 16, **options})
        inputs = [source]
        parts = {"q": made.data, "s": made.scales, "z": made.zero_points, "": None, "b": made.bias}
        for part, content in parts.items():
            if content is None:
                inputs.append("")
            elif constant_nodes:
                name = f"{output}.{part}"
                self.nodes.append(helper.make_node("Constant", [], [name], value=weights(f"{name}.v", content)))
                inputs.append(name)
            else:
                inputs.append(self.constant(f"{output}.{part}", content))
        while not inputs[-1]:
            inputs.pop()
        inputs += more_inputs
        given = {"K": made.k, "N": made.n, "bits": made.bits, "block_size": made.block_size, **(attributes or {})}
        self.add(node("MatMulNBits", inputs, output, "com.microsoft", **given))
        return output

    def build(self) -> onnx.ModelProto:
        return model(self.nodes, self.inputs, self.outputs, self.initializers, opset=self.opset)
