"""Model packages on disk: which files they have and what those files say. Knows no ONNX.

``read(path)`` gives a :class:`ModelPackage` for every format; ``graph.resolve`` then looks into the graph.
"""

from __future__ import annotations

from onnx_genai.package.model import (
    ChatTemplateSource,
    ContextLimit,
    EmbeddingGraph,
    GenerationDefaults,
    IoRoles,
    KvHints,
    KvNameTemplates,
    ModelPackage,
    PackageFormat,
    ProviderOptions,
    SessionOptions,
    SourceEncoder,
    StaticCacheRoles,
    Variant,
)
from onnx_genai.package.reader import read

__all__ = [
    "ChatTemplateSource",
    "ContextLimit",
    "EmbeddingGraph",
    "GenerationDefaults",
    "IoRoles",
    "KvHints",
    "KvNameTemplates",
    "ModelPackage",
    "PackageFormat",
    "ProviderOptions",
    "SessionOptions",
    "SourceEncoder",
    "StaticCacheRoles",
    "Variant",
    "read",
]
