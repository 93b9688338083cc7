"""Reads ``inference_metadata.{yaml,yml,json}`` of single-graph language models.

Both spellings in use are read: the flat one (``tokens``, ``generation``, names in ``model.io``) and the newer one
(``package.tokenizer``, ``generation.defaults``, ``io.static_cache``). Composite packages are refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from onnx_genai.errors import PackageError, UnsupportedError
from onnx_genai.package import composite
from onnx_genai.package.fields import Fields
from onnx_genai.package.files import MAX_METADATA_BYTES, PackageFolder, as_object, parse_json, parse_yaml
from onnx_genai.package.generation import defaults_from
from onnx_genai.package.model import ContextLimit, GenerationDefaults, IoRoles, KvHints, StaticCacheRoles

__all__ = ["FILE_NAMES", "InferenceMetadata", "load"]

FILE_NAMES = ("inference_metadata.yaml", "inference_metadata.yml", "inference_metadata.json")

SUPPORTED_CAPABILITIES = (
    "kv_cache",
    "grouped_query_attention",
    "multi_head_attention",
    "prefix_cache",
    "continuous_batching",
)
"""Entries of ``required_capabilities`` that a single-graph model may ask for."""

SCHEMA_VERSIONS = ("v1", "1", "1.0")
GROUPED_QUERY = ("grouped_query", "group_query_attention", "grouped_query_attention", "gqa")
ATTENTION_TYPES = (
    *GROUPED_QUERY,
    "multi_head",
    "multi_head_attention",
    "multi_latent",
    "multi_latent_attention",
    "mla",
)

# Sections that are read elsewhere, describe what the graph shows anyway, or belong to later features.
_DESCRIPTIVE = frozenset(
    {"quantization", "strategy", "structured_output", "hardware_requirements", "speculative", "speculator_config"}
    | {"preprocessing", "profiles", "adapters", "execution_hints"}
)
_MODEL_DESCRIPTIVE = frozenset({"architecture", "mixture_of_experts", "speculative", "runtime_configurable"})
_IO_DESCRIPTIVE = frozenset(
    {"inputs", "outputs", "aliasing", "kv_layout", "optional_inputs", "audio_features_input", "cross_kv_outputs"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceMetadata:
    """What the file says; parts that it leaves out are empty."""

    path: Path
    model_file: str | None = None
    """Graph named by a pipeline of one component; None means the only graph of the folder."""
    embedding: composite.EmbeddingPart | None = None
    """Of a pipeline: the component that makes what the decoder takes in the place of token ids."""
    tokenizer_file: str | None = None
    io: IoRoles
    kv: KvHints
    context_limits: tuple[ContextLimit, ...] = ()
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    special_tokens: dict[str, str]
    generation: GenerationDefaults | None = None
    required_capabilities: tuple[str, ...] = ()
    speculator_source: str = ""
    """As in :class:`ModelPackage`."""
    warnings: tuple[str, ...] = ()


def load(folder: PackageFolder, path: Path) -> InferenceMetadata:
    """Reads one metadata file.

    Raises:
        PackageError: Broken file, wrong type, or a contradiction; names file and key.
        UnsupportedError: A composite package, or a capability that is not there.
    """
    text = folder.text(path, limit=MAX_METADATA_BYTES)
    value = parse_json(text, path) if path.suffix == ".json" else parse_yaml(text, path)
    top = Fields(as_object(value, path), path)
    warnings: list[str] = []
    _check_version(top)
    capabilities = top.texts("required_capabilities") or ()
    component, embedding = _component(top, path, capabilities)
    model = top.sub("model")
    if component is None:
        _check_capabilities(capabilities, path)
    io_fields = (component.sub("io") if component is not None else None) or (model.sub("io") if model else None)
    for key in _DESCRIPTIVE:
        top.sub(key) if key != "profiles" else top.raw(key)
    if embedding is not None and embedding.others:
        others = ", ".join(embedding.others)
        warnings.append(f"{path}: this version gives the model text alone; not used: {others}")
    takes_ids = embedding is None
    io = (
        _io_roles(io_fields, path, warnings, takes_ids=takes_ids)
        if io_fields is not None
        else IoRoles(strict=True, source=str(path))
    )
    kv = _kv_hints(top, model, io_fields, path, warnings)
    limits, vocab_size = _model_facts(model, path, warnings)
    generation = defaults_from(top.sub("generation"), path, warnings)
    tokens, special_tokens, vocab_size = _tokens(top, vocab_size)
    warnings.extend(top.unknown())
    speculator = _speculator(top, model, path)
    if speculator:
        warnings.append(f"{path}: speculative decoding is described but not used")
    return InferenceMetadata(
        path=path,
        model_file=component.text("filename") if component is not None else None,
        embedding=embedding,
        tokenizer_file=component.text("tokenizer") if component is not None else None,
        io=io,
        kv=kv,
        context_limits=limits,
        vocab_size=vocab_size,
        eos_token_ids=tokens.ids("eos_token_id") if tokens is not None else (),
        bos_token_id=tokens.one_id("bos_token_id") if tokens is not None else None,
        pad_token_id=tokens.one_id("pad_token_id") if tokens is not None else None,
        special_tokens=special_tokens,
        generation=generation,
        required_capabilities=capabilities,
        speculator_source=speculator,
        warnings=tuple(warnings),
    )


def _speculator(top: Fields, model: Fields | None, path: Path) -> str:
    keys = [key for key in ("speculative", "speculator_config") if top.has(key)]
    keys += ["model.speculative"] if model is not None and model.has("speculative") else []
    return f"{path.name} {keys[0]}" if keys else ""


def _check_version(top: Fields) -> None:
    version = top.raw("schema_version")
    if version is None:
        return
    if isinstance(version, bool) or not isinstance(version, (str, int, float)):
        top.fail("schema_version", "the text 'v1'")
    if str(version) not in SCHEMA_VERSIONS:
        raise UnsupportedError(
            f"{top.where('schema_version')} is {version!r}; this version reads {', '.join(SCHEMA_VERSIONS)}. "
            "Use a newer onnx-genai, or export the package again."
        )


def _check_capabilities(capabilities: tuple[str, ...], path: Path) -> None:
    missing = [name for name in capabilities if name not in SUPPORTED_CAPABILITIES]
    if missing:
        raise UnsupportedError(
            f"{path}: required_capabilities asks for {', '.join(missing)}, which this version does not have; "
            f"it has {', '.join(SUPPORTED_CAPABILITIES)}. Use a newer onnx-genai, or another export of the model."
        )


def _component(
    top: Fields, path: Path, capabilities: tuple[str, ...]
) -> tuple[Fields | None, composite.EmbeddingPart | None]:
    """Returns the decoder of a pipeline, with the component that makes its embeddings; refuses other pipelines."""
    pipeline = top.sub("pipeline")
    if pipeline is None:
        return None, None
    if pipeline.has("workflow") and pipeline.has("models"):
        raise PackageError(f"{pipeline.where('workflow')} stands beside pipeline.models; expected only one of them")
    if pipeline.has("workflow"):
        raise composite.workflow_error(pipeline, path)
    models = pipeline.subs("models")
    if not models:
        raise PackageError(f"{pipeline.where('models')} must name at least one component")
    strategy = pipeline.sub("strategy")
    kind = strategy.text("kind") if strategy is not None else "autoregressive"
    if len(models) == 1 and kind == "autoregressive" and models[0][1].text("type") == "decoder":
        _check_capabilities(capabilities, path)
        name, component = models[0]
        if component.text("filename") is None:
            raise PackageError(f"{component.where('filename')} is missing; expected the .onnx file of {name}")
        return component, None
    found = composite.embedding_part(pipeline, models)
    if found is not None:
        _check_capabilities(capabilities, path)
        return found
    raise composite.pipeline_error(pipeline, models, path)


def _io_roles(io: Fields, path: Path, warnings: list[str], *, takes_ids: bool) -> IoRoles:
    _refuse_io(io, path, takes_ids=takes_ids)
    kv_inputs, kv_outputs = io.texts("kv_inputs"), io.texts("kv_outputs")
    if (kv_inputs is None) != (kv_outputs is None):
        raise PackageError(
            f"{io.where('kv_inputs')} and kv_outputs must be declared together (they pair by position); "
            f"only {'kv_inputs' if kv_outputs is None else 'kv_outputs'} is there"
        )
    kv_inputs, kv_outputs = kv_inputs or (), kv_outputs or ()
    if len(kv_inputs) != len(kv_outputs):
        raise PackageError(
            f"{io.where('kv_inputs')} has {len(kv_inputs)} names and kv_outputs {len(kv_outputs)}; "
            "expected equal length (they pair by position)"
        )
    for key, names in (("kv_inputs", kv_inputs), ("kv_outputs", kv_outputs)):
        double = next((name for name in names if names.count(name) > 1), None) if len(set(names)) < len(names) else None
        if double is not None:
            raise PackageError(f"{io.where(key)} names {double!r} twice; expected each port once")
    if kv_inputs and io.has("static_cache"):
        raise PackageError(f"{io.where('static_cache')} stands beside kv_inputs; expected only one of them")
    roles = IoRoles(
        strict=True,
        source=str(path),
        input_ids=io.text("token_input"),
        attention_mask=io.text("attention_mask_input"),
        position_ids=io.text("position_ids_input"),
        logits=io.text("logits_output"),
        hidden=io.text("hidden_output"),
        kv_inputs=kv_inputs,
        kv_outputs=kv_outputs,
        static_cache=_static_cache(io.sub("static_cache")),
    )
    warnings.extend(io.unknown(_IO_DESCRIPTIVE))
    return roles


def _refuse_io(io: Fields, path: Path, *, takes_ids: bool) -> None:
    """Refuses roles that need more graphs than there are, and unknown words."""
    source = io.text("sequence_source")
    if source not in (None, "token_ids", "inputs_embeds"):
        io.fail("sequence_source", "token_ids or inputs_embeds")
    ownership = io.text("kv_ownership")
    if ownership not in (None, "owned", "shared"):
        io.fail("kv_ownership", "owned or shared")
    if io.text("kv_update") not in (None, "append", "shared_buffer"):
        io.fail("kv_update", "append or shared_buffer")
    embeds, ids = io.text("inputs_embeds_input"), io.text("token_input")
    if takes_ids and (source == "inputs_embeds" or (embeds is not None and ids is None)):
        raise composite.unsupported(
            path, "a decoder on embeddings", "io.sequence_source is inputs_embeds", "It needs the whole pipeline."
        )
    if ownership == "shared":
        raise composite.unsupported(
            path, "a drafter for speculative decoding", "io.kv_ownership is shared", "Load its target model instead."
        )
    if io.text("encoder_hidden_states_input") is not None or io.texts("cross_kv_inputs"):
        raise composite.unsupported(path, composite.ENCODER_DECODER, "it reads encoder states", composite.FIX_TEXT)
    if io.raw("state_pairs"):
        raise composite.unsupported(
            path, "a hybrid or recurrent model", "io.state_pairs declares recurrent state", composite.FIX_TEXT
        )


def _static_cache(cache: Fields | None) -> StaticCacheRoles | None:
    if cache is None:
        return None
    lists = {}
    for key in ("key_cache_inputs", "value_cache_inputs", "key_cache_outputs", "value_cache_outputs"):
        names = cache.texts(key)
        if not names:
            raise PackageError(f"{cache.where(key)} is missing or empty; expected one port name a layer")
        lists[key] = names
    lengths = {len(names) for names in lists.values()}
    if len(lengths) != 1:
        counts = ", ".join(f"{key} {len(names)}" for key, names in lists.items())
        raise PackageError(
            f"{cache.where('key_cache_inputs')}: expected four lists of equal length; they have {counts}"
        )
    indices, length = cache.text("write_indices_input"), cache.text("kv_sequence_length_input")
    for key, value in (("write_indices_input", indices), ("kv_sequence_length_input", length)):
        if value is None:
            raise PackageError(f"{cache.where(key)} is missing; expected the name of a graph input")
    return StaticCacheRoles(
        write_indices=indices or "",
        kv_sequence_length=length or "",
        key_inputs=lists["key_cache_inputs"],
        value_inputs=lists["value_cache_inputs"],
        key_outputs=lists["key_cache_outputs"],
        value_outputs=lists["value_cache_outputs"],
    )


def _kv_hints(top: Fields, model: Fields | None, io: Fields | None, path: Path, warnings: list[str]) -> KvHints:
    cache = top.sub("kv_cache")
    attention = model.sub("attention") if model is not None else None
    dtype = cache.text("native_dtype") if cache is not None else None
    shared = None if io is None or not io.has("kv_update") else io.text("kv_update") == "shared_buffer"
    if attention is None:
        return KvHints(dtype=dtype, shared_buffer=shared, source=str(path))
    kind = attention.text("type")
    if kind is not None and kind not in ATTENTION_TYPES:
        warnings.append(f"{attention.where('type')} is {kind!r}, an unknown kind; the graph decides")
    window = attention.whole("sliding_window", low=1)
    sink_tokens = attention.whole("sink_tokens", low=0) or 0
    if sink_tokens:
        warnings.append(f"{attention.where('sink_tokens')} is ignored; the attention of the graph decides")
    lengths = attention.sub("key_sequence_lengths")
    broadcast = lengths.text("scalar_broadcast") if lengths is not None else None
    if lengths is not None and broadcast not in (None, "unit_batch"):
        lengths.fail("scalar_broadcast", "unit_batch")
    hints = KvHints(
        num_attention_heads=attention.whole("num_attention_heads", low=1),
        num_kv_heads=attention.whole("num_kv_heads", low=1),
        head_dim=attention.whole("head_dim", low=1),
        dtype=dtype,
        shared_buffer=shared if shared is not None else (kind in GROUPED_QUERY or None),
        sliding_window=window,
        sink_tokens=sink_tokens,
        unit_batch_seqlens=broadcast == "unit_batch",
        source=f"{path.name} model.attention",
    )
    attention.text("fallback_behavior")
    warnings.extend(attention.unknown())
    return hints


def _model_facts(model: Fields | None, path: Path, warnings: list[str]) -> tuple[tuple[ContextLimit, ...], int | None]:
    if model is None:
        return (), None
    length = model.whole("max_sequence_length", low=1)
    vocab_size = model.whole("vocab_size", low=1)
    for key in ("attention", "io"):
        model.sub(key)
    warnings.extend(model.unknown(_MODEL_DESCRIPTIVE))
    limits = () if length is None else (ContextLimit(tokens=length, source=f"{path.name} model.max_sequence_length"),)
    return limits, vocab_size


def _tokens(top: Fields, vocab_size: int | None) -> tuple[Fields | None, dict[str, str], int | None]:
    """Returns the fields with ``*_token_id`` keys, the special tokens as text, and the vocabulary size."""
    tokens = top.sub("tokens")
    texts: dict[str, str] = {}
    package = top.sub("package")
    tokenizer = package.sub("tokenizer") if package is not None else None
    if tokenizer is None:
        return tokens, texts, vocab_size
    vocab_size = vocab_size or tokenizer.whole("vocab_size", low=1)
    ids: dict[str, object] = {}
    for name, token in tokenizer.subs("special_tokens"):
        base = name.removesuffix("_token")
        content = token.text("content")
        if content is not None:
            texts[f"{base}_token"] = content
        if (token_id := token.whole("id", low=0)) is not None:
            ids[f"{base}_token_id"] = token_id
    if tokens is None and ids:
        tokens = Fields(ids, Path(top.where("package.tokenizer.special_tokens")))
    return tokens, texts, vocab_size
