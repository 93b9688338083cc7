"""Finds the graph in a folder without a package file: optimum, onnx-community and transformers.js layouts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from onnx_genai.errors import NotFoundError, PackageError, UnsupportedError
from onnx_genai.package import composite
from onnx_genai.package.model import Variant

__all__ = [
    "choose",
    "data_files",
    "find_embedding",
    "find_encoder",
    "find_seq2seq_variants",
    "find_variants",
    "only_graph",
    "refuse_composite",
]

BASES = ("model", "decoder_model_merged")
"""File stems of a whole decoder, preferred first."""
PAIR = ("decoder_model", "decoder_with_past_model")
"""The two halves of an old export: without and with past inputs."""

ENCODER = "encoder_model"
"""File stem of the encoder of an encoder-decoder."""

EMBEDDING = "embed_tokens"
"""File stem of the graph before a decoder that takes embeddings."""

BESIDE_TEXT = ("vision_encoder", "audio_encoder", EMBEDDING)
"""File stems of graphs that may stand beside a decoder with its embedding: a text needs no other one."""

PREFERENCE = ("q4", "base", "quantized", "int8", "uint8", "q8", "bnb4", "q4f16", "fp16")
"""Order of choice on a CPU. Four-bit weights are a quarter of the memory traffic at nearly the quality of the
original; dynamic int8 loses more; half-precision activations have few CPU kernels. Others come last, by name."""

_ALIASES = {"fp32": "base", "default": "base", "": "base", "q8": "quantized"}

# File stems that show a package of several graphs, and its kind.
_COMPOSITE_STEMS = (
    ("decoder_postnet_and_vocoder", composite.TEXT_TO_SPEECH),
    ("encodec_decode", "a music generation pipeline"),
    ("vision_encoder", composite.VISION_LANGUAGE),
    ("audio_encoder", composite.AUDIO_LANGUAGE),
    ("embed_tokens", "a decoder on embeddings"),
    ("encoder_model", composite.ENCODER_DECODER),
    ("encoder", composite.ENCODER_DECODER),
    ("joiner", "a transducer (streaming speech recognition)"),
    ("vae_decoder", composite.DIFFUSION),
    ("unet", composite.DIFFUSION),
)


def _folders(root: Path) -> list[Path]:
    return [folder for folder in (root, root / "onnx") if folder.is_dir()]


def _graphs(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*.onnx") if path.is_file() or path.is_symlink())


def refuse_composite(root: Path) -> None:
    """Raises UnsupportedError if the file names show a package of several graphs."""
    if (root / "model_index.json").is_file():
        raise composite.unsupported(root, composite.DIFFUSION, "it has model_index.json")
    files = [path for folder in _folders(root) for path in _graphs(folder)]
    stems = {path.stem for path in files}
    seq2seq = bool(find_seq2seq_variants(root))
    joins = not seq2seq and bool(find_embeddings(root)) and bool(find_variants(root))
    for stem, kind in _COMPOSITE_STEMS:
        if (joins and stem in BESIDE_TEXT) or (seq2seq and kind == composite.ENCODER_DECODER):
            continue
        if any(re.fullmatch(re.escape(stem) + r"(_[a-z0-9]+)?", name) for name in stems):
            names = sorted({path.name for path in files})
            raise composite.unsupported(root, kind, "files: " + ", ".join(names[:8]))


def find_variants(root: Path) -> tuple[Variant, ...]:
    """Returns the graphs of a whole decoder in ``root`` and ``root/onnx``, preferred first; may be empty.

    Raises:
        UnsupportedError: There is only the old pair of graphs.
    """
    for base in BASES:
        found = _variants_of(base, root)
        if found:
            return found
    stems = {path.stem for folder in _folders(root) for path in _graphs(folder)}
    if set(PAIR) <= stems:
        raise UnsupportedError(
            f"{root}: has decoder_model.onnx and decoder_with_past_model.onnx, a pair of graphs that this version does "
            "not join. Export again with optimum-onnx, which writes one model.onnx, or give the path of "
            "decoder_model.onnx to run it without a cache."
        )
    return ()


def find_seq2seq_variants(root: Path) -> tuple[Variant, ...]:
    """Returns the decoders of an encoder-decoder, preferred first; empty if the folder has no encoder beside them."""
    if not _variants_of(ENCODER, root) or find_embeddings(root):
        return ()
    return _variants_of("decoder_model_merged", root) or tuple(
        variant for variant in _variants_of(PAIR[0], root) if variant.name != "merged"
    )


def find_encoder(root: Path, variant: str) -> Path | None:
    """Returns the encoder for a variant of the decoder: the same variant, else the preferred one."""
    found = _variants_of(ENCODER, root)
    return next((each.path for each in found if each.name == variant), found[0].path if found else None)


def find_embeddings(root: Path) -> tuple[Variant, ...]:
    """Returns the graphs that make embeddings of token ids in ``root`` and ``root/onnx``, preferred first."""
    return _variants_of(EMBEDDING, root)


def find_embedding(root: Path, variant: str) -> Path | None:
    """Returns the embedding graph for a variant of the decoder: the same variant, else the preferred one."""
    found = find_embeddings(root)
    return next((each.path for each in found if each.name == variant), found[0].path if found else None)


def _variants_of(base: str, root: Path) -> tuple[Variant, ...]:
    found: dict[str, Variant] = {}
    for folder in _folders(root):
        for path in _graphs(folder):
            match = re.fullmatch(re.escape(base) + r"(?:_([A-Za-z0-9]+))?", path.stem)
            if match:
                name = match[1] or "base"
                found.setdefault(name, Variant(name=name, path=path))
    return tuple(sorted(found.values(), key=lambda variant: _rank(variant.name)))


def _rank(name: str) -> tuple[int, str]:
    return (PREFERENCE.index(name) if name in PREFERENCE else len(PREFERENCE), name)


def choose(variants: Sequence[Variant], wanted: str | None, root: Path) -> Variant:
    """Returns the wanted variant, or the first one for None.

    ``wanted`` is the name of a variant, its alias (``fp32`` for ``base``, ``q8`` for ``quantized``) or its file name.

    Raises:
        NotFoundError: There is no such variant; the text lists those that exist.
    """
    if wanted is None:
        return variants[0]
    for variant in variants:
        if wanted in (variant.name, variant.path.name, variant.path.stem):
            return variant
    for variant in variants:
        if _ALIASES.get(wanted) == variant.name:
            return variant
    names = ", ".join(f"{variant.name} ({variant.path.name})" for variant in variants)
    raise NotFoundError(f"{root}: has no variant {wanted!r}; it has {names}")


def only_graph(root: Path, *, reason: str) -> Path:
    """Returns the one graph of a folder: decoder.onnx, model.onnx, or the only .onnx file.

    Raises:
        PackageError: There is none, or several without a usual name.
    """
    files = _graphs(root) or [path for folder in _folders(root) for path in _graphs(folder)]
    for name in ("decoder.onnx", "model.onnx"):
        for path in files:
            if path.name == name:
                return path
    if len(files) == 1:
        return files[0]
    if not files:
        raise PackageError(f"{root}: has no .onnx file, but {reason}. Download the missing file.")
    names = ", ".join(path.name for path in files[:8])
    raise PackageError(f"{root}: has several graphs ({names}) and {reason}. Give the path of one of them.")


def data_files(model: Path) -> tuple[Path, ...]:
    """Returns the files beside a graph that look like its weights: ``model.onnx.data``, ``model.onnx_data_1``, ..."""
    pattern = re.compile(re.escape(model.name) + r"[._]data(_\d+)?")
    try:
        return tuple(sorted(path for path in model.parent.iterdir() if pattern.fullmatch(path.name)))
    except OSError:
        return ()
