"""Collects the nodes of a graph under construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

__all__ = ["MICROSOFT", "Attributes", "Nodes"]

MICROSOFT = "com.microsoft"
"""Operator domain of ONNX Runtime."""

Attributes = Mapping[str, int | float | str | Sequence[int]]


class Nodes:
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
