"""What a paged graph still needs of the original: :func:`find_needs`.

Walks back from the logits. Values made of lengths alone are judged by their contents: equal everywhere, the positions
of the tokens, or the number of tokens; each gets a substitute where the input that it was made from is gone. Operators
on tokens must keep them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from onnx_genai.graph.attention import PagedNode, describe_node
from onnx_genai.graph.evaluate import Array
from onnx_genai.graph.masks import judge_positions
from onnx_genai.graph.probe import WHOLE, Probe, Value
from onnx_genai.graph.skeleton import subgraphs_of
from onnx_genai.graph.tokenwise import why_mixed

__all__ = ["Constant", "Needs", "Positions", "Rows", "Substitute", "TokenCount", "find_needs"]

_SIZE_INPUTS: Mapping[str, Sequence[int]] = {
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Slice": (1, 2),
    "Split": (1,),
    "Tile": (1,),
}
"""Inputs that may be the number of tokens: they say how large something is."""

_MAX_CONSTANT = 65_536


@dataclass(frozen=True, slots=True)
class Constant:
    """The same at all lengths."""

    content: Array


@dataclass(frozen=True, slots=True)
class Positions:
    """Positions of the tokens."""

    shape: tuple[int, ...]
    """-1 for the token axis."""
    dtype: np.dtype[np.generic]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """base + count * number of tokens, element by element."""

    base: Array
    count: Array


@dataclass(frozen=True, slots=True)
class Rows:
    """The same row for each token."""

    row: Array
    """One token long."""
    axis: int


Substitute = Constant | Positions | Rows | TokenCount


@dataclass(slots=True)
class Needs:
    """Result of the walk."""

    nodes: set[int] = field(default_factory=set)
    """id() of the nodes that stay, attention nodes among them."""
    inputs: set[str] = field(default_factory=set)
    """Graph inputs that stay."""
    picks: set[int] = field(default_factory=set)
    """id() of the nodes among them that take the last token: the paged graph takes all."""
    substitutes: dict[str, Substitute] = field(default_factory=dict)
    """Values that are made anew, by name."""
    problems: list[str] = field(default_factory=list)


def find_needs(probe: Probe, attention: Mapping[int, PagedNode | None], output: str) -> Needs:
    """Returns what stays of the graph if it makes ``output`` for tokens of many sequences.

    Args:
        probe: Of the graph.
        attention: What replaces the attention nodes, by id() of the node; None where nothing does, for which the walk
            goes on all the same, to find all problems.
        output: Name of the logits.
    """
    walk = _Walk(probe, attention)
    walk.run(output)
    if walk.needs.picks:
        _check_picks(probe.index.graph, walk.needs, walk.attention)
    return walk.needs


def _check_picks(graph: onnx.GraphProto, needs: Needs, attention: Mapping[int, PagedNode | None]) -> None:
    """A node that takes the last token may only be on the way from the last attention to the logits."""
    after: dict[str, str] = {}
    for node in graph.node:
        source = (
            describe_node(node) if id(node) in needs.picks else next((after[n] for n in node.input if n in after), "")
        )
        if source and id(node) in attention:
            needs.problems.append(f"{source} picks tokens")
            return
        if source and id(node) in needs.nodes:
            after.update(dict.fromkeys(node.output, source))


class _Walk:
    def __init__(self, probe: Probe, attention: Mapping[int, PagedNode | None]) -> None:
        self.probe = probe
        self.index = probe.index
        self.attention = attention
        self.needs = Needs()
        self._seen: set[tuple[str, bool]] = set()
        self._stack: list[tuple[str, bool]] = []

    def run(self, output: str) -> None:
        self._stack.append((output, False))
        while self._stack:
            name, plain = self._stack.pop()
            if not name or (name, plain) in self._seen or name in self.index.initializers:
                continue
            self._seen.add((name, plain))
            value = self.probe.value(name)
            if value is not None and value.contents is not None:
                if plain or self._stands_alone(name, value):
                    self._keep_plain(name)
                    continue
                if name in self.needs.substitutes:
                    continue
            self._follow(name, value)

    def _keep_plain(self, name: str) -> None:
        """Keeps the nodes that make a value of lengths that the paged graph also has."""
        node = self.index.producers.get(name)
        if node is None:
            self.needs.inputs.add(name)
            return
        self.needs.nodes.add(id(node))
        self._stack.extend((item, True) for item in node.input)

    def _stands_alone(self, name: str, value: Value) -> bool:
        """True if a value of known contents can stay as it is; else notes a substitute if there is one."""
        contents = value.contents or ()
        first = contents[0]
        if value.is_same:
            if not value.removed:
                return True
            if first.size <= _MAX_CONSTANT:
                self.needs.substitutes[name] = Constant(first)
            return False
        if not value.removed and (value.axis == WHOLE or _same_for_all_tokens(value)):
            return True
        if value.axis >= 0 and judge_positions(contents, self.probe.points) is None:
            shape = tuple(-1 if axis == value.axis else size for axis, size in enumerate(first.shape))
            self.needs.substitutes[name] = Positions(shape, first.dtype)
        elif value.axis >= 0 and value.group == 1 and _same_for_all_tokens(value):
            self.needs.substitutes[name] = Rows(np.take(first, [0], axis=value.axis), value.axis)
        elif value.axis == WHOLE:
            count = self._token_count(contents)
            if count is not None:
                self.needs.substitutes[name] = count
        return False

    def _token_count(self, contents: Sequence[Array]) -> TokenCount | None:
        """The value as constants and numbers of tokens, if it is that."""
        if contents[0].dtype.kind not in "iu":
            return None
        stacked = np.stack(contents)
        new = np.array([point.new for point in self.probe.points]).reshape(-1, *[1] * contents[0].ndim)
        same = (stacked == stacked[:1]).all(axis=0)
        tokens = (stacked == new).all(axis=0)
        if not bool((same | tokens).all()):
            return None
        return TokenCount(np.where(same, contents[0], 0), (~same).astype(contents[0].dtype))

    def _follow(self, name: str, value: Value | None) -> None:
        if name in self.index.inputs:
            if value is None or value.removed:
                self.needs.problems.append(f"{name} is used in a way that depends on more than the positions of tokens")
            else:
                self.needs.inputs.add(name)
            return
        node = self.index.producers.get(name)
        if node is None:
            self.needs.problems.append(f"{name} is made by no node")
            return
        if id(node) in self.probe.last_picks:
            self.needs.nodes.add(id(node))
            self.needs.picks.add(id(node))
            self._stack.append((node.input[0], False))
            return
        if id(node) in self.attention:
            self._follow_attention(name, node)
            return
        if id(node) not in self.needs.nodes:
            self.needs.nodes.add(id(node))
            self._check(node)
        self._stack.extend((item, False) for item in node.input)

    def _follow_attention(self, name: str, node: onnx.NodeProto) -> None:
        self.needs.nodes.add(id(node))
        if name != node.output[0]:
            self.needs.problems.append(f"{name}, the KV of {describe_node(node)}, is used beside attention")
        paged = self.attention[id(node)]
        names = paged.names if paged is not None else [node.input[0]]
        self._stack.extend((item, False) for item in names)

    def _check(self, node: onnx.NodeProto) -> None:
        if next(iter(subgraphs_of(node)), None) is not None:
            self.needs.problems.append(f"{describe_node(node)} has graphs inside")
            return
        inputs = [self.probe.value(name) if name else None for name in node.input]
        outputs = [self.probe.value(name) if name else None for name in node.output]
        for place, value in enumerate(inputs):
            sizes = node.op_type in _SIZE_INPUTS and place in _SIZE_INPUTS[node.op_type]
            if value is None or value.contents is None or value.axis != WHOLE or value.is_same or sizes:
                continue
            if any(output is not None and (output.contents is None or output.axis != WHOLE) for output in outputs):
                self.needs.problems.append(f"{describe_node(node)} computes with {node.input[place]}, a length")
                return
        if any(value is not None and value.axis != WHOLE for value in inputs):
            why = why_mixed(node, inputs, outputs, self.probe)
        elif any(value is not None and value.axis != WHOLE for value in outputs):
            why = "makes a row for each token out of sizes"
        else:
            why = None
        if why is not None:
            self.needs.problems.append(f"{describe_node(node)} {why}")


def _same_for_all_tokens(value: Value) -> bool:
    """Whether all tokens have equal rows, at every point."""
    if value.axis < 0 or value.contents is None:
        return False
    row = np.take(value.contents[0], [0], axis=value.axis)
    return all(bool((content == row).all()) for content in value.contents)
