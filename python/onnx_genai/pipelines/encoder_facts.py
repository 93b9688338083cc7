"""What an encoder's package is and how it would run, without loading it: :func:`inspect_encoder`."""

from __future__ import annotations

from pathlib import Path

from onnx_genai.engine import describe_encoder
from onnx_genai.package.encoder import DenseLayer, read_encoder
from onnx_genai.pipelines.text_model import locate

__all__ = ["inspect_encoder"]


def inspect_encoder(model: str | Path, *, variant: str | None = None) -> dict[str, object]:
    """Returns facts about an embedding model or reranker in values that JSON can hold. Loads no weights.

    Keys: directory, format, model_type, model_file, variant, variants, tokenizer, kind, ports, output, width, pooling,
    pooling_source, after_pooling, prompts, default_prompt, max_length, max_length_source, max_batch, warnings.

    Raises:
        NotFoundError, PackageError, UnsupportedError: As ``Embedder`` does.
    """
    source = read_encoder(locate(model), variant=variant)
    package, limit = source.package, source.limit
    graph = describe_encoder(source)
    pools = not graph["is_pooled"]
    steps = [
        f"dense {step.in_features} to {step.out_features}, {step.activation}" if isinstance(step, DenseLayer) else step
        for step in source.after_pooling
    ]
    return {
        "directory": str(package.root),
        "format": package.format,
        "model_type": package.model_type,
        "model_file": str(package.model_path),
        "variant": package.variant,
        "variants": [{"name": each.name, "path": str(each.path)} for each in package.variants],
        "tokenizer": None if package.tokenizer_path is None else str(package.tokenizer_path),
        "kind": graph["kind"],
        "ports": graph["ports"],
        "output": graph["output"],
        "width": graph["width"],
        "pooling": list(source.pooling or ("mean",)) if pools else None,
        "pooling_source": (source.pooling_source or "nothing says it") if pools else "the graph",
        "after_pooling": steps if source.has_modules or graph["kind"] == "reranker" else ["normalize"],
        "prompts": dict(source.prompts),
        "default_prompt": source.default_prompt_name,
        "max_length": None if limit is None else limit.tokens,
        "max_length_source": None if limit is None else limit.source,
        "max_batch": graph["max_batch"],
        "warnings": list(package.warnings),
    }
