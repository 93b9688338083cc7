"""What a package would run as, without loading it."""

from __future__ import annotations

from onnx_genai import graph
from onnx_genai.engine.options import EngineOptions
from onnx_genai.package import ModelPackage
from onnx_genai.types import Backend

__all__ = ["describe_graph"]


def describe_graph(package: ModelPackage, *, backend: Backend = "auto") -> dict[str, object]:
    """Returns the roles of the graph's ports, the decoder, kernels and why, limits and notes, as JSON values.

    Raises:
        PackageError, UnsupportedError: The graph cannot be used; the text says why.
    """
    return graph.describe(graph.resolve(package, backend=EngineOptions(backend=backend).graph_backend(on_cpu=True)))
