"""Names the kinds of packages that need more than one graph, in words that a user knows, and refuses them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from onnx_genai.errors import UnsupportedError
from onnx_genai.package.fields import Fields

__all__ = ["ENCODER_DECODER", "FIX_TEXT", "genai_error", "pipeline_error", "unsupported", "workflow_error"]

FIX_TEXT = "Use a text-only single-graph export of a language model."

VISION_LANGUAGE = "a vision-language pipeline"
AUDIO_LANGUAGE = "an audio-language pipeline"
MULTIMODAL = "a vision, audio and language pipeline"
ENCODER_DECODER = "an encoder-decoder pipeline (speech recognition or translation)"
TEXT_TO_SPEECH = "a speech synthesis pipeline"
DIFFUSION = "a diffusion pipeline (image or video)"
MASKED_DIFFUSION = "a masked-diffusion language model"
CODEC = "a single-pass pipeline (codec or encoder)"
WORKFLOW = "a workflow package"


def unsupported(path: Path, kind: str, detail: str, fix: str = FIX_TEXT) -> UnsupportedError:
    """An error for a package that is sound but of a kind that cannot run yet."""
    return UnsupportedError(
        f"{path}: this is {kind} ({detail}); this version runs single-graph text decoders only. {fix}"
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


def genai_error(model: Fields, path: Path) -> UnsupportedError | None:
    """Returns the error for a genai_config.json of several graphs, or None for a plain decoder."""
    blocks = [name for name in ("encoder", "embedding", "vision", "speech", "joiner") if model.has(name)]
    decoder = model.sub("decoder")
    detail = _components([*blocks, "decoder"])
    if model.has("joiner"):
        return unsupported(path, "a transducer (streaming speech recognition)", detail)
    if decoder is not None and decoder.has("pipeline"):
        return unsupported(path, "a decoder split into several graphs", "model.decoder.pipeline")
    if model.has("vision") and model.has("speech"):
        return unsupported(path, MULTIMODAL, detail)
    if model.has("vision"):
        return unsupported(path, VISION_LANGUAGE, detail)
    if model.has("speech"):
        return unsupported(path, AUDIO_LANGUAGE, detail)
    if model.has("encoder"):
        return unsupported(path, ENCODER_DECODER, detail)
    if model.has("embedding"):
        return unsupported(path, "a decoder on embeddings", detail)
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
