"""What a model package says about itself, whatever format it has: :class:`ModelPackage` and its parts.

Plain data. Roles that the package does not declare are ``None``; ``graph`` fills them from the ONNX graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from onnx_genai.errors import PackageError

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
]

PackageFormat = Literal["inference_metadata", "genai_config", "optimum", "onnx"]
"""How the package was described: by which file, or by nothing but the graph (``onnx``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One of several graphs of the same model."""

    name: str
    """``base`` for the file without a suffix, else the suffix without its underscore: ``q4``, ``fp16``, ..."""
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextLimit:
    """A bound on prompt and output together."""

    tokens: int
    source: str
    """For errors: file and key, for example ``config.json max_position_embeddings``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticCacheRoles:
    """Declared ports of a cache that the graph writes at given positions; the lists go by layer."""

    write_indices: str
    kv_sequence_length: str
    key_inputs: tuple[str, ...]
    value_inputs: tuple[str, ...]
    key_outputs: tuple[str, ...]
    value_outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KvNameTemplates:
    """KV port names with ``%d`` for the layer; ``packed_*`` hold key and value in one tensor."""

    past_key: str | None = None
    past_value: str | None = None
    present_key: str | None = None
    present_value: str | None = None
    packed_past: str | None = None
    packed_present: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IoRoles:
    """Graph ports that the package declares; None or empty where it says nothing."""

    strict: bool = False
    """A declared port that the graph lacks is an error (native metadata); else it is left unbound (genai_config)."""
    source: str = ""
    """File that declares the roles, for errors."""
    input_ids: str | None = None
    attention_mask: str | None = None
    position_ids: str | None = None
    seqlens_k: str | None = None
    total_sequence_length: str | None = None
    past_sequence_length: str | None = None
    logits: str | None = None
    hidden: str | None = None
    kv_inputs: tuple[str, ...] = ()
    """Pairs by position with ``kv_outputs``."""
    kv_outputs: tuple[str, ...] = ()
    kv_templates: KvNameTemplates | None = None
    static_cache: StaticCacheRoles | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHints:
    """KV geometry as the package states it. Static dimensions of the graph win over it."""

    num_layers: int | None = None
    num_attention_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    dtype: str | None = None
    """As spelled in the package."""
    shared_buffer: bool | None = None
    """The package asks for one buffer as past and present."""
    sliding_window: int | None = None
    sink_tokens: int = 0
    unit_batch_seqlens: bool = False
    """``seqlens_k`` may be a scalar when the batch is 1."""
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Defaults for requests that leave a sampling field open; None where the package says nothing.

    ``temperature`` already respects ``do_sample``: false gives 0 (greedy), true gives the stated value or 1. Without
    ``do_sample`` it is the stated value, if any.
    """

    source: str = ""
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    length_penalty: float | None = None
    """With ``early_stopping``: for requests that ask for beam search; a package's own ``num_beams`` is not applied."""
    early_stopping: bool | Literal["never"] | None = None
    max_new_tokens: int | None = None
    max_length: int | None = None
    """Prompt and output together, as the exporter suggests. Shown only: it is no limit of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplateSource:
    """Chat templates as written in the package (Jinja source)."""

    default: str | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    """Further templates by name, for example ``tool_use``."""
    source: str = ""
    """File and key of the default, or of the named ones where there is none."""

    @property
    def texts(self) -> Mapping[str, str]:
        """All of them by name, ``default`` first; empty if the package has none."""
        return {**({} if self.default is None else {"default": self.default}), **self.named}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """One entry of ``provider_options``: an execution provider that the package was built for."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """Session options of the package that are honoured unless the caller says otherwise."""

    intra_op_num_threads: int | None = None
    inter_op_num_threads: int | None = None
    graph_optimization_level: str | None = None
    """``disable_all``, ``basic``, ``extended`` or ``all``."""
    enable_cpu_mem_arena: bool | None = None
    log_severity_level: int | None = None
    config_entries: Mapping[str, str] = field(default_factory=dict)
    """``session.*``, ``optimization.*``, ``mlas.*`` and ``ep.*`` entries."""
    provider_options: tuple[ProviderOptions, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingGraph:
    """The graph of a package that makes what its decoder takes in the place of token ids."""

    path: Path
    """Absolute path of the .onnx file."""
    input_ids: str | None = None
    """Its input of token ids, as declared."""
    output: str | None = None
    """Its output, as declared; None for those that the decoder has inputs of the same name for."""
    decoder_input: str | None = None
    """The input of the decoder that takes ``output``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceEncoder:
    """The graph of an encoder-decoder that runs once a request, on the source; names are as declared, or None."""

    path: Path
    """Absolute path of the .onnx file."""
    start_token_id: int
    """What the decoder begins with."""
    end_token_id: int | None = None
    """Follows every source that does not end with it; None where the tokenizer sees to that."""
    input_ids: str | None = None
    attention_mask: str | None = None
    hidden: str | None = None
    """The output that the decoder reads."""
    decoder_hidden: str | None = None
    """The input of the decoder that takes it."""
    decoder_mask: str | None = None
    """The input of the decoder that takes the mask of the source."""
    states: tuple[tuple[str, str], ...] = ()
    """Inputs and outputs of the decoder that carry a state of fixed size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPackage:
    """Everything that a package says about its language model, read but not yet checked against its graph."""

    format: PackageFormat
    root: Path
    """Absolute folder that relative file names start from."""
    model_path: Path
    """Absolute path of the chosen .onnx file."""
    variant: str = "base"
    variants: tuple[Variant, ...] = ()
    """All graphs that could be chosen, preferred first; ``variant`` is one of them."""
    data_files: tuple[Path, ...] = ()
    """External weight files beside the graph, by naming convention; ``graph`` knows the exact list."""
    embedding: EmbeddingGraph | None = None
    """The graph before that of ``model_path``; None where the decoder takes token ids."""
    encoder: SourceEncoder | None = None
    """Of an encoder-decoder, whose decoder is ``model_path``; else None."""
    tokenizer_path: Path | None = None
    tokenizer_searched: tuple[Path, ...] = ()
    """Where a tokenizer.json was looked for."""
    model_type: str | None = None
    """For display only; nothing depends on it."""
    io: IoRoles = field(default_factory=IoRoles)
    kv: KvHints = field(default_factory=KvHints)
    context_limits: tuple[ContextLimit, ...] = ()
    vocab_size: int | None = None
    """As declared; the width of the graph's logits wins."""
    vocab_source: str = ""
    eos_token_ids: tuple[int, ...] = ()
    """Every id that ends a sequence, the main one first."""
    eos_source: str = ""
    bos_token_id: int | None = None
    pad_token_id: int | None = None
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    """``bos_token``, ``eos_token``, ``pad_token``, ``unk_token``, ... as text, for chat templates."""
    chat_template: ChatTemplateSource = field(default_factory=ChatTemplateSource)
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    session_options: SessionOptions = field(default_factory=SessionOptions)
    required_capabilities: tuple[str, ...] = ()
    speculator_source: str = ""
    """File and key that describe drafting for speculative decoding; empty if none does."""
    warnings: tuple[str, ...] = ()

    @property
    def context_limit(self) -> ContextLimit | None:
        """The smallest of ``context_limits``, or None if the package states none."""
        return min(self.context_limits, key=lambda limit: limit.tokens, default=None)

    @property
    def weights_bytes(self) -> int:
        """Size of the graph's file and its weight files, of those that can be read."""
        files = {self.model_path, *self.data_files}
        return sum(file.stat().st_size for file in files if file.is_file())

    def require_tokenizer(self) -> Path:
        """Returns the tokenizer.json.

        Raises:
            PackageError: There is none; the text says where it was looked for.
        """
        if self.tokenizer_path is not None:
            return self.tokenizer_path
        searched = ", ".join(str(path) for path in self.tokenizer_searched) or str(self.root / "tokenizer.json")
        others = [name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (self.root / name).is_file()]
        hint = (
            f"It has {', '.join(others)}: make a tokenizer.json with "
            "transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)."
            if others
            else "Copy the tokenizer.json of the original model into the folder, or pass token ids instead of text."
        )
        raise PackageError(f"{self.root}: tokenizer.json is missing (looked for {searched}). {hint}")
