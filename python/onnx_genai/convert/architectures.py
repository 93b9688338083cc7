"""What each model family that can be imported looks like, read from GGUF metadata.

Tensor names and metadata keys: the GGUF specification. Family facts (which layers slide, where norms stand, which
heads are stored permuted): the published model configurations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from onnx_genai.convert.gguf_file import GgufFile
from onnx_genai.convert.rope import Rope
from onnx_genai.errors import InvalidArgumentError, PackageError, UnsupportedError

__all__ = ["ARCHITECTURES", "Layer", "ModelSpec", "read_model_spec"]


MAX_CONTEXT = 1 << 24
"""A larger number in a file is taken for damage; the rotary tables have a row for each position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Facts that hold for every model of an architecture and stand in no metadata."""

    model_type: str
    """Name in ``config.json``."""
    class_name: str
    permuted_heads: bool = False
    """Query and key rows are stored with the two halves of each head interleaved."""
    activation: str = "silu"
    fused: bool = False
    """``attn_qkv`` and a ``ffn_up`` that holds gate and up, in place of five tensors."""
    head_norm: bool = False
    """RMS norm of each query and key head."""
    post_norms: bool = False
    """RMS norm after attention and after the feed-forward block, before the residual sum."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the square root of their width."""
    no_rope_every: int = 0
    """Every n-th layer has no rotary embedding; 0 is none."""
    window_every: int = 0
    """Every n-th layer sees the whole context, the others a sliding window; 0: all layers slide if any does."""
    local_rope_base: float = 0.0
    """Base of sliding layers when it differs from that of the others; 0 is the same."""
    attention_softcap: float = 0.0
    final_softcap: float = 0.0
    large_model_layers: int = 0
    """The member with this many layers scales queries by hidden / heads, not by the head size."""


ARCHITECTURES: dict[str, Family] = {
    "gemma2": Family(
        model_type="gemma2",
        class_name="Gemma2ForCausalLM",
        activation="gelu_tanh",
        post_norms=True,
        scaled_embedding=True,
        window_every=2,
        attention_softcap=50.0,
        final_softcap=30.0,
        large_model_layers=46,
    ),
    "gemma3": Family(
        model_type="gemma3_text",
        class_name="Gemma3ForCausalLM",
        activation="gelu_tanh",
        head_norm=True,
        post_norms=True,
        scaled_embedding=True,
        window_every=6,
        local_rope_base=10000.0,
        large_model_layers=62,
    ),
    "llama": Family(model_type="llama", class_name="LlamaForCausalLM", permuted_heads=True),
    "phi3": Family(model_type="phi3", class_name="Phi3ForCausalLM", fused=True),
    "qwen2": Family(model_type="qwen2", class_name="Qwen2ForCausalLM"),
    "qwen3": Family(model_type="qwen3", class_name="Qwen3ForCausalLM", head_norm=True),
    "smollm3": Family(model_type="smollm3", class_name="SmolLM3ForCausalLM", permuted_heads=True, no_rope_every=4),
}
"""Known values of ``general.architecture``; Mistral and SmolLM 1 and 2 files say ``llama``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """What differs between layers."""

    rope: str | None
    """Name of its table in :attr:`ModelSpec.ropes`; None: no rotation."""
    window: int | None
    """Positions a token sees, itself included; None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything that the graph needs besides the weights."""

    architecture: str
    family: Family
    name: str
    layers: tuple[Layer, ...]
    ropes: dict[str, Rope]
    hidden: int
    feed_forward: int
    vocab: int
    context: int
    """Positions that the rotary tables cover: the package's limit."""
    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    attention_scale: float
    attention_softcap: float
    final_softcap: float
    tied: bool
    """The embedding is also the output projection."""
    warnings: tuple[str, ...] = field(default=())


