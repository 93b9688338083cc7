"""Finds the ONNX Runtime library that the core loads. The ``onnxruntime`` module itself is never imported."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from onnx_genai import _core
from onnx_genai.errors import NotFoundError

__all__ = ["OrtLibrary", "find_ort_library"]

LIBRARY_VARIABLE = "ONNX_GENAI_ORT_LIB"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtLibrary:
    """The ONNX Runtime shared library in use."""

    path: Path
    version: str
    """As the library itself reports it."""
    api_version: int
    providers: tuple[str, ...]
    """Execution providers in this build."""
    reason: str
    """Why this one was chosen."""


def find_ort_library() -> OrtLibrary:
    """Returns the library named by ``ONNX_GENAI_ORT_LIB``, else the one inside the installed ``onnxruntime`` package.

    Raises:
        NotFoundError: There is none; the text says what to install.
        UnsupportedError: It is too old, or not an ONNX Runtime library.
    """
    named = os.environ.get(LIBRARY_VARIABLE)
    if named:
        path = Path(named)
        reason = f"named by {LIBRARY_VARIABLE}"
        if not path.is_file():
            raise NotFoundError(
                f"{LIBRARY_VARIABLE} is {named!r}, which is not a file; unset it or name libonnxruntime"
            )
    else:
        path = _library_in_package()
        reason = "inside the installed onnxruntime package"
    version, api_version, providers = _core.runtime_info(str(path.resolve()))
    return OrtLibrary(
        path=path.resolve(), version=version, api_version=api_version, providers=tuple(providers), reason=reason
    )


def _library_in_package() -> Path:
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise NotFoundError(
            "ONNX Runtime is not installed: no package 'onnxruntime' was found in this environment. "
            "Install it with: pip install onnxruntime (or onnxruntime-gpu for CUDA)"
        )
    folders = [Path(location) / "capi" for location in spec.submodule_search_locations]
    names = ("libonnxruntime.so.*", "libonnxruntime.so", "libonnxruntime.*.dylib", "libonnxruntime.dylib")
    for folder in folders:
        for name in names:
            for path in sorted(folder.glob(name)):
                return path
    raise NotFoundError(
        f"the installed onnxruntime package has no libonnxruntime in {', '.join(map(str, folders))}; "
        f"reinstall it (pip install --force-reinstall onnxruntime) or set {LIBRARY_VARIABLE}"
    )
