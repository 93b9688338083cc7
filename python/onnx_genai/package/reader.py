"""Opens a model package of any known format: :func:`read`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from onnx_genai.errors import NotFoundError, PackageError, UnsupportedError
from onnx_genai.package import composite, genai_config, huggingface, inference_metadata, layouts
from onnx_genai.package.composite import EmbeddingPart
from onnx_genai.package.files import PackageFolder, check_payload, require_file
from onnx_genai.package.huggingface import HfFiles, find_token_id, find_usual_ends
from onnx_genai.package.model import (
    ContextLimit,
    EmbeddingGraph,
    GenerationDefaults,
    KvHints,
    ModelPackage,
    PackageFormat,
    SourceEncoder,
    Variant,
)

__all__ = ["read"]


def read(path: Path | str, *, variant: str | None = None) -> ModelPackage:
    """Reads the package in a folder, or the package that a file belongs to.

    Args:
        path: A folder, an .onnx file (which chooses that graph), or any other file of a package folder.
        variant: Which graph to take where a folder has several: ``base``, ``q4``, ``fp16``, ... or a file name. None
            takes the best one for a CPU.

    Raises:
        NotFoundError: The path or the variant does not exist.
        PackageError: A file is missing, broken or contradicts itself; names file, key and what was expected.
        UnsupportedError: The package is of a kind that cannot run yet; names the kind.
    """
    root, graph, metadata = _locate(Path(path))
    if graph is not None and variant is not None:
        raise NotFoundError(f"{graph}: a graph was named and variant={variant!r} too; give only one of them")
    folder = PackageFolder(root)
    _refuse_model_package(folder)
    metadata = metadata or folder.find((*inference_metadata.FILE_NAMES, genai_config.FILE_NAME))
    if metadata is not None and metadata.name == genai_config.FILE_NAME:
        package = _from_genai(folder, metadata, graph)
    elif metadata is not None:
        package = _from_metadata(folder, metadata, graph)
    else:
        package = _from_layout(folder, graph, variant)
    if metadata is not None and variant is not None:
        layouts.choose(package.variants, variant, root)
    folder.check_inside(package.model_path, origin=package.model_path.name)
    require_file(package.model_path, origin=str(metadata or root), root=root)
    if package.tokenizer_path is not None:
        folder.check_inside(package.tokenizer_path, origin="tokenizer.json")
        check_payload(package.tokenizer_path)
    return replace(package, data_files=layouts.data_files(package.model_path))


def _locate(path: Path) -> tuple[Path, Path | None, Path | None]:
    """Returns the package folder, the graph if the path names one, and the metadata file if the path names one."""
    try:
        path = path.expanduser().absolute()
        is_file, is_folder = path.is_file(), path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, no home folder, a null byte
        raise NotFoundError(f"{path!r} is no usable path ({error})") from error
    if is_folder:
        return _package_root(path), None, None
    if not is_file:
        raise NotFoundError(f"{path}: no such file or folder. Check the path, or pull the model first.")
    root = path.parent
    if path.suffix == ".onnx":
        return _package_root(root), path, None
    if path.suffix == ".gguf":
        raise PackageError(
            f"{path}: is a GGUF file, not an ONNX package. Convert it with: onnx-genai import {path} OUT"
        )
    known = path.name in inference_metadata.FILE_NAMES or path.name == genai_config.FILE_NAME
    return root, None, path if known else None


def _package_root(folder: Path) -> Path:
    """The folder itself, or its parent for the subfolder that some layouts keep their graphs in."""
    parent = folder.parent
    in_subfolder = folder.name == "onnx" and any(
        (parent / name).is_file() for name in ("config.json", "tokenizer.json")
    )
    return parent if in_subfolder else folder


def _refuse_model_package(folder: PackageFolder) -> None:
    """Refuses ONNX Runtime model packages; other manifest.json files are none of our business."""
    root = folder.root
    suffixed = root.suffix in (".ortpackage", ".nxpackage")
    path = folder.find(["manifest.json"])
    if path is None and not suffixed:
        return
    manifest = folder.json_file(path) if path is not None else {}
    if suffixed or ("schema_version" in manifest and "components" in manifest):
        raise UnsupportedError(
            f"{root}: this is an ONNX Runtime model package (manifest.json with components), which this version cannot "
            "open as a whole. Give the folder of one of its variants instead."
        )


def _from_metadata(folder: PackageFolder, path: Path, graph: Path | None) -> ModelPackage:
    meta = inference_metadata.load(folder, path)
    if graph is None and meta.model_file is not None:
        graph = folder.resolve(meta.model_file, origin=f"{path}: filename")
        require_file(graph, origin=f"{path}: filename", root=folder.root)
    if graph is None:
        graph = layouts.only_graph(folder.root, reason=f"{path.name} names none")
    extra = [folder.resolve(meta.tokenizer_file, origin=f"{path}: tokenizer")] if meta.tokenizer_file else []
    package = _assemble(
        folder,
        kind="inference_metadata",
        variants=(Variant(name="base", path=graph),),
        tokenizers=[*extra, folder.root / "tokenizer.json"],
        native_eos=(meta.eos_token_ids, f"{path.name} tokens.eos_token_id"),
        native_limits=meta.context_limits,
        native_generation=meta.generation,
        warnings=meta.warnings,
    )
    return replace(
        package,
        embedding=_embedding(folder, meta.embedding, origin=f"{path}: filename"),
        io=meta.io,
        kv=_merge_hints(meta.kv, package.kv),
        vocab_size=meta.vocab_size or package.vocab_size,
        vocab_source=f"{path.name} model.vocab_size" if meta.vocab_size else package.vocab_source,
        bos_token_id=package.bos_token_id if meta.bos_token_id is None else meta.bos_token_id,
        pad_token_id=package.pad_token_id if meta.pad_token_id is None else meta.pad_token_id,
        special_tokens={**package.special_tokens, **meta.special_tokens},
        required_capabilities=meta.required_capabilities,
        speculator_source=meta.speculator_source,
    )


def _from_genai(folder: PackageFolder, path: Path, graph: Path | None) -> ModelPackage:
    config = genai_config.load(folder, path)
    if graph is None and config.model_file is not None:
        graph = folder.resolve(config.model_file, origin=f"{path}: model.decoder.filename")
        require_file(graph, origin=f"{path}: model.decoder.filename", root=folder.root)
    if graph is None:
        graph = layouts.only_graph(folder.root, reason=f"{path.name} has no model.decoder.filename")
    embedding = _embedding(folder, config.embedding, origin=f"{path}: model.embedding.filename")
    encoder = config.encoder
    if encoder is not None:
        origin = f"{path}: model.encoder.filename"
        encoder = replace(encoder, path=folder.resolve(str(encoder.path), origin=origin))
        require_file(encoder.path, origin=origin, root=folder.root)
    tokenizer_root = folder.root
    if config.tokenizer_dir not in (None, "", "."):
        tokenizer_root = folder.resolve(config.tokenizer_dir or "", origin=f"{path}: model.tokenizer_dir")
    package = _assemble(
        folder,
        kind="genai_config",
        variants=(Variant(name="base", path=graph),),
        tokenizers=[tokenizer_root / "tokenizer.json"],
        native_eos=(config.eos_token_ids, f"{path.name} model.eos_token_id"),
        native_limits=config.context_limits,
        native_generation=config.generation,
        warnings=config.warnings,
        is_encoder_decoder=encoder is not None,
    )
    return replace(
        package,
        model_type=config.model_type or package.model_type,
        embedding=embedding,
        encoder=encoder,
        io=config.io,
        kv=_merge_hints(config.kv, package.kv),
        vocab_size=config.vocab_size or package.vocab_size,
        vocab_source=f"{path.name} model.vocab_size" if config.vocab_size else package.vocab_source,
        bos_token_id=package.bos_token_id if config.bos_token_id is None else config.bos_token_id,
        pad_token_id=package.pad_token_id if config.pad_token_id is None else config.pad_token_id,
        session_options=config.session_options,
        speculator_source=config.speculator_source,
    )


def _embedding(folder: PackageFolder, part: EmbeddingPart | None, *, origin: str) -> EmbeddingGraph | None:
    if part is None:
        return None
    path = folder.resolve(part.file, origin=origin)
    require_file(path, origin=origin, root=folder.root)
    return EmbeddingGraph(path=path, input_ids=part.input_ids, output=part.output, decoder_input=part.decoder_input)


def _from_layout(folder: PackageFolder, graph: Path | None, wanted: str | None) -> ModelPackage:
    root = folder.root
    kind: PackageFormat = "optimum" if (root / "config.json").is_file() else "onnx"
    if graph is not None:
        variants: tuple[Variant, ...] = tuple(v for v in _variants_or_none(root) if v.path != graph)
        variants = (Variant(name=_variant_name(root, graph), path=graph), *variants)
    else:
        layouts.refuse_composite(root)
        variants = layouts.find_seq2seq_variants(root) or layouts.find_variants(root)
        if not variants:
            variants = (Variant(name="base", path=_single_graph(root)),)
        chosen = layouts.choose(variants, wanted, root)
        variants = (chosen, *(variant for variant in variants if variant is not chosen))
    places = [root / "tokenizer.json", variants[0].path.parent / "tokenizer.json"]
    part = layouts.find_embedding(root, variants[0].name)
    is_seq2seq = any(variant.path == variants[0].path for variant in layouts.find_seq2seq_variants(root))
    encoder = layouts.find_encoder(root, variants[0].name) if is_seq2seq else None
    package = _assemble(
        folder,
        kind=kind,
        variants=variants,
        tokenizers=list(dict.fromkeys(places)),
        native_eos=((), ""),
        native_limits=(),
        native_generation=None,
        warnings=(),
        is_encoder_decoder=encoder is not None,
    )
    if encoder is not None:
        package = replace(package, encoder=_source_encoder(folder, encoder, package.bos_token_id))
    return package if part is None else replace(package, embedding=EmbeddingGraph(path=part))


def _variants_or_none(root: Path) -> tuple[Variant, ...]:
    try:
        return layouts.find_variants(root)
    except UnsupportedError:  # the caller named a graph of the pair
        return ()


def _variant_name(root: Path, graph: Path) -> str:
    return next((variant.name for variant in _variants_or_none(root) if variant.path == graph), graph.stem)


def _single_graph(root: Path) -> Path:
    """Returns the only graph; says what the folder seems to be when it has none."""
    if any(root.glob("*.onnx")) or any((root / "onnx").glob("*.onnx")):
        return layouts.only_graph(root, reason="no package file says which is the model")
    hints = (
        ("*.safetensors", "It holds a PyTorch checkpoint: export it first, for example with optimum-cli export onnx."),
        ("*.gguf", "It holds a GGUF file: convert it with onnx-genai import FILE.gguf OUT."),
        ("*/*.onnx", "Its graphs are in subfolders: give the path of one of them."),
    )
    hint = next((text for pattern, text in hints if any(root.glob(pattern))), "Check the path.")
    names = ", ".join((*inference_metadata.FILE_NAMES, genai_config.FILE_NAME, "model.onnx", "onnx/model.onnx"))
    raise PackageError(f"{root}: is no model package (looked for {names}). {hint}")


def _assemble(
    folder: PackageFolder,
    *,
    kind: PackageFormat,
    variants: tuple[Variant, ...],
    tokenizers: list[Path],
    native_eos: tuple[tuple[int, ...], str],
    native_limits: tuple[ContextLimit, ...],
    native_generation: GenerationDefaults | None,
    warnings: tuple[str, ...],
    is_encoder_decoder: bool = False,
) -> ModelPackage:
    """Joins what the package file says with the Hugging Face files beside it (and beside the tokenizer).

    ``is_encoder_decoder``: the caller adds the encoder.
    """
    tokenizer = next((path for path in tokenizers if path.is_file()), None)
    if tokenizer is not None:
        check_payload(tokenizer)
    home = folder if tokenizer is None or tokenizer.parent == folder.root else PackageFolder(tokenizer.parent)
    files = huggingface.load(folder)
    texts = files if home is folder else huggingface.load(home)
    if files.is_encoder_decoder and not is_encoder_decoder:
        raise composite.unsupported(
            folder.root, composite.ENCODER_DECODER, "config.json says is_encoder_decoder", composite.FIX_SEQ2SEQ
        )
    if is_encoder_decoder and files.forced_bos_token_id is not None:
        warnings = (*warnings, _forced_bos_warning(files))
    vocab_size = files.vocab_size
    eos, source = _end_tokens(home, tokenizer, native_eos, files, texts)
    return ModelPackage(
        format=kind,
        root=folder.root,
        model_path=variants[0].path,
        variant=variants[0].name,
        variants=variants,
        tokenizer_path=tokenizer,
        tokenizer_searched=tuple(tokenizers),
        model_type=files.model_type,
        kv=files.kv,
        context_limits=(*native_limits, *files.context_limits),
        vocab_size=vocab_size,
        vocab_source="config.json vocab_size" if vocab_size else "",
        eos_token_ids=eos,
        eos_source=source,
        bos_token_id=files.bos_token_id,
        pad_token_id=files.pad_token_id,
        special_tokens=texts.special_tokens,
        chat_template=texts.chat_template,
        generation=native_generation or files.generation or GenerationDefaults(),
        warnings=tuple(dict.fromkeys((*warnings, *files.warnings, *texts.warnings))),
    )


def _forced_bos_warning(files: HfFiles) -> str:
    token = files.forced_bos_token_id
    return (
        f"{files.forced_bos_source} is {token}, and is not applied; ask for forced_tokens={{0: {token}}} where an "
        "answer shall begin with it"
    )


def _source_encoder(folder: PackageFolder, path: Path, bos: int | None) -> SourceEncoder:
    """Of a package that says nothing of its ports; the tokenizer of such packages ends a source itself."""
    start = huggingface.load(folder).decoder_start_token_id
    start = bos if start is None else start
    if start is None:
        raise PackageError(
            f"{folder.root}: is an encoder-decoder pipeline ({path.name}), but neither config.json nor "
            "generation_config.json has decoder_start_token_id. Copy config.json of the original model into the folder."
        )
    folder.check_inside(path, origin=path.name)
    require_file(path, origin=str(folder.root), root=folder.root)
    return SourceEncoder(path=path, start_token_id=start)


def _end_tokens(
    home: PackageFolder,
    tokenizer: Path | None,
    native: tuple[tuple[int, ...], str],
    files: HfFiles,
    texts: HfFiles,
) -> tuple[tuple[int, ...], str]:
    """The end-of-sequence ids: those of the package file and generation_config (else config), with the tokenizer's.

    config.json alone is overridden by the package file: exporters correct it there. Without any of them, the usual
    end tokens are looked up in the vocabulary.
    """
    found: dict[int, None] = dict.fromkeys(native[0])
    sources = [native[1]] if native[0] else []
    if files.eos_token_ids and (not found or files.eos_source.startswith("generation_config")):
        found.update(dict.fromkeys(files.eos_token_ids))
        sources.append(files.eos_source)
    text = texts.special_tokens.get("eos_token")
    token = find_token_id(home, tokenizer, text) if text is not None else None
    if token is not None:
        found[token] = None
        sources.append("tokenizer_config.json eos_token")
    if not found:
        found.update(dict.fromkeys(find_usual_ends(home, tokenizer)))
        sources.extend(["tokenizer.json vocabulary"] if found else [])
    return tuple(found), ", ".join(sources)


def _merge_hints(first: KvHints, second: KvHints) -> KvHints:
    """Fields of ``first``, filled up from ``second`` where it says nothing."""
    return KvHints(
        num_layers=first.num_layers if first.num_layers is not None else second.num_layers,
        num_attention_heads=first.num_attention_heads or second.num_attention_heads,
        num_kv_heads=first.num_kv_heads or second.num_kv_heads,
        head_dim=first.head_dim or second.head_dim,
        dtype=first.dtype or second.dtype,
        shared_buffer=first.shared_buffer if first.shared_buffer is not None else second.shared_buffer,
        sliding_window=first.sliding_window or second.sliding_window,
        sink_tokens=first.sink_tokens or second.sink_tokens,
        unit_batch_seqlens=first.unit_batch_seqlens or second.unit_batch_seqlens,
        source=first.source or second.source,
    )
