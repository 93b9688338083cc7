"""The decoder graph: standard ONNX operators and those of ONNX Runtime's ``com.microsoft`` domain.

``input_ids`` int64 ``[batch, sequence]``, ``attention_mask`` int64 ``[batch, total]`` and
``past_key_values.N.key/value`` ``[batch, kv_heads, past, head_dim]`` give ``logits`` ``[batch, sequence, vocab]`` and
``present.N.key/value`` ``[batch, kv_heads, total, head_dim]``. Lengths are derived from the mask alone, so a past buffer
may be longer than what is valid in it and may be the same memory as its present.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from onnx_genai.convert.architectures import Layer, ModelSpec
from onnx_genai.convert.rope import rope_tables
from onnx_genai.convert.weights import Part, StoredMatrix, WeightStore
from onnx_genai.errors import PackageError

__all__ = ["OPSET", "build_model"]

OPSET = 21
IR_VERSION = 10
MICROSOFT = "com.microsoft"

Attributes = Mapping[str, int | float | str | Sequence[int]]


class _Nodes:
    """Collects nodes; every value is named after the node that makes it."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []

    def add(
        self,
        op: str,
        name: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
        outputs: Sequence[str] = ("",),
    ) -> list[ir.Value]:
        """Adds a node; ``outputs`` are suffixes of the names of its values (``-`` leaves an output out)."""
        values = [ir.Value(name="" if suffix == "-" else name + suffix) for suffix in outputs]
        self.nodes.append(ir.node(op, list(inputs), attributes, domain=domain, outputs=values, name=name))
        return values

    def one(
        self,
        op: str,
        name: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        *,
        domain: str = "",
    ) -> ir.Value:
        """Adds a node with one output."""
        return self.add(op, name, inputs, attributes, domain=domain)[0]


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
        self._nodes = _Nodes()
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._tables: dict[str, tuple[ir.Value, ir.Value]] = {}
        self._means: dict[str, ir.Value] = {}
        self._eps = {"epsilon": spec.epsilon}

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
            attended = self._post_norm(
                f"{prefix}/post_attention_norm", f"blk.{index}.post_attention_norm.weight", attended
            )
            normed, hidden = self._norm(
                f"{prefix}/post_attention_layernorm", f"blk.{index}.ffn_norm.weight", hidden, attended
            )
            fed = self._feed_forward(index, normed)
            fed = self._post_norm(f"{prefix}/post_feedforward_norm", f"blk.{index}.post_ffw_norm.weight", fed)
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
            source = self._with_means(value, matrix.columns, form.block) if form.block_means else value
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

    def _with_means(self, value: ir.Value, columns: int, block: int) -> ir.Value:
        """``value`` ``[batch, sequence, columns]`` widened by the mean of each block of its last axis."""
        name = str(value.name)
        if name not in self._means:
            count = columns // block
            shape = self._shape(f"constants.blocks_{count}", [0, 0, count, block])
            axis = self._shape("constants.last_axis", [3])
            grouped = self._nodes.one("Reshape", f"{name}/Blocks", [value, shape])
            means = self._nodes.one("ReduceMean", f"{name}/BlockMeans", [grouped, axis], {"keepdims": 0})
            self._means[name] = self._nodes.one("Concat", f"{name}/WithMeans", [value, means], {"axis": -1})
        return self._means[name]

    def _norm(self, name: str, tensor: str, value: ir.Value, skip: ir.Value | None) -> tuple[ir.Value, ir.Value]:
        """RMS norm of ``value + skip``; returns the norm and the sum."""
        weight = self._store.vector(f"{name[1:].replace('/', '.')}.weight", tensor, self._spec.hidden)
        if skip is None:
            return self._rms(f"{name}/LayerNorm", value, weight), value
        attributes, domain = self._eps, MICROSOFT
        outputs = ("", "-", "-", "/sum")
        normed, _, _, total = self._nodes.add(
            "SkipSimplifiedLayerNormalization", f"{name}/SkipLayerNorm", [value, skip, weight], attributes,
            domain=domain, outputs=outputs,
        )  # fmt: skip
        return normed, total

    def _rms(self, name: str, value: ir.Value, weight: ir.Value) -> ir.Value:
        attributes: Attributes = {"axis": -1, "stash_type": 1} | self._eps
        return self._nodes.one("SimplifiedLayerNormalization", name, [value, weight], attributes)

    def _post_norm(self, name: str, tensor: str, value: ir.Value) -> ir.Value:
        if not self._spec.family.post_norms:
            return value
        weight = self._store.vector(f"{name[1:].replace('/', '.')}.weight", tensor, self._spec.hidden)
        return self._rms(f"{name}/LayerNorm", value, weight)

    # Blocks ---------------------------------------------------------------------------------------------------------

    def _attention(self, index: int, layer: Layer, value: ir.Value, lengths: tuple[ir.Value, ir.Value]) -> ir.Value:
        spec, name = self._spec, f"/model/layers.{index}/attn"
        query, key, values = self._query_key_value(index, name, value)
        shape = ["batch_size", spec.kv_heads, "past_sequence_length", spec.head_dim]
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
        columns = spec.heads * spec.head_dim
        matrix = self._store.matrix(
            self._weight(index, "attn.o_proj"), [Part(tensor=f"blk.{index}.attn_output.weight")], columns
        )
        self._check_rows(matrix, spec.hidden, f"blk.{index}.attn_output.weight")
        bias = self._bias(index, "attn.o_proj", [(f"blk.{index}.attn_output.bias", spec.hidden)])
        return self._product(f"{name}/o_proj", output, matrix, bias)

    def _query_key_value(
        self, index: int, name: str, value: ir.Value
    ) -> tuple[ir.Value, ir.Value | None, ir.Value | None]:
        """Packed query, key and value in the first place, or the three apart."""
        spec = self._spec
        widths = {
            "q": spec.heads * spec.head_dim,
            "k": spec.kv_heads * spec.head_dim,
            "v": spec.kv_heads * spec.head_dim,
        }
        parts, biases = self._attention_parts(index, widths)
        if len({self._store.form_of(part.tensor) for part in parts}) == 1:
            matrix = self._store.matrix(self._weight(index, "attn.qkv_proj"), parts, spec.hidden)
            self._check_rows(matrix, sum(widths.values()), parts[0].tensor)
            bias = self._bias(index, "attn.qkv_proj", biases)
            packed = self._product(f"{name}/qkv_proj", value, matrix, bias)
            if not spec.family.head_norm:
                return packed, None, None
            sizes = self._store.constant(self._weight(index, "attn.split"), np.array(list(widths.values()), np.int64))
            three = self._nodes.add("Split", f"{name}/Split", [packed, sizes], {"axis": -1}, outputs=("/q", "/k", "/v"))
        else:
            three = []
            for (letter, width), part, bias_part in zip(widths.items(), parts, biases or [None] * 3, strict=True):
                matrix = self._store.matrix(self._weight(index, f"attn.{letter}_proj"), [part], spec.hidden)
                self._check_rows(matrix, width, part.tensor)
                bias = self._bias(index, f"attn.{letter}_proj", [] if bias_part is None else [bias_part])
                three.append(self._product(f"{name}/{letter}_proj", value, matrix, bias))
        if spec.family.head_norm:
            three[0] = self._head_norm(index, "q", spec.heads, three[0])
            three[1] = self._head_norm(index, "k", spec.kv_heads, three[1])
        return three[0], three[1], three[2]

    def _attention_parts(self, index: int, widths: Mapping[str, int]) -> tuple[list[Part], list[tuple[str, int]]]:
        spec, prefix = self._spec, f"blk.{index}.attn_"
        tensors = self._store.file.tensors
        if spec.family.fused and f"{prefix}qkv.weight" in tensors:
            biases = [(f"{prefix}qkv.bias", sum(widths.values()))] if f"{prefix}qkv.bias" in tensors else []
            return [Part(tensor=f"{prefix}qkv.weight")], biases
        heads = {"q": spec.heads, "k": spec.kv_heads, "v": 0} if spec.family.permuted_heads else {}
        parts = [Part(tensor=f"{prefix}{letter}.weight", heads=heads.get(letter, 0)) for letter in widths]
        present = [letter for letter in widths if f"{prefix}{letter}.bias" in tensors]
        if present and (len(present) < 3 or heads):
            raise PackageError(f"{self._store.file.path}: layer {index} has biases of {present} only, or permuted ones")
        return parts, [(f"{prefix}{letter}.bias", widths[letter]) for letter in present]

    def _head_norm(self, index: int, letter: str, heads: int, value: ir.Value) -> ir.Value:
        """RMS norm over each head."""
        spec, name = self._spec, f"/model/layers.{index}/attn/{letter}_norm"
        weight = self._store.vector(
            self._weight(index, f"attn.{letter}_norm"), f"blk.{index}.attn_{letter}_norm.weight", spec.head_dim
        )
        split = self._shape(f"constants.heads_{heads}", [0, 0, heads, spec.head_dim])
        joined = self._shape(f"constants.joined_{heads}", [0, 0, heads * spec.head_dim])
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
            matrix = self._store.matrix(self._weight(index, "mlp.gate_up_proj"), parts, spec.hidden)
            self._check_rows(matrix, 2 * width, parts[0].tensor)
            both = self._product(f"{name}/gate_up_proj", value, matrix)
            sizes = self._shape("constants.gate_up", [width, width])
            gate, up = self._nodes.add("Split", f"{name}/Split", [both, sizes], {"axis": -1}, outputs=("/gate", "/up"))
        else:
            products = []
            for letter, part in zip(("gate", "up"), parts, strict=True):
                matrix = self._store.matrix(self._weight(index, f"mlp.{letter}_proj"), [part], spec.hidden)
                self._check_rows(matrix, width, part.tensor)
                products.append(self._product(f"{name}/{letter}_proj", value, matrix))
            gate, up = products
        product = self._nodes.one("Mul", f"{name}/Mul", [self._activate(name, gate), up])
        down = self._store.matrix(self._weight(index, "mlp.down_proj"), [Part(tensor=f"{prefix}down.weight")], width)
        self._check_rows(down, spec.hidden, f"{prefix}down.weight")
        return self._product(f"{name}/down_proj", product, down)

    def _activate(self, name: str, gate: ir.Value) -> ir.Value:
        if self._spec.family.activation == "gelu_tanh":
            return self._nodes.one("Gelu", f"{name}/Gelu", [gate], {"approximate": "tanh"})
        sigmoid = self._nodes.one("Sigmoid", f"{name}/Sigmoid", [gate])
        return self._nodes.one("Mul", f"{name}/Silu", [gate, sigmoid])

    # Ends -----------------------------------------------------------------------------------------------------------

    def _embedding(self, ids: ir.Value) -> tuple[ir.Value, StoredMatrix | None]:
        """Hidden states ``[batch, sequence, hidden]``, and the matrix when it also is the output projection."""
        spec, name = self._spec, "/model/embed_tokens"
        matrix = self._store.matrix(
            "model.embed_tokens.weight", [Part(tensor="token_embd.weight")], spec.hidden, lookup=True
        )
        if matrix.form.quantized:
            hidden = self._gather_quantized(name, ids, matrix)
        else:
            hidden = self._nodes.one("Gather", f"{name}/Gather", [matrix.weight, ids], {"axis": 0})
        if spec.family.scaled_embedding:
            scale = np.array(np.sqrt(spec.hidden), self._store.float_type.numpy())
            hidden = self._nodes.one("Mul", f"{name}/Mul", [hidden, self._store.constant("constants.scale", scale)])
        return hidden, matrix if spec.tied else None

    def _gather_quantized(self, name: str, ids: ir.Value, matrix: StoredMatrix) -> ir.Value:
        """Looks up and decodes rows; the table shares its bytes with the product."""
        form, spec = matrix.form, self._spec
        assert matrix.weight.shape is not None
        count, packed = int(matrix.weight.shape[1]), int(matrix.weight.shape[2])
        table = self._store.alias(matrix.weight, [matrix.rows, count * packed])
        inputs = [table, ids, matrix.scales] + ([] if matrix.zero_points is None else [matrix.zero_points])
        attributes = {"bits": form.bits, "block_size": form.block, "gather_axis": 0, "quantize_axis": 1}
        wide = self._nodes.one("GatherBlockQuantized", f"{name}/Gather", inputs, attributes, domain=MICROSOFT)
        if not form.block_means:
            return wide
        # A mean of `block` inputs had the weight `block * fraction`: undo the factor, then add it to the whole block.
        blocks = spec.hidden // form.block
        rest = count * form.block - spec.hidden - blocks
        sizes = self._shape(f"{name[1:]}.split", [spec.hidden, blocks, rest] if rest else [spec.hidden, blocks])
        outputs = ("/codes", "/means", "/rest") if rest else ("/codes", "/means")
        codes, means = self._nodes.add("Split", f"{name}/Split", [wide, sizes], {"axis": -1}, outputs=outputs)[:2]
        grouped = self._nodes.one(
            "Reshape", f"{name}/Blocks", [codes, self._shape(f"{name[1:]}.blocks", [0, 0, blocks, form.block])]
        )
        column = self._nodes.one(
            "Reshape", f"{name}/Column", [means, self._shape(f"{name[1:]}.column", [0, 0, blocks, 1])]
        )
        block = self._store.constant(f"{name[1:]}.size", np.array(form.block, self._store.float_type.numpy()))
        fraction = self._nodes.one("Div", f"{name}/Div", [column, block])
        total = self._nodes.one("Add", f"{name}/Add", [grouped, fraction])
        return self._nodes.one("Reshape", f"{name}/Join", [total, self._shape(f"{name[1:]}.join", [0, 0, spec.hidden])])

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
            cap = self._store.constant(
                "constants.softcap", np.array(spec.final_softcap, self._store.float_type.numpy())
            )
            small = self._nodes.one("Div", f"{name}/Div", [logits, cap])
            logits = self._nodes.one("Mul", f"{name}/Mul", [self._nodes.one("Tanh", f"{name}/Tanh", [small]), cap])
        self._output(logits, "logits", ["batch_size", "sequence_length", spec.vocab])
        self._outputs.insert(0, self._outputs.pop())

    # Names and checks -----------------------------------------------------------------------------------------------

    @staticmethod
    def _weight(index: int, name: str) -> str:
        return f"model.layers.{index}.{name}.weight"

    def _bias(self, index: int, name: str, tensors: Sequence[tuple[str, int]]) -> ir.Value | None:
        present = [item for item in tensors if item[0] in self._store.file.tensors]
        return self._store.vectors(f"model.layers.{index}.{name}.bias", present) if present else None

    def _shape(self, name: str, values: Sequence[int]) -> ir.Value:
        for value in self._store.initializers:
            if value.name == name:
                return value
        return self._store.constant(name, np.array(values, np.int64))

    def _check_rows(self, matrix: StoredMatrix, expected: int, tensor: str) -> None:
        if matrix.rows != expected:
            raise PackageError(
                f"{self._store.file.path}: tensor {tensor!r} gives {matrix.rows} rows; expected {expected}"
            )


def build_model(spec: ModelSpec, store: WeightStore, accuracy_level: int) -> ir.Model:
    """Writes all weights through ``store`` and returns the graph that refers to them."""
    return DecoderBuilder(spec, store, accuracy_level).build()
