"""Chooses the files of a hub repository that one model needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from onnx_genai.errors import NotFoundError, PackageError, UnsupportedError
from onnx_genai.package import layouts

__all__ = ["ENCODER_FILES", "RepositoryFile", "select_files"]

COMPANIONS = frozenset(
    {
        "LICENSE",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "config.json",
        "generation_config.json",
        "merges.txt",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "vocab.json",
    }
)
"""Small files that a graph may need beside it."""

ENCODER_FILES = (
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
    "[0-9]_*/config.json",
    "[0-9]_*/model.safetensors",
)
"""Patterns of small files that say how an encoder's vectors are made into one, from the root of the repository."""

METADATA = frozenset(
    {"genai_config.json", "inference_metadata.json", "inference_metadata.yaml", "inference_metadata.yml"}
)
"""A folder with one of these is a whole package."""

OTHER_WEIGHTS = (".bin", ".gguf", ".h5", ".msgpack", ".pt", ".pth", ".safetensors")
OTHER_MODELS = ("vision_encoder", "audio_encoder", "embed_tokens", "encoder_model")
VARIANT_NAMES = {"fp32": "base", "default": "base", "q8": "quantized"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryFile:
    """A file that the hub lists."""

    name: str
    """Path in the repository, with slashes."""
    size: int
    """Bytes; 0 when the hub does not say."""


def select_files(repo: str, files: Sequence[RepositoryFile], variant: str | None) -> tuple[list[RepositoryFile], str]:
    """The files to fetch, and the folder of the repository that is then the package (``""``: its root).

    Args:
        repo: For messages.
        files: All files of the repository.
        variant: See :func:`onnx_genai.package.hub.pull`.

    Raises:
        NotFoundError: There is no ONNX model, or no such variant; the text lists what there is.
        UnsupportedError: The model is made of several graphs.
        PackageError: A file name leads out of the repository.
    """
    for file in files:
        path = PurePosixPath(file.name)
        if path.is_absolute() or ".." in path.parts or "\\" in file.name:
            raise PackageError(f"{repo}: lists the file name {file.name!r}, which leads out of it")
    packages = sorted({_folder(file.name) for file in files if PurePosixPath(file.name).name in METADATA})
    if packages:
        folder = _choose_package(repo, packages, variant)
        return [file for file in files if _belongs(file.name, folder, packages)], folder
    graphs = _choose_graphs(repo, files, variant)
    beside = re.compile("|".join(re.escape(graph) + r"[._]data(_\d+)?" for graph in graphs))
    places = {"", *map(_folder, graphs)}
    chosen = [
        file
        for file in files
        if file.name in graphs
        or beside.fullmatch(file.name)
        or (_folder(file.name) in places and PurePosixPath(file.name).name in COMPANIONS)
        or _is_template(file.name, places)
        or any(fnmatchcase(file.name, pattern) for pattern in ENCODER_FILES)
    ]
    return chosen, ""


def _folder(name: str) -> str:
    parent = str(PurePosixPath(name).parent)
    return "" if parent == "." else parent


def _is_template(name: str, places: Collection[str]) -> bool:
    path = PurePosixPath(name)
    return path.match("additional_chat_templates/*.jinja") and _folder(_folder(name)) in places


def _belongs(name: str, folder: str, packages: Sequence[str]) -> bool:
    """Everything in the folder of a package, except other packages below it and weights in other formats."""
    path = PurePosixPath(name)
    if folder and not path.is_relative_to(folder):
        return False
    if any(other != folder and _folder(other + "/x") and path.is_relative_to(other) for other in packages if other):
        return False
    if path.suffix in OTHER_WEIGHTS or path.name in (".gitattributes", "README.md"):
        return False
    if _folder(name) == folder or bool(folder) or _is_template(name, {folder}):
        return True
    return path.suffix == ".onnx" or ".onnx" in path.name


def _choose_package(repo: str, packages: Sequence[str], variant: str | None) -> str:
    """A folder with package metadata: the wanted one, the root, or the one for a CPU."""
    if variant is not None:
        exact = [folder for folder in packages if variant in (folder, PurePosixPath(folder).name)]
        near = exact or [folder for folder in packages if variant.lower() in folder.lower()]
        if len(near) == 1:
            return near[0]
        shown = ", ".join(folder or "(root)" for folder in packages)
        raise NotFoundError(f"{repo}: variant {variant!r} fits {len(near)} of its folders; it has {shown}")
    if "" in packages or len(packages) == 1:
        return packages[0]
    return min(packages, key=lambda folder: ("cpu" not in folder.lower(), "int4" not in folder.lower(), folder))


def _choose_graphs(repo: str, files: Sequence[RepositoryFile], variant: str | None) -> list[str]:
    """The graph of a language model; with it the one that makes its embeddings, or its encoder, if it needs those."""
    graphs = [file.name for file in files if file.name.endswith(".onnx")]
    stems = {PurePosixPath(name).stem for name in graphs}
    embeddings = _variants_of(layouts.EMBEDDING, graphs)
    decoders = next(filter(None, (_variants_of(base, graphs) for base in layouts.BASES)), {})
    joins = bool(embeddings and decoders)
    before = embeddings
    allowed: tuple[str, ...] = layouts.BESIDE_TEXT
    # Speech and images come with a preprocessor; an encoder without one reads text.
    is_text = not any(PurePosixPath(file.name).name == "preprocessor_config.json" for file in files)
    if decoders and not embeddings and is_text and (encoders := _variants_of(layouts.ENCODER, graphs)):
        joins, before, allowed = True, encoders, (layouts.ENCODER,)
    others = sorted(stem for stem in stems if stem.startswith(OTHER_MODELS))
    if others and not (joins and all(stem.startswith(allowed) for stem in others)):
        raise UnsupportedError(f"{repo}: is made of several graphs ({', '.join(others[:6])}), which is not read yet")
    if decoders:
        graph = _choose_variant(repo, decoders, variant)
        if not joins:
            return [graph]
        name = next(name for name, file in decoders.items() if file == graph)
        return [graph, before.get(name) or _choose_variant(repo, before, None)]
    if len(graphs) == 1 and variant is None:
        return graphs
    if graphs:
        raise NotFoundError(f"{repo}: has the graphs {', '.join(sorted(graphs)[:8])}, but none with a usual name")
    kinds = sorted({PurePosixPath(file.name).suffix for file in files} & set(OTHER_WEIGHTS))
    hint = " (download the file and use: onnx-genai import FILE.gguf OUT)" if ".gguf" in kinds else ""
    raise NotFoundError(f"{repo}: has no ONNX model; its weights are {', '.join(kinds) or 'elsewhere'}{hint}")


def _variants_of(base: str, graphs: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name in sorted(graphs):
        match = re.fullmatch(re.escape(base) + r"(?:_([A-Za-z0-9]+))?", PurePosixPath(name).stem)
        if match and _folder(name) in ("", "onnx"):
            found.setdefault(match[1] or "base", name)
    return found


def _choose_variant(repo: str, found: dict[str, str], variant: str | None) -> str:
    if variant is None:
        order = layouts.PREFERENCE
        best = min(found, key=lambda name: (order.index(name) if name in order else len(order), name))
        return found[best]
    for wanted in (variant, VARIANT_NAMES.get(variant)):
        if wanted in found:
            return found[wanted]
    for name in found.values():
        if variant in (name, PurePosixPath(name).name, PurePosixPath(name).stem):
            return name
    raise NotFoundError(f"{repo}: has no variant {variant!r}; it has {', '.join(sorted(found))}")
