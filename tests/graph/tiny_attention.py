"""Small decoders with two layers of attention in the forms that exporters write; they can be run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import onnx
from onnx import helper

from tests.graph.tiny import BOOL, FLOAT, INT32, INT64, model, value, weights

VOCAB, HIDDEN, HEADS, KV_HEADS, WIDTH = 19, 16, 4, 2, 16
LAYERS, CAPACITY = 2, 48

Form = Literal["gqa", "gqa_packed", "attention", "attention_4d", "static", "static_4d", "mha"]


@dataclass(kw_only=True)
class Tiny:
    """What to build.

    ``body`` writes nodes between the layers, ``tail`` between the last layer and the projection.
    """

    form: Form = "gqa"
    attributes: dict[str, Any] = field(default_factory=dict)
    """Of the attention nodes."""
    inputs: dict[int, str] = field(default_factory=dict)
    """Further inputs of the attention nodes, by place."""
    initializers: dict[str, np.ndarray] = field(default_factory=dict)
    ports: Sequence[onnx.ValueInfoProto] = ()
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    """Before the layers."""
    body: Callable[[str, str], list[onnx.NodeProto]] | None = None
    tail: Callable[[str, str], list[onnx.NodeProto]] | None = None
    turn: Callable[[str, str, int], list[onnx.NodeProto]] | None = None
    """Nodes that turn query or keys: from value a to value b with so many heads."""
    positions: bool = False
    """Adds a table that is looked up by the value ``positions``."""
    mask_input: bool = True
    kv_heads: int = KV_HEADS
    value_width: int = WIDTH

    @property
    def opset(self) -> int:
        """The oldest that has the operators."""
        return {"att": 23, "sta": 24}.get(self.form[:3], 18)


def build(tiny: Tiny) -> onnx.ModelProto:
    rng = np.random.default_rng(11)
    static, kv_heads = tiny.form.startswith("static"), HEADS if tiny.form == "mha" else tiny.kv_heads
    inputs = [value("input_ids", INT64, ("batch", "new"))]
    if not static and tiny.mask_input:
        inputs.append(value("attention_mask", INT64, ("batch", "total")))
    if static:
        inputs += [value(name, INT64, ("batch",)) for name in ("write_indices", "nonpad_kv_seqlen")]
    inputs += tiny.ports
    nodes = [*tiny.nodes, helper.make_node("Gather", ["embedding", "input_ids"], ["tokens"])]
    arrays = {"embedding": rng.standard_normal((VOCAB, HIDDEN)), "head": rng.standard_normal((HIDDEN, VOCAB))}
    hidden = "tokens"
    if tiny.positions:
        arrays["places"] = rng.standard_normal((CAPACITY, HIDDEN))
        nodes += [
            helper.make_node("Gather", ["places", "positions"], ["placed"]),
            helper.make_node("Add", ["tokens", "placed"], ["hidden"]),
        ]
        hidden = "hidden"
    outputs = [value("logits", FLOAT, ("batch", "new", VOCAB))]
    for layer in range(LAYERS):
        widths = {"q": HEADS * WIDTH, "k": kv_heads * WIDTH, "v": kv_heads * tiny.value_width}
        for part, width in widths.items():
            arrays[f"w{part}.{layer}"] = rng.standard_normal((HIDDEN, width)) / 4
            nodes.append(helper.make_node("MatMul", [hidden, f"w{part}.{layer}"], [f"{part}.{layer}"]))
        arrays[f"wo.{layer}"] = rng.standard_normal((HEADS * tiny.value_width, HIDDEN)) / 4
        made, ports, presents = _attention(tiny, layer, kv_heads)
        nodes += made
        inputs += ports
        outputs += presents
        nodes += [
            helper.make_node("MatMul", [f"mix.{layer}", f"wo.{layer}"], [f"back.{layer}"]),
            helper.make_node("Add", [hidden, f"back.{layer}"], [f"sum.{layer}"]),
        ]
        hidden = f"sum.{layer}"
        if tiny.body is not None and layer == 0:
            nodes += tiny.body(hidden, "between")
            hidden = "between"
    if tiny.tail is not None:
        nodes += tiny.tail(hidden, "last")
        hidden = "last"
    nodes.append(helper.make_node("MatMul", [hidden, "head"], ["logits"]))
    initializers = [weights(name, array.astype(np.float32)) for name, array in arrays.items()]
    initializers += [weights(name, array) for name, array in tiny.initializers.items()]
    initializers += [
        weights("heads.q", np.array([0, 0, HEADS, WIDTH])),
        weights("heads.kv", np.array([0, 0, kv_heads, WIDTH])),
        weights("flat", np.array([0, 0, HEADS * WIDTH])),
        weights("one", np.array([1])),
        weights("minus_one", np.array([-1])),
        weights("one_32", np.array([1], np.int32)),
    ]
    if tiny.form.startswith("gqa"):
        nodes = [*_lengths(), *nodes]
    return model(nodes, inputs, outputs, initializers, opset=tiny.opset)


def _lengths() -> list[onnx.NodeProto]:
    """seqlens_k and total_sequence_length as exporters make them from the mask."""
    return [
        helper.make_node("Cast", ["attention_mask"], ["mask32"], to=INT32),
        helper.make_node("ReduceSum", ["mask32", "one"], ["counts"], keepdims=0),
        helper.make_node("Sub", ["counts", "one_32"], ["seqlens"]),
        helper.make_node("Shape", ["attention_mask"], ["mask_shape"]),
        helper.make_node("Gather", ["mask_shape", "one"], ["total_64"]),
        helper.make_node("Cast", ["total_64"], ["total"], to=INT32),
    ]


def _attention(
    tiny: Tiny, layer: int, kv_heads: int
) -> tuple[list[onnx.NodeProto], list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]]:
    form, names = tiny.form, [f"{part}.{layer}" for part in "qkv"]
    static, inside = form.startswith("static"), form.endswith("4d")
    past = [f"{kind}_cache.{layer}" if static else f"past.{layer}.{kind}" for kind in ("key", "value")]
    present = [
        f"updated_{name}" if static else f"present.{layer}.{kind}"
        for name, kind in zip(past, ("key", "value"), strict=True)
    ]
    nodes: list[onnx.NodeProto] = []
    if inside:
        for name, heads in zip(list(names), ("heads.q", "heads.kv", "heads.kv"), strict=True):
            nodes.append(helper.make_node("Reshape", [name, heads], [f"{name}.heads"]))
            nodes.append(helper.make_node("Transpose", [f"{name}.heads"], [f"{name}.in"], perm=[0, 2, 1, 3]))
        names = [f"{name}.in" for name in names]
    if tiny.turn is not None:
        for place, heads in enumerate((HEADS, kv_heads)):
            nodes += tiny.turn(names[place], f"{names[place]}.turned", heads)
            names[place] += ".turned"
    result = f"mix.{layer}.in" if inside else f"mix.{layer}"
    if form.startswith("gqa"):
        if form == "gqa_packed":
            nodes.append(helper.make_node("Concat", names, [f"qkv.{layer}"], axis=2))
            names = [f"qkv.{layer}", "", ""]
        given = [*names, *past, "seqlens", "total"]
        attributes = {"num_heads": HEADS, "kv_num_heads": kv_heads, **tiny.attributes}
        kind, domain = "GroupQueryAttention", "com.microsoft"
    elif form == "mha":
        given = [*names, "", "", "", *past]
        attributes = {"num_heads": HEADS, **tiny.attributes}
        kind, domain = "MultiHeadAttention", "com.microsoft"
    else:
        kind, domain = "Attention", ""
        attributes = dict(tiny.attributes)
        if not inside:
            attributes |= {"q_num_heads": HEADS, "kv_num_heads": kv_heads}
        given = [*names, "", *([] if static else past)]
        if static:
            axis = 2 if inside else 1
            for old, rows, new in zip(past, names[1:], present, strict=True):
                nodes.append(helper.make_node("TensorScatter", [old, rows, "write_indices"], [new], axis=axis))
            given = [names[0], *present, "", "", "", "nonpad_kv_seqlen"]
    given += [""] * (max([len(given) - 1, *tiny.inputs]) + 1 - len(given))
    for place, name in tiny.inputs.items():
        given[place] = name
    outs = [result] if static else [result, *present]
    nodes.append(helper.make_node(kind, given, outs, domain=domain, name=f"attention.{layer}", **attributes))
    if inside:
        nodes.append(helper.make_node("Transpose", [result], [f"mix.{layer}.out"], perm=[0, 2, 1, 3]))
        nodes.append(helper.make_node("Reshape", [f"mix.{layer}.out", "flat"], [f"mix.{layer}"]))
    widths = (WIDTH, tiny.value_width)
    ports, presents = [], []
    for name, new, width in zip(past, present, widths, strict=True):
        length = CAPACITY if static else "past"
        shape = ("batch", length, kv_heads * width) if static and not inside else ("batch", kv_heads, length, width)
        ports.append(value(name, FLOAT, shape))
        presents.append(value(new, FLOAT, None))
    return nodes, ports, presents


def causal_mask(kind: Literal["bool", "float"] = "bool", window: int = 0) -> list[onnx.NodeProto]:
    """Nodes that make the value ``mask`` [batch, 1, new, total] out of attention_mask and input_ids."""
    nodes = [
        helper.make_node("Shape", ["attention_mask"], ["m.shape"]),
        helper.make_node("Gather", ["m.shape", "m.1"], ["m.total"], axis=0),
        helper.make_node("Shape", ["input_ids"], ["m.ids"]),
        helper.make_node("Gather", ["m.ids", "m.1"], ["m.new"], axis=0),
        helper.make_node("Range", ["m.0", "m.total", "m.1"], ["m.keys"]),
        helper.make_node("Sub", ["m.total", "m.new"], ["m.past"]),
        helper.make_node("Range", ["m.past", "m.total", "m.1"], ["m.rows"]),
        helper.make_node("Unsqueeze", ["m.rows", "one"], ["m.queries"]),
        helper.make_node("LessOrEqual", ["m.keys", "m.queries"], ["m.causal"]),
        helper.make_node("Cast", ["attention_mask"], ["m.valid"], to=BOOL),
        helper.make_node("Unsqueeze", ["m.valid", "m.axes"], ["m.valid4"]),
        helper.make_node("And", ["m.causal", "m.valid4"], ["m.seen"]),
    ]
    last = "m.seen"
    if window:
        nodes += [
            helper.make_node("Sub", ["m.queries", "m.keys"], ["m.distance"]),
            helper.make_node("Less", ["m.distance", "m.window"], ["m.near"]),
            helper.make_node("And", ["m.seen", "m.near"], ["m.both"]),
        ]
        last = "m.both"
    if kind == "bool":
        return [*nodes, helper.make_node("Identity", [last], ["mask"])]
    return [*nodes, helper.make_node("Where", [last, "m.zero", "m.low"], ["mask"])]


def mask_constants(window: int = 0) -> dict[str, np.ndarray]:
    return {
        "m.0": np.array(0),
        "m.1": np.array(1),
        "m.axes": np.array([1, 2]),
        "m.window": np.array(window),
        "m.zero": np.array(0, np.float32),
        "m.low": np.array(np.finfo(np.float32).min, np.float32),
    }