def read_model_spec(file: GgufFile, max_context: int | None = None) -> ModelSpec:
    """Reads the metadata of a language model.

    Args:
        file: The open file.
        max_context: Upper bound of the context, >= 1; None: what the model was made for.

    Raises:
        UnsupportedError: The architecture or one of its options is not known.
        PackageError: A key is missing, has the wrong type or does not fit the others.
    """
    arch = file.text("general.architecture")
    if arch not in ARCHITECTURES:
        raise UnsupportedError(
            f"{file.path}: the architecture {arch!r} cannot be imported; known: {', '.join(ARCHITECTURES)}"
        )
    family = ARCHITECTURES[arch]
    if file.integer(f"{arch}.expert_count", 0) > 0:
        raise UnsupportedError(f"{file.path}: {arch} with mixture-of-experts layers cannot be imported yet")
    hidden = file.integer(f"{arch}.embedding_length")
    count = file.integer(f"{arch}.block_count")
    heads = _per_layer(file, f"{arch}.attention.head_count", count)
    kv_heads = _per_layer(file, f"{arch}.attention.head_count_kv", count, heads)
    head_dim = file.integer(f"{arch}.attention.key_length", hidden // heads if heads > 0 else 0)
    _check_heads(file, hidden, count, heads, kv_heads, head_dim)
    if file.integer(f"{arch}.attention.value_length", head_dim) != head_dim:
        raise UnsupportedError(f"{file.path}: key and value heads of different size cannot be imported")
    embedding = file.tensor("token_embd.weight")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise PackageError(f"{file.path}: token_embd.weight has shape {embedding.shape}; expected [vocab, {hidden}]")
    context, ropes, warnings = _read_ropes(file, arch, family, head_dim, max_context)
    spec = ModelSpec(
        architecture=arch,
        family=family,
        name=file.text("general.name", file.path.stem),
        layers=(),
        ropes=ropes,
        hidden=hidden,
        feed_forward=_per_layer(file, f"{arch}.feed_forward_length", count),
        vocab=embedding.shape[0],
        context=context,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        epsilon=file.real(f"{arch}.attention.layer_norm_rms_epsilon"),
        attention_scale=_attention_scale(file, arch, family, hidden, count, heads, head_dim),
        attention_softcap=file.real(f"{arch}.attn_logit_softcapping", family.attention_softcap),
        final_softcap=file.real(f"{arch}.final_logit_softcapping", family.final_softcap),
        tied="output.weight" not in file.tensors,
        warnings=tuple(warnings),
    )
    return replace(spec, layers=_read_layers(file, spec, count))


def _per_layer(file: GgufFile, key: str, count: int, default: int | None = None) -> int:
    """A number that some files give once and others as an array with one entry a layer."""
    if isinstance(file.metadata.get(key), list):
        values = set(file.items(key))
        if len(values) != 1 or not isinstance(next(iter(values)), int):
            raise UnsupportedError(f"{file.path}: {key} differs between layers ({sorted(map(str, values))})")
        return int(str(values.pop()))
    return file.integer(key, default)


def _check_heads(file: GgufFile, hidden: int, count: int, heads: int, kv_heads: int, head_dim: int) -> None:
    numbers = {"embedding_length": hidden, "block_count": count, "head_count": heads, "head_count_kv": kv_heads}
    for name, value in (numbers | {"key_length": head_dim}).items():
        if not 1 <= value <= 1 << 24:
            raise PackageError(f"{file.path}: {name} is {value}; expected a whole number in 1..16777216")
    if heads % kv_heads:
        raise PackageError(f"{file.path}: {heads} heads cannot share {kv_heads} key/value heads evenly")
    if head_dim % 8:
        raise UnsupportedError(f"{file.path}: the head size is {head_dim}; ONNX Runtime wants a multiple of 8")


def _attention_scale(
    file: GgufFile, arch: str, family: Family, hidden: int, count: int, heads: int, head_dim: int
) -> float:
    width = hidden / heads if count == family.large_model_layers else head_dim
    return file.real(f"{arch}.attention.scale", 0.0) or 1.0 / math.sqrt(width)


def _read_layers(file: GgufFile, spec: ModelSpec, count: int) -> tuple[Layer, ...]:
    family = spec.family
    window = file.integer(f"{spec.architecture}.attention.sliding_window", 0)
    if window <= 0 or window >= spec.context:
        window = 0
    slides = _sliding_pattern(file, spec, count)
    layers = []
    for index in range(count):
        rotates = not family.no_rope_every or (index + 1) % family.no_rope_every
        rope = "local" if slides[index] and "local" in spec.ropes else "global"
        layers.append(
            Layer(rope=rope if rotates else None, window=window if slides[index] and window else None),
        )
    return tuple(layers)


def _sliding_pattern(file: GgufFile, spec: ModelSpec, count: int) -> list[bool]:
    """Which layers see a sliding window only."""
    key = f"{spec.architecture}.attention.sliding_window_pattern"
    every = spec.family.window_every
    if isinstance(file.metadata.get(key), list):
        flags = file.items(key)
        if len(flags) != count:
            raise PackageError(f"{file.path}: {key} has {len(flags)} entries; expected one a layer ({count})")
        return [bool(flag) for flag in flags]
    every = file.integer(key, every)
    return [not every or (index + 1) % every != 0 for index in range(count)]


def _read_ropes(
    file: GgufFile, arch: str, family: Family, head_dim: int, max_context: int | None
) -> tuple[int, dict[str, Rope], list[str]]:
    """Context, rotary tables by name, warnings."""
    if max_context is not None and max_context < 1:
        raise InvalidArgumentError(f"max_context is {max_context}; allowed: a whole number >= 1")
    trained = file.integer(f"{arch}.context_length")
    if not 1 <= trained <= MAX_CONTEXT:
        raise PackageError(f"{file.path}: {arch}.context_length is {trained}; expected 1..{MAX_CONTEXT}")
    context = min(trained, max_context or trained)
    warnings: list[str] = []
    prefix = f"{arch}.rope."
    dims = file.integer(prefix + "dimension_count", head_dim)
    rope = Rope(
        base=file.real(prefix + "freq_base", 10000.0),
        dims=dims,
        scaling=file.text(prefix + "scaling.type", "none"),
        factor=file.real(prefix + "scaling.factor", 0.0) or file.real(prefix + "scale_linear", 1.0),
        original_context=file.integer(prefix + "scaling.original_context_length", trained),
        beta_fast=file.real(prefix + "scaling.yarn_beta_fast", 32.0),
        beta_slow=file.real(prefix + "scaling.yarn_beta_slow", 1.0),
        divisors=file.vector("rope_freqs.weight", dims // 2) if "rope_freqs.weight" in file.tensors else None,
    )
    if rope.dims > head_dim:
        raise PackageError(f"{file.path}: {rope.dims} rotated dimensions are more than the head size {head_dim}")
    if rope.scaling == "yarn":
        if file.real(prefix + "scaling.yarn_log_multiplier", 0.0):
            raise UnsupportedError(f"{file.path}: yarn scaling with a log multiplier cannot be imported")
        magnitude = 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
        rope = replace(rope, magnitude=magnitude * file.real(prefix + "scaling.attn_factor", 1.0))
    elif "rope_factors_short.weight" in file.tensors:
        context, rope = _longrope(file, arch, rope, trained, max_context, warnings)
    elif rope.scaling == "longrope":
        raise PackageError(f"{file.path}: longrope scaling without the tensor 'rope_factors_short.weight'")
    ropes = {"global": rope}
    if family.local_rope_base:
        base = file.real(prefix + "freq_base_swa", family.local_rope_base)
        ropes["local"] = Rope(base=base, dims=rope.dims)
    return context, ropes, warnings


def _longrope(
    file: GgufFile, arch: str, rope: Rope, trained: int, max_context: int | None, warnings: list[str]
) -> tuple[int, Rope]:
    """One set of factors holds for the whole package, because keys in the cache cannot be rotated again."""
    original = rope.original_context
    if not 1 < original <= trained:
        raise PackageError(f"{file.path}: rope original_context_length is {original}; expected 2..{trained}")
    long = max_context is not None and max_context > original
    context = min(trained, max_context or original)
    if not long and trained > original:
        warnings.append(
            f"the context is {context} tokens, where the short rotary factors hold; pass a max_context above "
            f"{original} (at most {trained}) to build for long prompts"
        )
    name = f"rope_factors_{'long' if long else 'short'}.weight"
    ratio = trained / original
    default = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 else 1.0
    return context, replace(
        rope,
        scaling="longrope",
        divisors=file.vector(name, rope.dims // 2),
        magnitude=file.real(f"{arch}.rope.scaling.attn_factor", default),
    )
