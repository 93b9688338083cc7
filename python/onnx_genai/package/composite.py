"""Names the kinds of packages that need more than one graph, in words that a user knows, and refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onnx_genai.errors import UnsupportedError
from onnx_genai.package.fields import Fields

__all__ = [
    "ENCODER_DECODER",
    "FIX_SEQ2SEQ",
    "FIX_TEXT",
    "EmbeddingPart",
    "embedding_part",
    "genai_error",
    "pipeline_error",
    "unsupported",
    "workflow_error",
]

FIX_SEQ2SEQ = (
    "An encoder-decoder of text runs from encoder_model.onnx and decoder_model_merged.onnx, as optimum exports it."
)
FIX_TEXT = "Use a text-only single-graph export of a language model."

VISION_LANGUAGE = "a vision-language pipeline"
AUDIO_LANGUAGE = "an audio-language pipeline"
MULTIMODAL = "a vision, audio and language pipeline"
ENCODER_DECODER = "an encoder-decoder pipeline"
TEXT_TO_SPEECH = "a speech synthesis pipeline"
DIFFUSION = "a diffusion pipeline (image or video)"
MASKED_DIFFUSION = "a masked-diffusion language model"
CODEC = "a single-pass pipeline (codec or encoder)"
WORKFLOW = "a workflow package"


def unsupported(path: Path, kind: str, detail: str, fix: str = FIX_TEXT) -> UnsupportedError:
    """An error for a package that is sound but of a kind that cannot run yet."""
    return UnsupportedError(
        f"{path}: this is {kind} ({detail}); this version runs text decoders and encoder-decoders of text only. {fix}"
    )


def workflow_error(pipeline: Fields, path: Path) -> UnsupportedError:
    """Refuses ``pipeline.workflow``."""
    workflow = pipeline.sub("workflow")
    names = [name for name, _ in workflow.subs("components")] if workflow is not None else []
    return unsupported(path, WORKFLOW, f"pipeline.workflow, {_components(names)}")


def pipeline_error(pipeline: Fields, models: Sequence[tuple[str, Fields]], path: Path) -> UnsupportedError:
    """Refuses ``pipeline.models`` with the kind that its strategy and component types show."""
    kinds = _strategy_kinds(pipeline.sub("strategy"))
    types = {fields.text("type") or "" for _, fields in models}
    ports = _edge_ports(pipeline)
    kind = _kind_of(kinds, types, {name for name, _ in models}, ports)
    return unsupported(path, kind, _components([name for name, _ in models]))


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingPart:
    """A component of a pipeline that makes what the decoder takes in the place of token ids."""

    file: str
    input_ids: str | None
    """As declared; None for the usual names."""
    output: str | None
    decoder_input: str
    others: tuple[str, ...]
    """Names of the components that a text does not need."""


def embedding_part(pipeline: Fields, models: Sequence[tuple[str, Fields]]) -> tuple[Fields, EmbeddingPart] | None:
    """Returns the decoder and what makes its embeddings, if the pipeline is just that for a text; else None."""
    if not _strategy_kinds(pipeline.sub("strategy")) <= {"", "composite", "autoregressive", "single_pass"}:
        return None
    decoders = [(name, fields) for name, fields in models if fields.text("type") == "decoder"]
    name, decoder = decoders[0] if len(decoders) == 1 else ("", None)
    io = decoder.sub("io") if decoder is not None else None
    taken = io.text("inputs_embeds_input") or "inputs_embeds" if io is not None else ""
    if decoder is None or io is None or io.text("sequence_source") != "inputs_embeds":
        return None
    edges = [(source, target) for source, target in _edges(pipeline) if target.partition(".")[0] == name]
    if len(edges) != 1 or edges[0][1] != f"{name}.{taken}":
        return None
    maker, _, output = edges[0][0].partition(".")
    part = dict(models).get(maker)
    ids = part.sub("io") if part is not None else None
    file = part.text("filename") if part is not None else None
    token_input = ids.text("token_input") if ids is not None else None
    if file is None or token_input is None or decoder.text("filename") is None:
        return None
    others = tuple(other for other, _ in models if other not in (name, maker))
    return decoder, EmbeddingPart(file=file, input_ids=token_input, output=output, decoder_input=taken, others=others)


def _edges(pipeline: Fields) -> list[tuple[str, str]]:
    """``component.port`` that each edge comes from, and goes to."""
    edges = pipeline.raw("dataflow")
    pairs = (
        [(edge.get("from"), edge.get("to")) for edge in edges if isinstance(edge, dict)]
        if isinstance(edges, list)
        else []
    )
    return [(source, target) for source, target in pairs if isinstance(source, str) and isinstance(target, str)]


def genai_error(model: Fields, path: Path) -> UnsupportedError | None:
    """Returns the error for a genai_config.json of several graphs; None for a decoder, for one on embeddings, and for
    an encoder-decoder of text.

    With the graph that makes embeddings of token ids the decoder answers text, whatever else the package has.
    """
    blocks = [name for name in ("encoder", "embedding", "vision", "speech", "joiner") if model.has(name)]
    decoder = model.sub("decoder")
    detail = _components([*blocks, "decoder"])
    if model.has("joiner"):
        return unsupported(path, "a transducer (streaming speech recognition)", detail)
    if decoder is not None and decoder.has("pipeline"):
        return unsupported(path, "a decoder split into several graphs", "model.decoder.pipeline")
    if model.has("embedding") and not model.has("encoder"):
        return None
    if model.has("vision") and model.has("speech"):
        return unsupported(path, MULTIMODAL, detail)
    if model.has("vision"):
        return unsupported(path, VISION_LANGUAGE, detail)
    if model.has("speech"):
        return unsupported(path, AUDIO_LANGUAGE, detail)
    encoder = model.sub("encoder")
    inputs = encoder.sub("inputs") if encoder is not None else None
    if encoder is not None and model.has("embedding"):
        return unsupported(path, ENCODER_DECODER, detail)
    if inputs is not None and not inputs.has("input_ids"):
        return unsupported(path, f"{ENCODER_DECODER} for speech", detail)
    return None


def _components(names: Sequence[str]) -> str:
    return "components: " + ", ".join(names[:12]) if names else "no components"


def _strategy_kinds(strategy: Fields | None, depth: int = 0) -> set[str]:
    """All kinds in the tree of strategies."""
    if strategy is None or depth > 8:
        return set()
    kind = (strategy.text("kind") or "").replace("-", "_")
    kinds = {"iterative" if kind == "diffusion_steps" else kind}
    config = strategy.sub("scheduler_config")
    if config is not None and config.text("kind") == "masked_diffusion":
        kinds.add("masked_diffusion")
    stages = strategy.raw("stages")
    if isinstance(stages, list):
        for index, stage in enumerate(stages):
            if isinstance(stage, dict):
                inner = Fields(stage, Path(strategy.where(f"stages[{index}]"))).sub("strategy")
                kinds |= _strategy_kinds(inner, depth + 1)
    return kinds


def _edge_ports(pipeline: Fields) -> set[str]:
    """Port names that the edges lead to."""
    edges = pipeline.raw("dataflow")
    ports: set[str] = set()
    if isinstance(edges, list):
        for edge in edges:
            target = edge.get("to") if isinstance(edge, dict) else None
            if isinstance(target, str):
                ports.add(target.partition(".")[2])
    return ports


def _kind_of(kinds: set[str], types: set[str], names: set[str], ports: set[str]) -> str:
    words = " ".join(types | names)
    vision = "vision" in words or any("image" in port or "pixel" in port for port in ports)
    audio = "audio" in words and "decoder" in types
    if "masked_diffusion" in kinds:
        return MASKED_DIFFUSION
    if "iterative" in kinds or "denoiser" in types:
        return DIFFUSION
    if "nested_autoregressive" in kinds or ("autoregressive" in kinds and types & {"vocoder", "speech_synthesis"}):
        return TEXT_TO_SPEECH
    if vision and audio:
        return MULTIMODAL
    if vision:
        return VISION_LANGUAGE
    if any("encoder_hidden_states" in port for port in ports) or ("encoder" in types and "decoder" in types):
        return ENCODER_DECODER
    if audio:
        return AUDIO_LANGUAGE
    if "decoder" in types and "draft" in types:
        return "a model with a separate drafter"
    if "autoregressive" in kinds:
        return "a pipeline of several graphs"
    return CODEC
