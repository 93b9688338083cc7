"""The decoder graph: standard ONNX operators and those of ONNX Runtime's ``com.microsoft`` domain.

``input_ids`` int64 ``[batch, sequence]``, ``attention_mask`` int64 ``[batch, total]`` and
``past_key_values.N.key/value`` ``[batch, kv_heads, past, head_dim]`` give ``logits`` ``[batch, sequence, vocab]`` and
``present.N.key/value`` ``[batch, kv_heads, total, head_dim]``. Lengths are derived from the mask alone, so a past
buffer may be longer than what is valid in it and may be the same memory as its present.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from onnx_genai.convert.architectures import Layer, ModelSpec
from onnx_genai.convert.nodes import MICROSOFT, Attributes, Nodes
from onnx_genai.convert.rope import rope_tables
from onnx_genai.convert.weights import EMBEDDING, Part, StoredMatrix, WeightStore
from onnx_genai.errors import PackageError

__all__ = ["OPSET", "build_model"]

OPSET = 21
IR_VERSION = 10


class DecoderBuilder:
    """Builds the graph of one model; use once.

    Args:
        spec: The model.
        store: Gives the weights.
        accuracy_level: Of ``MatMulNBits``: 4 lets the runtime round activations to int8, 1 keeps them float32.
    """

    def __init__(self, spec: ModelSpec, store: WeightStore, accuracy_level: int) -> None:
        self._spec = spec
        self._store = store
        self._accuracy = accuracy_level
        self._nodes = Nodes()
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._tables: dict[str, tuple[ir.Value, ir.Value]] = {}
        self._means: dict[str, ir.Value] = {}

    def build(self) -> ir.Model:
        """The whole model; its large initializers refer to the data file."""
        spec = self._spec
        ids = self._input("input_ids", ir.DataType.INT64, ["batch_size", "sequence_length"])
        mask = self._input("attention_mask", ir.DataType.INT64, ["batch_size", "total_sequence_length"])
        lengths = self._lengths(mask)
        for name, rope in spec.ropes.items():
            if any(layer.rope == name for layer in spec.layers):
                cosine, sine = rope_tables(rope, spec.context)
                prefix = "" if name == "global" else f"{name}_"
                self._tables[name] = (
                    self._store.table(f"{prefix}cos_cache", cosine),
                    self._store.table(f"{prefix}sin_cache", sine),
                )
        hidden, head = self._embedding(ids)
        normed, hidden = self._norm("/model/layers.0/input_layernorm", "blk.0.attn_norm.weight", hidden, None)
        for index, layer in enumerate(spec.layers):
            last = index + 1 == len(spec.layers)
            prefix = f"/model/layers.{index}"
            attended = self._attention(index, layer, normed, lengths)
            attended = self._post_norm(index, "post_attention_norm", attended)
            normed, hidden = self._norm(
                f"{prefix}/post_attention_layernorm", f"blk.{index}.ffn_norm.weight", hidden, attended
            )
            fed = self._feed_forward(index, normed)
            fed = self._post_norm(index, "post_ffw_norm", fed)
            following = "output_norm.weight" if last else f"blk.{index + 1}.attn_norm.weight"
            name = "/model/norm" if last else f"/model/layers.{index + 1}/input_layernorm"
            normed, hidden = self._norm(name, following, hidden, fed)
        self._head(normed, head)
        graph = ir.Graph(
            self._inputs,
            self._outputs,
            nodes=self._nodes.nodes,
            initializers=self._store.initializers,
            opset_imports={"": OPSET, MICROSOFT: 1},
            name=spec.architecture,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="onnx-genai")

    # Inputs ---------------------------------------------------------------------------------------------------------

    def _input(self, name: str, dtype: ir.DataType, shape: Sequence[int | str]) -> ir.Value:
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self._inputs.append(value)
        return value

    def _output(self, value: ir.Value, name: str, shape: Sequence[int | str]) -> None:
        value.name = name
        value.shape = ir.Shape(shape)
        value.type = ir.TensorType(self._store.float_type)
        self._outputs.append(value)

    def _lengths(self, mask: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Valid positions a row minus one, int32 ``[batch]``, and the longest total, int32 scalar."""
        add = self._nodes.one
        one = self._store.constant("constants.one", np.array([1], np.int64))
        axis = self._store.constant("constants.axis", np.array(1, np.int64))
        to = {"to": int(ir.DataType.INT32)}
        prefix = "/model/attn_mask"
        valid = add("ReduceSum", f"{prefix}/ReduceSum", [mask, one], {"keepdims": 0})
        last = add("Cast", f"{prefix}/seqlens_k", [add("Sub", f"{prefix}/Sub", [valid, one])], to)
        shape = add("Shape", f"{prefix}/Shape", [mask])
        total = add("Gather", f"{prefix}/Gather", [shape, axis], {"axis": 0})
        return last, add("Cast", f"{prefix}/total_sequence_length", [total], to)

    # Products -------------------------------------------------------------------------------------------------------

    def _product(self, name: str, value: ir.Value, matrix: StoredMatrix, bias: ir.Value | None = None) -> ir.Value:
        """``value`` times the matrix, ``[batch, sequence, rows]``, plus the bias."""
        form = matrix.form
        if not form.quantized:
            product = self._nodes.one("MatMul", f"{name}/MatMul", [value, matrix.weight])
        else:
            source = self._with_means(value, matrix) if form.block_means else value
            product = self._nodes.one(
                "MatMulNBits",
                f"{name}/MatMulNBits",
                [source, matrix.weight, matrix.scales] + ([] if matrix.zero_points is None else [matrix.zero_points]),
                {
                    "K": form.width(matrix.columns),
                    "N": matrix.rows,
                    "bits": form.bits,
                    "block_size": form.block,
                    "accuracy_level": self._accuracy,
                },
                domain=MICROSOFT,
            )
        return product if bias is None else self._nodes.one("Add", f"{name}/Add", [product, bias])

    def _with_means(self, value: ir.Value, matrix: StoredMatrix) -> ir.Value:
        """``value`` ``[batch, sequence, columns]`` widened by the mean of each block, then by zeros."""
        name, block, integers = str(value.name), matrix.form.block, self._store.integers
        if name not in self._means:
            count = matrix.columns // block
            unused = matrix.form.width(matrix.columns) - matrix.columns - count
            shape = integers(f"constants.blocks_{count}", [0, 0, count, block])
            grouped = self._nodes.one("Reshape", f"{name}/Blocks", [value, shape])
            axis = integers("constants.last_axis", [3])
            means = self._nodes.one("ReduceMean", f"{name}/BlockMeans", [grouped, axis], {"keepdims": 0})
            if unused:
                pads = integers(f"constants.pads_{unused}", [0, 0, 0, 0, 0, unused])
                means = self._nodes.one("Pad", f"{name}/Pad", [means, pads])
            self._means[name] = self._nodes.one("Concat", f"{name}/WithMeans", [value, means], {"axis": -1})
        return self._means[name]

    def _norm(self, name: str, tensor: str, value: ir.Value, skip: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """RMS norm of ``value + skip``; returns the norm and the sum."""
        weight = self._store.vector(f"{name[1:].replace('/', '.')}.weight", tensor, self._spec.hidden)
        if skip is None:
            return self._rms(f"{name}/LayerNorm", value, weight), value
        normed, _, _, total = self._nodes.add(
            "SkipSimplifiedLayerNormalization",
            f"{name}/SkipLayerNorm",
            [value, skip, weight],
            {"epsilon": self._spec.epsilon},
            domain=MICROSOFT,
            outputs=("", "-", "-", "/sum"),
        )
        return normed, total

    def _rms(self, name: str, value: ir.Value, weight: ir.Value) -> ir.Value:
        attributes: Attributes = {"axis": -1, "stash_type": 1, "epsilon": self._spec.epsilon}
        return self._nodes.one("SimplifiedLayerNormalization", name, [value, weight], attributes)

    def _post_norm(self, index: int, name: str, value: ir.Value) -> ir.Value:
        """RMS norm of a block's result before it is added, in families that have one."""
        if not self._spec.family.post_norms:
            return value
        weight = self._store.vector(_weight(index, name), f"blk.{index}.{name}.weight", self._spec.hidden)
        return self._rms(f"/model/layers.{index}/{name}/LayerNorm", value, weight)

    # Blocks ---------------------------------------------------------------------------------------------------------

    def _attention(self, index: int, layer: Layer, value: ir.Value, lengths: tuple[ir.Value, ir.Value]) -> ir.Value:
        spec, name = self._spec, f"/model/layers.{index}/attn"
        query, key, values = self._query_key_value(index, name, value)
        shape: list[int | str] = ["batch_size", spec.kv_heads, "past_sequence_length", spec.head_dim]
        past = [
            self._input(f"past_key_values.{index}.{kind}", self._store.float_type, shape) for kind in ("key", "value")
        ]
        tables: Sequence[ir.Value | None] = self._tables[layer.rope] if layer.rope is not None else (None, None)
        attributes: dict[str, int | float] = {
            "num_heads": spec.heads,
            "kv_num_heads": spec.kv_heads,
            "scale": spec.attention_scale,
            "do_rotary": int(layer.rope is not None),
            "rotary_interleaved": 0,
            "local_window_size": -1 if layer.window is None else layer.window,
        }
        if spec.attention_softcap:
            attributes["softcap"] = spec.attention_softcap
        output, present_key, present_value = self._nodes.add(
            "GroupQueryAttention",
            f"{name}/GroupQueryAttention",
            [query, key, values, *past, *lengths, *tables],
            attributes,
            domain=MICROSOFT,
            outputs=("", "/key", "/value"),
        )
        shape[2] = "total_sequence_length"
        self._output(present_key, f"present.{index}.key", shape)
        self._output(present_value, f"present.{index}.value", shape)
        part = Part(tensor=f"blk.{index}.attn_output.weight")
        return self._project(index, "attn/o_proj", output, [part], spec.heads * spec.head_dim, spec.hidden)

    def _query_key_value(
        self, index: int, name: str, value: ir.Value
    ) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """Packed query, key and value in the first place, or the three apart."""
        spec, store = self._spec, self._store
        narrow = spec.kv_heads * spec.head_dim
        widths = {"q": spec.heads * spec.head_dim, "k": narrow, "v": narrow}
        parts = self._attention_parts(index)
        if len({store.form_of(part.tensor) for part in parts}) == 1:
            total = sum(widths.values())
            packed = self._project(index, "attn/qkv_proj", value, parts, spec.hidden, total)
            if not spec.family.head_norm:
                return packed, None, None
            sizes = store.integers("constants.query_key_value", list(widths.values()))
            three = self._nodes.add("Split", f"{name}/Split", [packed, sizes], {"axis": -1}, outputs=("/q", "/k", "/v"))
        else:
            three = [
                self._project(index, f"attn/{letter}_proj", value, [part], spec.hidden, width)
                for (letter, width), part in zip(widths.items(), parts, strict=True)
            ]
        if spec.family.head_norm:
            three[0] = self._head_norm(index, "q", spec.heads, three[0])
            three[1] = self._head_norm(index, "k", spec.kv_heads, three[1])
        return three[0], three[1], three[2]

    def _attention_parts(self, index: int) -> list[Part]:
        spec, prefix = self._spec, f"blk.{index}.attn_"
        if spec.family.fused and f"{prefix}qkv.weight" in self._store.file.tensors:
            return [Part(tensor=f"{prefix}qkv.weight")]
        heads = {"q": spec.heads, "k": spec.kv_heads} if spec.family.permuted_heads else {}
        return [Part(tensor=f"{prefix}{letter}.weight", heads=heads.get(letter, 0)) for letter in "qkv"]

    def _head_norm(self, index: int, letter: str, heads: int, value: ir.Value) -> ir.Value:
        """RMS norm over each head."""
        spec, name = self._spec, f"/model/layers.{index}/attn/{letter}_norm"
        weight = self._store.vector(
            _weight(index, f"attn.{letter}_norm"), f"blk.{index}.attn_{letter}_norm.weight", spec.head_dim
        )
        split = self._store.integers(f"constants.heads_{heads}", [0, 0, heads, spec.head_dim])
        joined = self._store.integers(f"constants.joined_{heads}", [0, 0, heads * spec.head_dim])
        apart = self._nodes.one("Reshape", f"{name}/Split", [value, split])
        normed = self._rms(f"{name}/LayerNorm", apart, weight)
        return self._nodes.one("Reshape", f"{name}/Join", [normed, joined])

    def _feed_forward(self, index: int, value: ir.Value) -> ir.Value:
        spec, name, prefix = self._spec, f"/model/layers.{index}/mlp", f"blk.{index}.ffn_"
        width = spec.feed_forward
        parts = [Part(tensor=f"{prefix}gate.weight"), Part(tensor=f"{prefix}up.weight")]
        if spec.family.fused and f"{prefix}gate.weight" not in self._store.file.tensors:
            parts = [Part(tensor=f"{prefix}up.weight")]
        if len({self._store.form_of(part.tensor) for part in parts}) == 1:
            both = self._project(index, "mlp/gate_up_proj", value, parts, spec.hidden, 2 * width)
            sizes = self._store.integers("constants.gate_up", [width, width])
            gate, up = self._nodes.add("Split", f"{name}/Split", [both, sizes], {"axis": -1}, outputs=("/gate", "/up"))
        else:
            gate, up = (
                self._project(index, f"mlp/{letter}_proj", value, [part], spec.hidden, width)
                for letter, part in zip(("gate", "up"), parts, strict=True)
            )
        product = self._nodes.one("Mul", f"{name}/Mul", [self._activate(name, gate), up])
        down = Part(tensor=f"{prefix}down.weight")
        return self._project(index, "mlp/down_proj", product, [down], width, spec.hidden)

    def _activate(self, name: str, gate: ir.Value) -> ir.Value:
        if self._spec.family.activation == "gelu_tanh":
            return self._nodes.one("Gelu", f"{name}/Gelu", [gate], {"approximate": "tanh"})
        sigmoid = self._nodes.one("Sigmoid", f"{name}/Sigmoid", [gate])
        return self._nodes.one("Mul", f"{name}/Silu", [gate, sigmoid])

    # Ends -----------------------------------------------------------------------------------------------------------

    def _embedding(self, ids: ir.Value) -> tuple[ir.Value, StoredMatrix | None]:
        """Hidden states ``[batch, sequence, hidden]``, and the matrix when it also is the output projection."""
        spec, name = self._spec, "/model/embed_tokens"
        matrix = self._store.matrix("model.embed_tokens.weight", [Part(tensor=EMBEDDING)], spec.hidden, lookup=True)
        if matrix.form.quantized:
            hidden = self._gather_quantized(name, ids, matrix)
        else:
            hidden = self._nodes.one("Gather", f"{name}/Gather", [matrix.weight, ids], {"axis": 0})
        if spec.family.scaled_embedding:
            scale = self._scalar("constants.embedding_scale", float(np.sqrt(spec.hidden)))
            hidden = self._nodes.one("Mul", f"{name}/Mul", [hidden, scale])
        return hidden, matrix if spec.tied else None

    def _gather_quantized(self, name: str, ids: ir.Value, matrix: StoredMatrix) -> ir.Value:
        """Looks up and decodes rows; the table shares its bytes with the product."""
        form, spec = matrix.form, self._spec
        packed = form.block * form.bits // 8
        count = form.blocks(matrix.columns)
        table = self._store.alias(matrix.weight, [matrix.rows, count * packed])
        inputs = [table, ids, matrix.scales] + ([] if matrix.zero_points is None else [matrix.zero_points])
        attributes = {"bits": form.bits, "block_size": form.block, "gather_axis": 0, "quantize_axis": 1}
        wide = self._nodes.one("GatherBlockQuantized", f"{name}/Gather", inputs, attributes, domain=MICROSOFT)
        if not form.block_means:
            return wide
        # A mean of `block` inputs had the weight `block * fraction`: undo the factor, then add it to the whole block.
        blocks = spec.hidden // form.block
        rest = count * form.block - spec.hidden - blocks
        sizes = self._store.integers(
            f"{name[1:]}.split", [spec.hidden, blocks, rest] if rest else [spec.hidden, blocks]
        )
        outputs = ("/codes", "/means", "/rest") if rest else ("/codes", "/means")
        codes, means = self._nodes.add("Split", f"{name}/Split", [wide, sizes], {"axis": -1}, outputs=outputs)[:2]
        split = self._store.integers(f"{name[1:]}.blocks", [0, 0, blocks, form.block])
        single = self._store.integers(f"{name[1:]}.column", [0, 0, blocks, 1])
        joined = self._store.integers(f"{name[1:]}.join", [0, 0, spec.hidden])
        grouped = self._nodes.one("Reshape", f"{name}/Blocks", [codes, split])
        column = self._nodes.one("Reshape", f"{name}/Column", [means, single])
        fraction = self._nodes.one("Div", f"{name}/Div", [column, self._scalar(f"{name[1:]}.size", form.block)])
        total = self._nodes.one("Add", f"{name}/Add", [grouped, fraction])
        return self._nodes.one("Reshape", f"{name}/Join", [total, joined])

    def _head(self, normed: ir.Value, tied: StoredMatrix | None) -> None:
        spec, name = self._spec, "/lm_head"
        if tied is None:
            matrix = self._store.matrix("lm_head.weight", [Part(tensor="output.weight")], spec.hidden)
            self._check_rows(matrix, spec.vocab, "output.weight")
        else:
            matrix = tied
        if tied is not None and not tied.form.quantized:
            turned = self._nodes.one("Transpose", f"{name}/Transpose", [tied.weight], {"perm": [1, 0]})
            logits = self._nodes.one("MatMul", f"{name}/MatMul", [normed, turned])
        else:
            logits = self._product(name, normed, matrix)
        if spec.final_softcap:
            cap = self._scalar("constants.softcap", spec.final_softcap)
            small = self._nodes.one("Div", f"{name}/Div", [logits, cap])
            logits = self._nodes.one("Mul", f"{name}/Mul", [self._nodes.one("Tanh", f"{name}/Tanh", [small]), cap])
        self._output(logits, "logits", ["batch_size", "sequence_length", spec.vocab])
        self._outputs.insert(0, self._outputs.pop())

    # Shared ---------------------------------------------------------------------------------------------------------

    def _project(
        self, index: int, name: str, value: ir.Value, parts: Sequence[Part], columns: int, rows: int
    ) -> ir.Value:
        """Product with the joined rows of ``parts``, plus their biases where the file has some."""
        store = self._store
        matrix = store.matrix(_weight(index, name.replace("/", ".")), parts, columns)
        self._check_rows(matrix, rows, parts[0].tensor)
        biases = [replace(part, tensor=part.tensor.replace(".weight", ".bias")) for part in parts]
        present = [part for part in biases if part.tensor in store.file.tensors]
        bias = None
        if present:
            if len(present) < len(parts):
                raise PackageError(f"{store.file.path}: layer {index} has only some biases: {present[0].tensor}")
            bias = store.bias(f"model.layers.{index}.{name.replace('/', '.')}.bias", present, rows)
        return self._product(f"/model/layers.{index}/{name}", value, matrix, bias)

    def _scalar(self, name: str, value: float) -> ir.Value:
        return self._store.constant(name, np.array(value, self._store.float_type.numpy()))

    def _check_rows(self, matrix: StoredMatrix, expected: int, tensor: str) -> None:
        if matrix.rows != expected:
            raise PackageError(
                f"{self._store.file.path}: tensor {tensor!r} gives {matrix.rows} rows; expected {expected}"
            )


def _weight(index: int, name: str) -> str:
    return f"model.layers.{index}.{name}.weight"


def build_model(spec: ModelSpec, store: WeightStore, accuracy_level: int) -> ir.Model:
    """Writes all weights through ``store`` and returns the graph that refers to them."""
    return DecoderBuilder(spec, store, accuracy_level).build()
