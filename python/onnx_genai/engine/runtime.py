"""Finds the ONNX Runtime library that the core loads. The ``onnxruntime`` module itself is never imported."""

from __future__ import annotations

import importlib.util
import os
import re
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx_genai import _core
from onnx_genai.errors import GenAIError, NotFoundError

__all__ = ["OrtLibrary", "find_ort_library"]

LIBRARY_VARIABLE = "ONNX_GENAI_ORT_LIB"
FOLDER_VARIABLE = "ONNX_GENAI_ORT_LIB_DIR"
PREFIX_VARIABLES = {"CONDA_PREFIX": "conda", "VIRTUAL_ENV": "virtual"}
"""Variable with the folder of an active environment -> what kind it is; looked at in this order."""
LOADER_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
SYSTEM_FOLDERS = ("/usr/local/lib", "/opt/homebrew/lib", "/usr/lib64", "/usr/lib")
_NAMED = f"named by {LIBRARY_VARIABLE}"
_NAMES = ("libonnxruntime.so", "libonnxruntime.so.*", "libonnxruntime.dylib", "libonnxruntime.*.dylib")


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
    """Returns the first library of this search.

    1. The file that ``ONNX_GENAI_ORT_LIB`` names; it must be there.
    2. In the folder that ``ONNX_GENAI_ORT_LIB_DIR`` names; it must be there.
    3. In ``lib`` of the active conda environment (``CONDA_PREFIX``), then of the virtual one (``VIRTUAL_ENV``).
    4. In the installed ``onnxruntime`` package.
    5. Where the system looks for libraries: ``LD_LIBRARY_PATH``, ``/usr/local/lib``, ``/usr/lib``, ...

    The one that was found first is used or is an error; the search does not go on behind it.

    Raises:
        NotFoundError: There is none; the text says what to install.
        BackendError: It is too old, or not an ONNX Runtime library; the text says why it was chosen.
    """
    path, reason = _first_library(os.environ)
    path = path.resolve()
    try:
        version, api_version, providers = _core.runtime_info(str(path))
    except GenAIError as error:
        other = "" if reason == _NAMED else f"; {LIBRARY_VARIABLE} names another one"
        raise type(error)(f"{error}; this library was taken because it is {reason}{other}") from error
    return OrtLibrary(path=path, version=version, api_version=api_version, providers=tuple(providers), reason=reason)


def _first_library(environ: Mapping[str, str]) -> tuple[Path, str]:
    """The library and why it was chosen."""
    named = environ.get(LIBRARY_VARIABLE)
    if named:
        return _named_file(named), _NAMED
    folder = environ.get(FOLDER_VARIABLE)
    if folder:
        found = _library_in(Path(folder).expanduser())
        if found is None:
            raise NotFoundError(
                f"{FOLDER_VARIABLE} is {folder!r}, where no libonnxruntime is; unset it or name its folder"
            )
        return found, f"in the folder named by {FOLDER_VARIABLE}"
    for variable, kind in PREFIX_VARIABLES.items():
        prefix = environ.get(variable)
        found = None if not prefix else _library_in(Path(prefix) / "lib")
        if found is not None:
            return found, f"in the lib folder of the active {kind} environment ({variable})"
    package = _package_folders()
    for each in package:
        found = _library_in(each)
        if found is not None:
            return found, "inside the installed onnxruntime package"
    for each in _system_folders(environ):
        found = _library_in(each)
        if found is not None:
            return found, f"in a folder that the system searches for libraries ({each})"
    raise NotFoundError(_none_found(package))


def _named_file(named: str) -> Path:
    path = Path(named).expanduser()
    if path.is_dir():
        raise NotFoundError(
            f"{LIBRARY_VARIABLE} is {named!r}, which is a folder; name the file libonnxruntime in it, or set "
            f"{FOLDER_VARIABLE} to the folder"
        )
    if not path.is_file():
        raise NotFoundError(f"{LIBRARY_VARIABLE} is {named!r}, which is not a file; unset it or name libonnxruntime")
    return path


def _library_in(folder: Path) -> Path | None:
    """The library in a folder; of several versions the newest."""
    for name in _NAMES:
        found = [path for path in folder.glob(name) if path.is_file()]
        if found:
            return max(found, key=_version_in_name)
    return None


def _version_in_name(path: Path) -> tuple[tuple[int, ...], str]:
    """For sorting: by numbers, as 9 stands behind 22 in texts."""
    return tuple(map(int, re.findall("[0-9]+", path.name))), path.name


def _package_folders() -> list[Path]:
    """Where the installed package ``onnxruntime`` has its library; empty if it is not installed."""
    try:
        spec = importlib.util.find_spec("onnxruntime")
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        return []
    return [Path(location) / "capi" for location in spec.submodule_search_locations]


def _system_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    for variable in LOADER_VARIABLES:
        yield from (Path(part) for part in environ.get(variable, "").split(os.pathsep) if part)
    for folder in SYSTEM_FOLDERS:
        multiarch = sysconfig.get_config_var("MULTIARCH")
        if multiarch:
            yield Path(folder) / str(multiarch)
        yield Path(folder)


def _none_found(package: list[Path]) -> str:
    if package:
        return (
            f"the installed onnxruntime package has no libonnxruntime in {', '.join(map(str, package))}, and the "
            f"system has none; reinstall it (pip install --force-reinstall onnxruntime) or set {LIBRARY_VARIABLE}"
        )
    return (
        "ONNX Runtime is not installed: no package 'onnxruntime' was found in this environment, and the system has no "
        f"libonnxruntime. Install it with: pip install onnxruntime (or onnxruntime-gpu for CUDA), or set "
        f"{LIBRARY_VARIABLE}"
    )
