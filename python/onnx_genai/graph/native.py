"""Rewrites quantized matrix products to genai.runtime::MatMulNBits: :func:`native_products`.

Works on any graph, paged or not. Our operator reads the constants as they are, so nodes are renamed and joined, and
weights stay where they are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableSequence, Sequence
from dataclasses import replace
from typing import Any

import onnx
from onnx import helper

from onnx_genai.errors import UnsupportedError
from onnx_genai.graph.contract import CacheStyle, DType, GraphContract, InputPort, OperatorCount, Products
from onnx_genai.graph.index import GraphIndex, attributes_of
from onnx_genai.graph.integer_products import INT8_ACTIVATIONS
from onnx_genai.graph.paged import DOMAIN
from onnx_genai.graph.product_groups import Group, Grouping, group_products
from onnx_genai.graph.product_norms import Norm
from onnx_genai.graph.products import Found, Kind, Product, may_have_products, read_products
from onnx_genai.graph.projection import NotRecognisedError
from onnx_genai.graph.skeleton import Skeleton, nodes_of
from onnx_genai.graph.weights import drop_unused, keep_items, lift_constants, relocate
from onnx_genai.types import Backend

__all__ = ["native_products", "operator_counts"]

_LEAST_IR = 4
"""First version in which weights need not be listed among the inputs."""
_MAX_PROBLEMS = 8
_CHUNK_DEPTH = 32
_PROMPT_ROWS = "genai.prompt_rows"
_PROMPT_ROWS_PLACES = {"MatMulNBits": 13, "PagedAttention": 17}
"""Which input of our operators says which rows are of prompts."""
_HANDED_INPUT, _NORM_WEIGHT_INPUT, _SKIP_INPUT = 14, 15, 16
_HANDED_OUTPUT, _SUM_OUTPUT = 3, 4


def native_products(
    contract: GraphContract, skeleton: Skeleton, backend: Backend, known: Mapping[str, str]
) -> GraphContract:
    """Returns the contract of the graph with the products of ``backend``, and which they are.

    Args:
        contract: Of the graph as it is.
        skeleton: Its ``model`` is what ``contract.model_bytes`` holds, or the file as loaded if that is empty. It is
            the rewritten one on success, and untouched else.
        backend: "ort" replaces nothing, "auto" and "native" what our operator can compute; "native" must find some.
        known: Why products with integer weights stay, by the name of their first output.

    Raises:
        UnsupportedError: The backend is "native", but nothing can be replaced.
    """
    if not may_have_products(skeleton.model):
        if backend == "native":
            raise _nothing_to_replace(contract, Found())
        return contract
    index = GraphIndex(skeleton.model.graph)
    found, grouping = _plan(skeleton.model, index, known)
    total = len(found.products) + len(found.problems)
    if backend == "ort":
        return replace(contract, products=Products(nodes=total, problems=("the backend is ort",) if total else ()))
    folder = contract.external_folder
    if found.products and not contract.model_bytes:
        try:
            folder = relocate(skeleton)
            # Pieces of constants refer to their files as relocate() names them.
            found, grouping = _plan(skeleton.model, index, known)
        except NotRecognisedError as why:
            found = _all_refused(found, f"has weights that cannot be referred to ({why})")
    if not found.products:
        if backend == "native":
            raise _nothing_to_replace(contract, found)
        return replace(contract, products=Products(nodes=total, problems=_summary(found.problems)))
    _write(skeleton.model, index, grouping)
    marked = contract.cache is CacheStyle.PAGED and _mark_prompts(skeleton.model.graph, contract.logits_indices)
    lift_constants(skeleton.model.graph)
    return replace(
        contract,
        prompt_rows=InputPort(name=_PROMPT_ROWS, dtype=DType.INT32, rank=1) if marked else None,
        model_bytes=skeleton.model.SerializeToString(),
        external_folder=folder,
        products=_report(grouping.groups, found, total),
    )


def _plan(model: onnx.ModelProto, index: GraphIndex, known: Mapping[str, str]) -> tuple[Found, Grouping]:
    """What is replaced, and by which nodes; the graph is not changed yet."""
    found = read_products(model, index, known)
    try:
        return found, group_products(index, found.products)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        # Attributes and constants of a broken graph can be anything; ONNX Runtime says what is wrong with them.
        return _all_refused(found, f"could not be followed ({error})"), Grouping()


def _all_refused(found: Found, why: str) -> Found:
    return Found(problems=[*found.problems, *((product.name, why) for product in found.products)])


def operator_counts(graph: onnx.GraphProto) -> tuple[OperatorCount, ...]:
    """How many nodes of each operator a graph has, the graphs inside its nodes too; the most frequent first."""
    counts = Counter((DOMAIN if node.domain == DOMAIN else "onnxruntime", node.op_type) for node in nodes_of(graph))
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(OperatorCount(kernel=kernel, op_type=op_type, nodes=count) for (kernel, op_type), count in order)


def _nothing_to_replace(contract: GraphContract, found: Found) -> UnsupportedError:
    why = "; ".join(_summary(found.problems)) or "the graph has no quantized matrix products"
    return UnsupportedError(
        f"{contract.model_path}: backend is 'native', but no operator of this graph has a kernel of ours: {why}. Use "
        "backend 'auto' or 'ort', or a package whose weights are MatMulNBits of 4 or 8 bits."
    )


def _summary(problems: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """One line a reason, the most frequent first."""
    names: dict[str, list[str]] = {}
    for name, why in problems:
        names.setdefault(why, []).append(name)
    order = sorted(names.items(), key=lambda item: -len(item[1]))
    lines = [f"{nodes[0]} {why}" + (f" ({len(nodes)} such nodes)" if nodes[1:] else "") for why, nodes in order]
    more = len(lines) - _MAX_PROBLEMS
    return (*lines[:_MAX_PROBLEMS], f"{more} more reasons") if more > 0 else tuple(lines)


def _report(groups: Sequence[Group], found: Found, total: int) -> Products:
    kinds = Counter(_kind_text(product.kind) for product in found.products)
    return Products(
        nodes=total,
        replaced=len(found.products),
        joined=len(groups),
        swiglu=sum(1 for group in groups if group.swiglu),
        norms=sum(1 for group in groups if group.norm),
        biases=sum(1 for product in found.products if product.bias),
        kinds=tuple(f"{kind}: {count}" for kind, count in kinds.most_common()),
        problems=_summary(found.problems),
    )


def _kind_text(kind: Kind) -> str:
    scales = f"block {kind.block_size}" if kind.block_size else "whole columns"
    return f"{kind.bits} bits, {scales}"


def _write(model: onnx.ModelProto, index: GraphIndex, grouping: Grouping) -> None:
    """Puts the nodes of the groups in, each at the place of its first product, and takes out what they replace."""
    graph, groups = model.graph, grouping.groups
    made: dict[int, list[onnx.NodeProto]] = {}
    for group in groups:
        made.setdefault(group.place, []).append(_node(group))
    norms = [group.norm for group in groups if group.norm]
    taken = {place for group in groups for place in group.taken} | {norm.place for norm in norms}
    for part in _parts(groups):
        taken.update((part.place, *part.taken))
    graph.initializer.extend(grouping.tensors.values())
    constants = {name for part in _parts(groups) for name in part.constants if name}
    constants.update(norm.weight for norm in norms)
    lifted = _lift(graph, index, constants - grouping.tensors.keys())
    nodes = []
    gone: set[str] = set()
    for place, node in enumerate(graph.node):
        nodes += made.get(place, [])
        if place in taken:
            gone.update(node.output)
        elif id(node) not in lifted:
            nodes.append(node)
    gone -= {name for group in groups for name in group.outputs} | {norm.total for norm in norms}
    values = [value for value in graph.value_info if value.name not in gone]
    # A weight that is also listed as an input could be given by the caller, and so would be no constant; before
    # version 4 all weights are listed.
    weights = constants if model.ir_version >= _LEAST_IR else index.initializers.keys() | constants
    weights = weights - index.overridable.keys()
    inputs = [value for value in graph.input if value.name not in weights]
    for held, kept in ((graph.node, nodes), (graph.value_info, values), (graph.input, inputs)):
        keep_items(held, kept)
    drop_unused(graph, grouping.cut)
    if not any(entry.domain == DOMAIN for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.ir_version = max(model.ir_version, _LEAST_IR)


def _mark_prompts(graph: onnx.GraphProto, rows: InputPort | None) -> bool:
    """Tells products and attention which of their rows are of prompts: those may be computed in bfloat16.

    Done if a product takes its activations as int8 anyway. Products of chosen rows, such as the last one, get nothing:
    their rows are not those of the step.
    """
    chosen = _after(graph, rows.name) if rows is not None else set()
    rough = [
        node
        for node in graph.node
        if _is_ours(node, "MatMulNBits") and attributes_of(node).get("accuracy_level") == INT8_ACTIVATIONS
    ]
    marked = [node for node in rough if chosen.isdisjoint(node.input)]
    if not marked:
        return False
    for node in (*marked, *(node for node in graph.node if _is_ours(node, "PagedAttention"))):
        _put(node.input, _PROMPT_ROWS_PLACES[node.op_type], _PROMPT_ROWS)
    _hand_over(graph, marked)
    graph.input.append(helper.make_tensor_value_info(_PROMPT_ROWS, onnx.TensorProto.INT32, ["genai.tokens"]))
    return True


def _hand_over(graph: onnx.GraphProto, marked: Sequence[onnx.NodeProto]) -> None:
    """Lets silu(gate) * up reach the product that alone reads it in the form that it multiplies, not as numbers."""
    uses = Counter(name for node in nodes_of(graph) for name in node.input)
    uses.update(output.name for output in graph.output)
    readers = {node.input[0]: node for node in marked if not {"N_1", "norm_epsilon"} & attributes_of(node).keys()}
    for node in marked:
        given = attributes_of(node)
        reader = readers.get(node.output[0])
        if not given.get("swiglu") or reader is None or uses[node.output[0]] != 1:
            continue
        block = attributes_of(reader)["block_size"]
        if not block or given["N"] % max(_CHUNK_DEPTH, block):
            continue
        handed = f"{node.output[0]}.handed"
        _put(node.output, _HANDED_OUTPUT, handed)
        node.attribute.append(helper.make_attribute("handed_block", block))
        _put(reader.input, _HANDED_INPUT, handed)


def _put(names: MutableSequence[str], place: int, name: str) -> None:
    """Names an input or output of a node; those before it are left out if they have no names."""
    names.extend([""] * (place + 1 - len(names)))
    names[place] = name


def _is_ours(node: onnx.NodeProto, op_type: str) -> bool:
    return node.domain == DOMAIN and node.op_type == op_type


def _after(graph: onnx.GraphProto, name: str) -> set[str]:
    """The values that are computed from one, and itself; the nodes are in the order in which they run."""
    found = {name}
    for node in graph.node:
        if not found.isdisjoint(node.input):
            found.update(node.output)
    return found


def _parts(groups: Sequence[Group]) -> list[Product]:
    return [part for group in groups for part in group.parts]


def _lift(graph: onnx.GraphProto, index: GraphIndex, names: set[str]) -> set[int]:
    """Makes initializers of Constant nodes, as a node of ours may stand before them; returns id() of those nodes."""
    lifted = set()
    for name in sorted(names - index.initializers.keys()):
        tensor = index.constant(name)
        if tensor is not None:
            copy = graph.initializer.add()
            copy.CopyFrom(tensor)
            copy.name = name
            lifted.add(id(index.producers[name]))
    return lifted


def _node(group: Group) -> onnx.NodeProto:
    first = group.parts[0]
    kind = first.kind
    inputs = [kind.source, *(name for part in group.parts for name in part.constants)]
    while not inputs[-1]:
        inputs.pop()
    attributes: dict[str, Any] = {"K": kind.k, "N": first.n, "bits": kind.bits, "block_size": kind.block_size}
    attributes |= {f"N_{number}": part.n for number, part in enumerate(group.parts[1:], 1)}
    attributes["accuracy_level"] = kind.accuracy_level
    if kind.layout:
        attributes |= {"b_layout": kind.layout, "b_signed": int(kind.signed)}
    if kind.width:
        attributes["b_columns"] = kind.width
        attributes |= {
            "b_first" + (f"_{number}" if number else ""): part.first for number, part in enumerate(group.parts)
        }
    if group.swiglu:
        attributes["swiglu"] = 1
    node = helper.make_node("MatMulNBits", inputs, group.outputs, domain=DOMAIN, name=first.name, **attributes)
    if group.norm:
        _normalise(node, group.norm)
    return node


def _normalise(node: onnx.NodeProto, norm: Norm) -> None:
    """Lets a node of ours normalise its activations."""
    normalised = node.input[0]
    node.input[0] = norm.source
    _put(node.input, _NORM_WEIGHT_INPUT, norm.weight)
    node.attribute.append(helper.make_attribute("norm_epsilon", norm.epsilon))
    if norm.skip:
        _put(node.input, _SKIP_INPUT, norm.skip)
        _put(node.output, _SUM_OUTPUT, norm.total or f"genai.{normalised}.sum")
        node.attribute.append(helper.make_attribute("norm_skip", 1))
