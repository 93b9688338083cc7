"""Makes a package folder of a GGUF file."""

from __future__ import annotations

import errno
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from onnx_genai.convert.architectures import ModelSpec, read_model_spec
from onnx_genai.convert.gguf_file import GgufFile
from onnx_genai.convert.graph import build_model
from onnx_genai.convert.package_files import write_text_files
from onnx_genai.convert.tokenizer import read_vocabulary
from onnx_genai.convert.weights import MIN_BLOCK, Progress, TensorReport, WeightStore
from onnx_genai.errors import InvalidArgumentError, PackageError, ResourceExhaustedError, UnsupportedError

__all__ = ["DTYPES", "ImportReport", "check_out", "import_gguf", "new_folder"]

DTYPES = ("auto", "fp32", "fp16", "int4", "int8")
ACCURACY_LEVELS = (0, 1, 4)
MAX_BLOCK_SIZE = 256
WITHOUT_WEIGHTS = ("rope_freqs.", "rope_factors_")
"""Tensors that go into the rotary tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportReport:
    """What :func:`import_gguf` did. ``str()`` gives a few lines for people."""

    source: Path
    path: Path
    architecture: str
    name: str
    layers: int
    context: int
    """Limit of prompt and output together, tokens."""
    tensors: tuple[TensorReport, ...]
    """In the order of the graph; a tensor that is used twice is there once."""
    warnings: tuple[str, ...]
    source_bytes: int
    package_bytes: int
    seconds: float

    @property
    def max_relative_error(self) -> float:
        """Of the worst tensor."""
        return max((tensor.relative_error for tensor in self.tensors), default=0.0)

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.architecture}, {self.layers} layers, context {self.context}"]
        groups: dict[tuple[str, str, bool], list[TensorReport]] = {}
        for tensor in self.tensors:
            groups.setdefault((tensor.source_type, tensor.target, tensor.carried), []).append(tensor)
        for (source, target, carried), members in groups.items():
            worst = max(member.relative_error for member in members)
            how = "carried over" if carried else "rounded anew" if worst else "kept"
            error = f"relative error at most {worst:.2g}" if worst else "exact"
            lines.append(f"{len(members):5d} x {source} -> {target}: {how}, {error}")
        lines += [f"warning: {warning}" for warning in self.warnings]
        sizes = f"{self.source_bytes / 1e6:.1f} MB -> {self.package_bytes / 1e6:.1f} MB"
        lines.append(f"{sizes} in {self.seconds:.1f} s, in {self.path}")
        return "\n".join(lines) + "\n"


def import_gguf(
    source: Path | str,
    out: Path | str,
    *,
    bits: int | None = None,
    dtype: str | None = None,
    block_size: int = 32,
    max_context: int | None = None,
    accuracy_level: int = 4,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> ImportReport:
    """Makes a package that this and other ONNX Runtime front ends can load; needs no torch and no network.

    The folder appears whole or not at all: it is built beside ``out`` under another name and then renamed.

    Args:
        source: A GGUF file, version 2 or 3.
        out: Folder to make; it may exist if it is empty.
        bits: 4 or 8: the same as ``dtype`` ``int4`` or ``int8``; None leaves it to ``dtype``.
        dtype: ``auto`` (None) takes over quantised tensors as they are and keeps floats as float32; ``int4`` and
            ``int8`` bring every matrix to that size, still taking over what fits; ``fp32`` decodes all weights
            exactly; ``fp16`` also makes the cache and the logits float16.
        block_size: Weights that share a scale where a matrix is rounded anew: 16, 32, 64, 128 or 256.
        max_context: Upper bound of the context, which sets the size of the rotary tables; None: that of the model.
        accuracy_level: Of quantised products: 4 lets the runtime round activations to 8 bits a block (fastest), 1
            computes in float32, 0 leaves it to the runtime.
        overwrite: Replace a folder that is not empty.
        progress: Called as ``progress(tensor, done_bytes, total_bytes)``.

    Returns:
        What became of each tensor, with measured errors.

    Raises:
        NotFoundError: There is no such file.
        PackageError: The file is broken, truncated or not GGUF, or ``out`` cannot be written.
        UnsupportedError: An architecture, option or element type that is not known.
        InvalidArgumentError: A parameter out of range, or ``out`` is not empty.
        ResourceExhaustedError: The disk is full.
    """
    source, out = Path(source), Path(out)
    started = time.perf_counter()
    wanted = _check_arguments(bits, dtype, block_size, accuracy_level)
    with GgufFile(source) as file:
        spec = read_model_spec(file, max_context)
        vocabulary = read_vocabulary(file, spec.vocab)
        check_out(out, overwrite)
        with new_folder(out, overwrite) as folder:
            with WeightStore(file, folder, dtype=wanted, block=block_size, progress=progress) as store:
                model = build_model(spec, store, accuracy_level)
                _check_all_used(file, spec, store.reports)
            ir.save(model, folder / "model.onnx")
            write_text_files(folder, file, spec, vocabulary, _main_format(store.reports))
            package_bytes = sum(path.stat().st_size for path in folder.iterdir())
        return ImportReport(
            source=source,
            path=out,
            architecture=spec.architecture,
            name=spec.name,
            layers=len(spec.layers),
            context=spec.context,
            tensors=tuple(store.reports),
            warnings=(*spec.warnings, *vocabulary.warnings),
            source_bytes=file.size_bytes,
            package_bytes=package_bytes,
            seconds=time.perf_counter() - started,
        )


def _check_arguments(bits: int | None, dtype: str | None, block_size: int, accuracy_level: int) -> str | None:
    """The wanted format, or None for taking over what there is."""
    if dtype is not None and dtype not in DTYPES:
        raise InvalidArgumentError(f"dtype is {dtype!r}; allowed: {', '.join(DTYPES)}")
    if bits is not None and bits not in (4, 8):
        raise InvalidArgumentError(f"bits is {bits!r}; allowed: 4 or 8")
    wanted = None if dtype == "auto" else dtype
    if bits is not None:
        if dtype not in (None, "auto", f"int{bits}"):
            raise InvalidArgumentError(f"bits is {bits} but dtype is {dtype!r}; give only one of them")
        wanted = f"int{bits}"
    if not MIN_BLOCK <= block_size <= MAX_BLOCK_SIZE or block_size & (block_size - 1):
        raise InvalidArgumentError(
            f"block_size is {block_size}; allowed: a power of two in {MIN_BLOCK}..{MAX_BLOCK_SIZE}"
        )
    if accuracy_level not in ACCURACY_LEVELS:
        raise InvalidArgumentError(f"accuracy_level is {accuracy_level}; allowed: 0, 1 or 4")
    return wanted


def check_out(out: Path, overwrite: bool) -> None:
    """Raises InvalidArgumentError unless a folder can be made at ``out``."""
    if not out.exists():
        return
    if not out.is_dir():
        raise InvalidArgumentError(f"{out} is a file; give a folder to make")
    if not overwrite and any(out.iterdir()):
        raise InvalidArgumentError(f"{out} is not empty; give a new folder, or overwrite=True (--overwrite)")


@contextmanager
def new_folder(out: Path, overwrite: bool) -> Iterator[Path]:
    """A folder beside ``out`` that takes its place when the block ends well and is removed when it does not."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".partial", dir=out.parent))
    except OSError as error:
        raise PackageError(f"{out}: cannot be made: {error.strerror or error}") from error
    try:
        yield partial
        partial.chmod(0o755)
        _put_in_place(partial, out, overwrite)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            free = shutil.disk_usage(out.parent).free
            raise ResourceExhaustedError(
                f"{out}: the disk is full ({free} bytes are free); make room or choose another folder"
            ) from error
        raise PackageError(f"{error.filename or out}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _put_in_place(partial: Path, out: Path, overwrite: bool) -> None:
    if not out.exists():
        partial.rename(out)
        return
    if not overwrite:
        out.rmdir()  # empty; fails if something was put in since
        partial.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
    out.rename(old / out.name)
    partial.rename(out)
    shutil.rmtree(old, ignore_errors=True)


def _main_format(reports: list[TensorReport]) -> str:
    """The format that most weights have: ``int4``, ``float32``, ..."""
    weights: Counter[str] = Counter()
    for report in reports:
        size = 1
        for length in report.shape:
            size *= length
        weights[report.target.split()[0]] += size
    return weights.most_common(1)[0][0]


def _check_all_used(file: GgufFile, spec: ModelSpec, reports: list[TensorReport]) -> None:
    """A tensor without a place in the graph would silently change what the model says."""
    used = {report.name for report in reports}
    rest = [
        name
        for name in file.tensors
        if name not in used and not name.startswith(WITHOUT_WEIGHTS) and "attn_rot_embd" not in name
    ]
    if rest:
        raise UnsupportedError(
            f"{file.path}: {len(rest)} tensors have no place in a {spec.architecture} model as it is known here: "
            f"{', '.join(rest[:4])}"
        )
