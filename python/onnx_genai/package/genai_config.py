"""Reads ``genai_config.json`` of single-decoder language models (the format of onnxruntime-genai)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from onnx_genai.errors import PackageError
from onnx_genai.package import composite
from onnx_genai.package.fields import Fields
from onnx_genai.package.files import MAX_METADATA_BYTES, PackageFolder, as_object, parse_json
from onnx_genai.package.generation import defaults_from
from onnx_genai.package.model import (
    ContextLimit,
    GenerationDefaults,
    IoRoles,
    KvHints,
    KvNameTemplates,
    ProviderOptions,
    SessionOptions,
    SourceEncoder,
)

__all__ = ["FILE_NAME", "GenaiConfig", "load"]

FILE_NAME = "genai_config.json"

_TOP_KNOWN = frozenset({"engine", "speculative"})
_MODEL_KNOWN = frozenset(
    {"sep_token_id", "decoder_start_token_id", "image_token_id", "video_token_id", "vision_start_token_id"}
    | {"audio_token_id", "boa_token_id", "bot_token_id", "eot_token_id", "bor_token_id", "eor_token_id", "vad", "mtp"}
    | {"encoder", "embedding", "vision", "speech", "joiner", "draft"}
)
_DECODER_KNOWN = frozenset(
    {"hidden_size", "layer_types", "conv_cache_size", "shared_initializers", "run_options", "pipeline"}
)
# Ports of other kinds of models, or bound by name when the graph has them.
_INPUTS_KNOWN = frozenset(
    {"inputs_embeds", "cross_past_key_names", "cross_past_value_names", "past_conv_names", "encoder_hidden_states"}
    | {"encoder_attention_mask", "current_sequence_length", "cache_indirection", "cumulative_sequence_lengths"}
    | {"past_sequence_lengths", "block_table", "block_table_windowed", "attention_metadata", "rnn_states_prev"}
    | {"hidden_states", "per_layer_inputs"}
)
_OUTPUTS_KNOWN = frozenset({"output_cross_qk_names", "rnn_states", "present_conv_names", "outputs", "outputs_length"})
_OPTIMIZATION_LEVELS = {
    "ORT_DISABLE_ALL": "disable_all",
    "ORT_ENABLE_BASIC": "basic",
    "ORT_ENABLE_EXTENDED": "extended",
    "ORT_ENABLE_LAYOUT": "all",
    "ORT_ENABLE_ALL": "all",
}
_ENTRY_PREFIXES = ("session.", "optimization.", "mlas.", "ep.")
# Entries that write files or say where weights are: not for a package to choose.
_FORBIDDEN_PREFIXES = (
    "ep.context_",
    "session.model_external_initializers",
    "session.optimized_model_external_initializers",
    "session.collect_node_memory_stats_to_file",
    "session.node_partition_config_file",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenaiConfig:
    """What the file says; parts that it leaves out are empty."""

    path: Path
    model_type: str | None
    model_file: str | None
    """``model.decoder.filename``; None means the only graph of the folder."""
    embedding: composite.EmbeddingPart | None
    """``model.embedding``, if there is one."""
    encoder: SourceEncoder | None
    """``model.encoder``, if there is one; its path is not yet resolved."""
    tokenizer_dir: str | None
    io: IoRoles
    kv: KvHints
    context_limits: tuple[ContextLimit, ...]
    vocab_size: int | None
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    pad_token_id: int | None
    generation: GenerationDefaults | None
    session_options: SessionOptions
    speculator_source: str
    """As in :class:`ModelPackage`."""
    warnings: tuple[str, ...]


def load(folder: PackageFolder, path: Path) -> GenaiConfig:
    """Reads one genai_config.json.

    Raises:
        PackageError: Broken file, missing key or wrong type; names file and key.
        UnsupportedError: The package has more graphs than one decoder.
    """
    text = folder.text(path, limit=MAX_METADATA_BYTES)
    top = Fields(as_object(parse_json(text, path), path), path)
    warnings: list[str] = []
    model = top.sub("model")
    if model is None:
        raise PackageError(f"{top.where('model')} is missing; expected an object with a 'decoder'")
    error = composite.genai_error(model, path)
    if error is not None:
        raise error
    decoder = model.sub("decoder")
    if decoder is None:
        raise PackageError(f"{model.where('decoder')} is missing; expected an object with 'filename'")
    pad = model.one_id("pad_token_id")
    eos = model.ids("eos_token_id") or (() if pad is None else (pad,))
    search = top.sub("search")
    generation = defaults_from(search, path, warnings)
    config = GenaiConfig(
        path=path,
        model_type=model.text("type"),
        model_file=decoder.text("filename"),
        embedding=_embedding(model, decoder),
        encoder=_encoder(model, decoder, eos),
        tokenizer_dir=model.text("tokenizer_dir"),
        io=_io_roles(decoder, path, warnings),
        kv=_kv_hints(decoder, search, path, warnings),
        context_limits=_limits(model, path),
        vocab_size=model.whole("vocab_size", low=1),
        eos_token_ids=eos,
        bos_token_id=model.one_id("bos_token_id"),
        pad_token_id=pad,
        generation=generation,
        session_options=_session_options(decoder.sub("session_options"), warnings),
        speculator_source=_speculator(top, model, path),
        warnings=(),
    )
    if config.embedding is not None and config.embedding.others:
        others = ", ".join(config.embedding.others)
        warnings.append(f"{path}: this version gives the model text alone; not used: {others}")
    if config.speculator_source:
        warnings.append(f"{path}: speculative decoding is described but not used")
    warnings.extend(decoder.unknown(_DECODER_KNOWN))
    warnings.extend(model.unknown(_MODEL_KNOWN))
    warnings.extend(top.unknown(_TOP_KNOWN))
    return replace(config, warnings=tuple(warnings))


def _speculator(top: Fields, model: Fields, path: Path) -> str:
    keys = [f"model.{key}" for key in ("draft", "mtp") if model.has(key)]
    keys += ["speculative"] if top.has("speculative") else []
    return f"{path.name} {keys[0]}" if keys else ""


def _embedding(model: Fields, decoder: Fields) -> composite.EmbeddingPart | None:
    block = model.sub("embedding")
    if block is None:
        return None
    file = block.text("filename")
    if file is None:
        raise PackageError(f"{block.where('filename')} is missing; expected the file that makes embeddings")
    inputs, outputs, taken = block.sub("inputs"), block.sub("outputs"), decoder.sub("inputs")
    return composite.EmbeddingPart(
        file=file,
        input_ids=inputs.text("input_ids") if inputs is not None else None,
        output=outputs.text("inputs_embeds") if outputs is not None else None,
        decoder_input=(taken.text("inputs_embeds") if taken is not None else None) or "inputs_embeds",
        others=tuple(name for name in ("vision", "speech") if model.has(name)),
    )


def _encoder(model: Fields, decoder: Fields, eos: tuple[int, ...]) -> SourceEncoder | None:
    """Of an encoder-decoder. Tokenizers of this format leave the end of a source to the runtime."""
    block = model.sub("encoder")
    if block is None:
        return None
    file = block.text("filename")
    if file is None:
        raise PackageError(f"{block.where('filename')} is missing; expected the file of the encoder")
    inputs, outputs = block.sub("inputs"), block.sub("outputs")
    taken, given = decoder.sub("inputs"), decoder.sub("outputs")
    starts = (model.one_id(key) for key in ("decoder_start_token_id", "bos_token_id", "pad_token_id"))
    start = next((token for token in starts if token is not None), None)
    if start is None:
        raise PackageError(f"{model.where('decoder_start_token_id')} is missing; expected what the decoder begins with")

    def name(fields: Fields | None, key: str) -> str | None:
        return fields.text(key) if fields is not None else None

    past, present = name(taken, "rnn_states_prev"), name(given, "rnn_states")
    return SourceEncoder(
        path=Path(file),
        start_token_id=start,
        end_token_id=eos[0] if eos else None,
        input_ids=name(inputs, "input_ids"),
        attention_mask=name(inputs, "attention_mask"),
        hidden=name(outputs, "encoder_outputs") or name(outputs, "encoder_hidden_states"),
        decoder_hidden=name(taken, "encoder_hidden_states"),
        decoder_mask=name(taken, "encoder_attention_mask"),
        states=((past, present),) if past is not None and present is not None else (),
    )


def _limits(model: Fields, path: Path) -> tuple[ContextLimit, ...]:
    length = model.whole("context_length", low=1)
    return () if length is None else (ContextLimit(tokens=length, source=f"{path.name} model.context_length"),)


def _io_roles(decoder: Fields, path: Path, warnings: list[str]) -> IoRoles:
    inputs, outputs = decoder.sub("inputs"), decoder.sub("outputs")

    def name(block: Fields | None, key: str) -> str | None:
        return block.text(key) if block is not None else None

    templates = KvNameTemplates(
        past_key=_template(inputs, "past_key_names"),
        past_value=_template(inputs, "past_value_names"),
        present_key=_template(outputs, "present_key_names"),
        present_value=_template(outputs, "present_value_names"),
        packed_past=_template(inputs, "past_names"),
        packed_present=_template(outputs, "present_names"),
    )
    roles = IoRoles(
        strict=False,
        source=str(path),
        input_ids=name(inputs, "input_ids"),
        attention_mask=name(inputs, "attention_mask"),
        position_ids=name(inputs, "position_ids"),
        total_sequence_length=name(inputs, "total_sequence_length"),
        past_sequence_length=name(inputs, "past_sequence_length") or name(inputs, "past_key_values_length"),
        logits=name(outputs, "logits"),
        hidden=name(outputs, "hidden_states"),
        kv_templates=templates if templates != KvNameTemplates() else None,
    )
    for block, known in ((inputs, _INPUTS_KNOWN), (outputs, _OUTPUTS_KNOWN)):
        if block is not None:
            block.raw("past_key_values_length")
            warnings.extend(block.unknown(known))
    return roles


def _template(block: Fields | None, key: str) -> str | None:
    value = block.text(key) if block is not None else None
    if block is not None and value is not None and value.count("%d") != 1:
        block.fail(key, "a name with one %d for the layer")
    return value


def _kv_hints(decoder: Fields, search: Fields | None, path: Path, warnings: list[str]) -> KvHints:
    window = decoder.sub("sliding_window")
    size = window.whole("window_size") if window is not None else None
    if window is not None and (window.flag("slide_inputs") or window.flag("slide_key_value_cache")):
        warnings.append(f"{window.where('slide_key_value_cache')} is ignored; the shapes of the graph decide")
    return KvHints(
        num_layers=decoder.whole("num_hidden_layers", low=0),
        num_attention_heads=decoder.whole("num_attention_heads", low=1),
        num_kv_heads=decoder.whole("num_key_value_heads", low=1),
        head_dim=decoder.whole("head_size", low=1),
        shared_buffer=search.flag("past_present_share_buffer") if search is not None else None,
        sliding_window=size if size is not None and size > 0 else None,
        source=f"{path.name} model.decoder",
    )


def _session_options(options: Fields | None, warnings: list[str]) -> SessionOptions:
    if options is None:
        return SessionOptions()
    level = options.text("graph_optimization_level")
    if level is not None and level not in _OPTIMIZATION_LEVELS:
        options.fail("graph_optimization_level", "one of " + ", ".join(_OPTIMIZATION_LEVELS))
    threads = {key: options.whole(key, low=0) for key in ("intra_op_num_threads", "inter_op_num_threads")}
    for key in ("log_id", "log_verbosity_level", "enable_mem_pattern"):
        options.raw(key)
    for key in ("enable_profiling", "custom_ops_library"):
        if options.raw(key) is not None:
            warnings.append(f"{options.where(key)} is ignored")
    arena = options.flag("enable_cpu_mem_arena")
    severity = options.whole("log_severity_level", low=0)
    providers = _providers(options)
    entries: dict[str, str] = {}
    for key in options.names():
        if key.startswith(_FORBIDDEN_PREFIXES):
            options.raw(key)
            warnings.append(f"{options.where(key)} is ignored")
        elif key.startswith(_ENTRY_PREFIXES):
            entries[key] = options.text(key) or ""
    warnings.extend(options.unknown())
    return SessionOptions(
        intra_op_num_threads=threads["intra_op_num_threads"] or None,  # 0 lets the runtime choose
        inter_op_num_threads=threads["inter_op_num_threads"] or None,
        graph_optimization_level=None if level is None else _OPTIMIZATION_LEVELS[level],
        enable_cpu_mem_arena=arena,
        log_severity_level=severity,
        config_entries=entries,
        provider_options=providers,
    )


def _providers(options: Fields) -> tuple[ProviderOptions, ...]:
    """Reads ``provider_options``: a list of objects with one provider name each."""
    entries = options.raw("provider_options")
    if entries is None:
        return ()
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        options.fail("provider_options", "a list of objects")
    found = []
    for index, entry in enumerate(entries):
        fields = Fields(entry, Path(options.where(f"provider_options[{index}]")))
        for name, values in fields.entries():
            settings = {key: str(values.raw(key)) for key in values.names() if not isinstance(values.raw(key), dict)}
            found.append(ProviderOptions(name=name.lower(), options=settings))
    return tuple(found)
