"""``onnx-genai show``: what a package is and how it would run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli import console
from onnx_genai.cli.models import MODEL, local_model
from onnx_genai.cli.options import checked_backend
from onnx_genai.cli.show_config import config_facts, config_lines
from onnx_genai.cli.show_encoder import encoder_lines
from onnx_genai.package.genai_config import FILE_NAME as GENAI_CONFIG_NAME
from onnx_genai.package.inference_metadata import FILE_NAMES as METADATA_NAMES
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.package import GenerationDefaults, ModelPackage
    from onnx_genai.types import Backend

__all__ = ["show"]

ADDED_PREFIX = "genai."
"""Of the names of ports that are not in the package's file."""


@click.command()
@click.argument("model", type=MODEL, required=False)
@click.option("--variant", help="Which of several graphs to look at.")
@click.option("--backend", callback=checked_backend, default="auto", show_default=True, help="auto, ort, or native.")
@click.option("--config", "show_config", is_flag=True, help="Print the value of each option, and where it comes from.")
@click.option("--command", default="generate", show_default=True, metavar="NAME", help="Whose options, for --config.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def show(
    context: click.Context,
    model: str | None,
    variant: str | None,
    backend: Backend,
    show_config: bool,
    command: str,
    as_json: bool,
) -> None:
    """Print what MODEL is: files, inputs and outputs, decoder, kernels, limits, defaults, and what is odd about it.

    No weights are loaded and nothing is fetched.

    With --config it prints what `generate`, or another command, would be run with: the command line comes before the
    environment, then the config file, the package of MODEL, and the default.
    """
    if model is None and not show_config:
        raise click.UsageError("Missing argument 'MODEL'.")
    from onnx_genai.pipelines import inspect, inspect_encoder, model_kind

    path = None if model is None else local_model(model)
    if path is not None and not show_config and model_kind(path, variant=variant) != "text":
        encoder = inspect_encoder(path, variant=variant)
        text = "".join(f"{line}\n" for line in encoder_lines(encoder))
        console.write(json.dumps(encoder, ensure_ascii=False, indent=2) + "\n" if as_json else text)
        return
    package, graph = (None, {}) if path is None else inspect(path, variant=variant, backend=backend)
    if show_config or package is None:
        facts = config_facts(_command(context, command), context.find_root(), context.obj["config"], package)
        lines = config_lines(facts)
    else:
        facts = _facts(package, graph)
        lines = _lines(facts)
    if as_json:
        console.write(json.dumps(facts, ensure_ascii=False, indent=2) + "\n")
    else:
        console.write("".join(f"{line}\n" for line in lines))


def _command(context: click.Context, name: str) -> click.Command:
    group = context.find_root().command
    if not isinstance(group, click.Group):
        raise click.UsageError("--command needs the command line of onnx-genai")
    try:
        _, found, rest = group.resolve_command(context.find_root(), name.split())
    except (click.UsageError, IndexError):
        found, rest = None, []
    if found is None or rest:
        raise click.UsageError(f"--command is {name!r}, which is no command; onnx-genai help lists them")
    return found


def _facts(package: ModelPackage, graph: dict[str, Any]) -> dict[str, Any]:
    """Everything that is shown, in values that JSON can hold."""
    template = package.chat_template
    return {
        "directory": str(package.root),
        "format": package.format,
        "model_type": package.model_type,
        "model_file": str(package.model_path),
        "variant": package.variant,
        "variants": [{"name": variant.name, "path": str(variant.path)} for variant in package.variants],
        "external_files": graph["external_files"],
        "tokenizer": None if package.tokenizer_path is None else str(package.tokenizer_path),
        "metadata": _file(package, *METADATA_NAMES),
        "genai_config": _file(package, GENAI_CONFIG_NAME),
        "chat_template": {
            "source": template.source or None,
            "names": list(template.texts),
        },
        "decoder": graph["decoder"],
        "decoder_reason": graph["why"],
        "encoder": graph.get("encoder"),
        "rewrite": graph["rewrite"],
        "ports": {**graph["ports"], "logits": graph["logits"]},
        "kv": graph["kv"],
        "coverage": graph["coverage"],
        "backend": graph["products"]["backend"],
        "products": graph["products"],
        "operators": graph["operators"],
        "max_batch": graph["max_batch"],
        "vocab_size": graph["vocab_size"],
        "context_limit": graph["context_limit"],
        "context_source": graph["context_source"],
        "eos_token_ids": list(package.eos_token_ids),
        "eos_source": package.eos_source or None,
        "special_tokens": dict(package.special_tokens),
        "generation_defaults": _defaults(package.generation),
        "speculator": package.speculator_source or None,
        "required_capabilities": list(package.required_capabilities),
        "warnings": [*package.warnings, *graph["notes"]],
    }


def _file(package: ModelPackage, *names: str) -> str | None:
    """The first of these files that the package has."""
    return next((str(package.root / name) for name in names if (package.root / name).is_file()), None)


def _defaults(generation: GenerationDefaults) -> dict[str, Any]:
    values = dataclasses.asdict(generation)
    return {key: value for key, value in values.items() if value is not None and value != ""}


def _lines(facts: dict[str, Any]) -> Iterable[str]:
    yield from _known(
        facts,
        (
            ("directory", "model directory"),
            ("format", "format"),
            ("model_type", "model type"),
            ("model_file", "model file"),
        ),
    )
    if len(facts["variants"]) > 1:
        names = (
            f"{each['name']} *" if each["name"] == facts["variant"] else each["name"] for each in facts["variants"]
        )
        yield f"variants: {', '.join(names)}"
    if facts["external_files"]:
        yield f"weight files: {', '.join(facts['external_files'])}"
    yield f"tokenizer: {facts['tokenizer'] or '(none)'}"
    yield f"metadata: {facts['metadata'] or '(none)'}"
    yield f"genai config: {facts['genai_config'] or '(none)'}"
    template = facts["chat_template"]
    yield f"chat template: {', '.join(template['names']) or '(none)'}" + _from(template["source"])
    yield f"decoder: {facts['decoder']}"
    yield from _known(facts, (("decoder_reason", "  because"), ("rewrite", "  graph")))
    if facts["encoder"] is not None:
        yield from _encoder(facts["encoder"])
    yield from _coverage(facts["coverage"])
    yield from _products(facts["products"])
    for kernel, counts in sorted(facts["operators"].items()):
        yield f"operators of {kernel}: {', '.join(f'{name} {count}' for name, count in counts.items())}"
    yield from _ports(facts["ports"])
    yield f"kv cache: {_kv(facts['kv'])}"
    if facts["max_batch"]:
        yield f"largest batch: {facts['max_batch']}"
    yield f"vocabulary: {facts['vocab_size'] or 'unknown'}"
    yield f"context limit: {facts['context_limit'] or 'unknown'}" + _from(facts["context_source"])
    yield f"eos ids: {', '.join(map(str, facts['eos_token_ids'])) or '(none)'}" + _from(facts["eos_source"])
    defaults = dict(facts["generation_defaults"])
    source = defaults.pop("source", None)
    yield f"generation defaults: {', '.join(f'{key}={value}' for key, value in defaults.items()) or '(none)'}" + _from(
        source
    )
    if facts["speculator"]:
        yield f"speculator: detected{_from(facts['speculator'])}; not used: nothing is drafted"
    else:
        yield "speculator: (none)"
    if facts["required_capabilities"]:
        yield f"required capabilities: {', '.join(facts['required_capabilities'])}"
    for warning in facts["warnings"]:
        yield f"warning: {warning}"


def _encoder(encoder: dict[str, Any]) -> Iterable[str]:
    yield f"encoder: {encoder['model']}"
    width = "" if encoder["width"] is None else f", always {counted(encoder['width'], 'token')}"
    yield f"  reads {', '.join(encoder['ports'].values())}{width}"


def _ports(ports: dict[str, str]) -> Iterable[str]:
    """A table: what a port is for, its name and type, and whether it is in the file or was put there for paging."""
    yield "inputs and outputs:"
    rows = [(role, *port.partition(" (")[::2]) for role, port in ports.items()]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for role, name, kind in rows:
        added = "  added for paged KV" if name.startswith(ADDED_PREFIX) else ""
        yield f"  {role + ':':<{widths[0] + 1}} {name:<{widths[1]}}  {kind.removesuffix(')')}{added}".rstrip()


def _coverage(coverage: dict[str, Any]) -> Iterable[str]:
    replaced, nodes = coverage["replaced"], coverage["attention_nodes"]
    yield f"attention nodes as PagedAttention: {replaced} of {nodes}"
    for problem in coverage["problems"]:
        yield f"  not paged: {problem}"
    more = coverage["num_problems"] - len(coverage["problems"])
    if more:
        yield f"  and {more} more"


def _products(products: dict[str, Any]) -> Iterable[str]:
    """Whose kernels compute the quantized products."""
    yield f"backend: {products['backend']}"
    if not products["nodes"]:
        return
    line = f"  quantized products: {counted(products['nodes'], 'node')}, {products['replaced']} in genai.runtime"
    if products["replaced"]:
        parts = [f"as {counted(products['joined'], 'node')}"]
        parts += [f"{products['swiglu']} with SwiGLU"] if products["swiglu"] else []
        parts += [f"{products['norms']} with RMS norm"] if products["norms"] else []
        parts += [counted(products["biases"], "bias", "biases")] if products["biases"] else []
        line += f" ({'; '.join(products['kinds'])}), {', '.join(parts)}"
    yield line
    for problem in products["problems"]:
        yield f"  left to onnxruntime: {problem}"


def _known(facts: dict[str, Any], rows: Iterable[tuple[str, str]]) -> Iterable[str]:
    for key, label in rows:
        if facts[key]:
            yield f"{label}: {facts[key]}"


def _from(source: str | None) -> str:
    return f" (from {source})" if source else ""


def _kv(kv: dict[str, Any]) -> str:
    if not kv["tensors"]:
        return "(none)"
    if "layers" in kv:
        others = "" if kv["uniform"] else "; some differ"
        sizes = f"{counted(kv['heads'], 'head')}, keys of {kv['head_dim']}, values of {kv['value_dim']}"
        return f"{counted(kv['layers'], 'layer')} of {kv['dtype']}, {sizes}, blocks of {kv['block_size']}{others}"
    shape = ", ".join("*" if size is None else str(size) for size in kv["shape"])
    others = "" if kv["uniform"] else "; some differ"
    return f"{counted(kv['tensors'], 'tensor')} of {kv['dtype']} [{shape}]{others}"
