"""Execution providers by name: the grammar of ``ep``, and which of those that were asked for can be used here.

    ep        entry{,entry}                   best first; what none of them takes runs on the CPU
    entry     cpu | NAME | metal | plugin | plugin:LIBRARY{|attribute}
    attribute name=NAME | device=CPU | device=GPU | device=NPU | opt.KEY=VALUE

``NAME`` is a provider inside ONNX Runtime (``cuda``, ``webgpu``, ``coreml``, ``xnnpack``, ...), or one in an installed
Python package ``onnxruntime-NAME`` or ``onnxruntime-ep-NAME``. ``plugin`` and ``metal`` take their library from the
environment.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from onnx_genai import _core
from onnx_genai.engine.runtime import OrtLibrary
from onnx_genai.errors import BackendError, GenAIError, InvalidArgumentError, NotFoundError, UnsupportedError

__all__ = [
    "ChosenProviders",
    "Provider",
    "choose_providers",
    "load_with",
    "parse_providers",
    "usable_providers",
    "warn",
]

T = TypeVar("T")

PLUGIN_LIBRARY = "ONNX_GENAI_EP_LIBRARY"
PLUGIN_NAME = "ONNX_GENAI_EP_NAME"
PLUGIN_DEVICE = "ONNX_GENAI_EP_DEVICE"
PLUGIN_OPTIONS = "ONNX_GENAI_EP_OPTIONS"
METAL_LIBRARIES = ("ONNX_GENAI_METAL_EP_LIB", "ONNX_GENAI_MLX_EP_LIBRARY")
DEVICES = ("CPU", "GPU", "NPU")
_PREFIX = "plugin:"
_SUFFIX = "executionprovider"
_REASON_CHARACTERS = 100

# How ONNX Runtime writes the names; others are taken as they are.
_NAMES = {
    "cuda": "CUDA",
    "coreml": "CoreML",
    "core-ml": "CoreML",
    "core_ml": "CoreML",
    "dml": "DML",
    "migraphx": "MIGraphX",
    "openvino": "OpenVINO",
    "qnn": "QNN",
    "rocm": "ROCM",
    "tensorrt": "TensorRT",
    "vitisai": "VitisAI",
    "webgpu": "WebGPU",
    "web-gpu": "WebGPU",
    "web_gpu": "WebGPU",
    "xnnpack": "XNNPACK",
}

_log = logging.getLogger("onnx_genai")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """One entry of the list."""

    entry: str
    """As it was written."""
    name: str = ""
    """ONNX Runtime's name; a plugin is registered as it, empty for the name of its file."""
    plugin_path: Path | None = None
    """Of a plugin library."""
    device: str = ""
    """Of a plugin: CPU, GPU or NPU; empty for all."""
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def on_cpu(self) -> bool:
        """It certainly computes in host memory."""
        return self.device == "CPU"

    def to_core(self) -> _core.ProviderOption:
        return _core.ProviderOption(
            name=self.name,
            plugin_path="" if self.plugin_path is None else str(self.plugin_path),
            device=self.device,
            options=list(self.options.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenProviders:
    """What a model is loaded with."""

    providers: tuple[Provider, ...]
    """Empty is the CPU alone."""
    warnings: tuple[str, ...] = ()
    """One short line for each entry that cannot be used."""

    @property
    def on_cpu(self) -> bool:
        """All of them compute in host memory."""
        return all(provider.on_cpu for provider in self.providers)

    @property
    def effective(self) -> str:
        """Names, best first; ``cpu`` takes what is left."""
        return ",".join([*(provider.name for provider in self.providers), "cpu"])


def parse_providers(
    text: str, options: Mapping[str, str] | None = None, environ: Mapping[str, str] | None = None
) -> tuple[Provider, ...]:
    """The providers of a list, without ``cpu``, which is always the last; an empty list is the CPU alone.

    Args:
        text: The list, in the grammar of this module. Blanks around entries and empty entries do not matter.
        options: Further options of the first provider.
        environ: Where ``plugin`` and ``metal`` find their library; None is the environment of the process.

    Raises:
        InvalidArgumentError: An entry cannot be understood, or options are given for the CPU.
    """
    environ = os.environ if environ is None else environ
    found: list[Provider] = []
    for entry in (part.strip() for part in text.split(",")):
        name = entry.lower().removesuffix(_SUFFIX)
        if not entry:
            continue
        if name == "cpu":
            break  # it takes everything, so nothing can follow
        if name.startswith(_PREFIX):
            found.append(_inline_plugin(entry))
        elif name in ("plugin", "metal"):
            found.append(_named_plugin(name, environ))
        else:
            own = entry[: len(name)]
            found.append(
                Provider(entry=entry, name=_NAMES.get(name, own), options=_pairs(environ.get(PLUGIN_OPTIONS, "")))
            )
    if options and not found:
        raise InvalidArgumentError(f"ep_options is {dict(options)}; the provider cpu takes none")
    if options:
        found[0] = replace(found[0], options={**found[0].options, **options})
    return tuple(found)


def choose_providers(providers: tuple[Provider, ...], library: OrtLibrary, *, strict: bool) -> ChosenProviders:
    """Those that can be used with this ONNX Runtime; ``strict`` fails at the first that cannot.

    Raises:
        NotFoundError, UnsupportedError: ``strict``, and one cannot be used; the text says why.
    """
    chosen: list[Provider] = []
    warnings: list[str] = []
    for provider in providers:
        try:
            chosen.append(_checked(provider, library))
        except (NotFoundError, UnsupportedError) as error:
            if strict:
                raise
            text = reason(error)
            head = "" if text.startswith("execution provider") else f"execution provider {_short(provider.entry)}: "
            warnings.append(f"{head}{text}")
    result = ChosenProviders(providers=tuple(chosen))
    return replace(result, warnings=tuple(f"{text}; running on {result.effective}" for text in warnings))


def warn(text: str) -> None:
    """Tells the user of the library; the command line has a handler that prints it."""
    _log.warning("%s", text)


def usable_providers(providers: tuple[Provider, ...], library: OrtLibrary, *, strict: bool) -> ChosenProviders:
    """:func:`choose_providers`, which warns of each that falls away."""
    chosen = choose_providers(providers, library, strict=strict)
    for text in chosen.warnings:
        warn(text)
    return chosen


def load_with(
    chosen: ChosenProviders, load: Callable[[ChosenProviders], T], *, strict: bool
) -> tuple[T, ChosenProviders]:
    """Loads a model with the providers, and with the CPU alone, after a warning, if they cannot load it.

    Args:
        chosen: Those that can be used.
        load: Loads the model with what is chosen, perhaps twice.
        strict: The first attempt is the only one.

    Returns:
        What ``load`` gave, and with which providers.

    Raises:
        BackendError, UnsupportedError: The model cannot be loaded.
    """
    try:
        return load(chosen), chosen
    except (BackendError, UnsupportedError) as error:
        if strict or not chosen.providers:
            raise
        warn(f"execution provider {chosen.effective} cannot load this model: {reason(error)}; running on cpu")
    chosen = ChosenProviders(providers=())
    return load(chosen), chosen


def _checked(provider: Provider, library: OrtLibrary) -> Provider:
    if provider.plugin_path is None and not provider.name:
        variable = METAL_LIBRARIES[0] if provider.entry == "metal" else PLUGIN_LIBRARY
        raise UnsupportedError(f"execution provider {provider.entry} has no library; name it with {variable}")
    if provider.plugin_path is None and not _is_built_in(provider.name, library):
        plugin = _library_of_package(provider.name.lower())
        if plugin is None:
            has = " and ".join(name.removesuffix("ExecutionProvider").lower() for name in library.providers)
            raise UnsupportedError(
                f"execution provider {provider.entry} is not in ONNX Runtime {library.version}, which has {has}"
            )
        provider = replace(provider, plugin_path=plugin, name=provider.entry.lower())
    name = _core.check_provider(str(library.path), provider.to_core())
    return replace(provider, name=name)


def _is_built_in(name: str, library: OrtLibrary) -> bool:
    return any(each.lower() == name.lower() + _SUFFIX for each in library.providers)


def _library_of_package(name: str) -> Path | None:
    """The plugin library inside an installed Python package, which is not imported."""
    plain = name.replace("-", "_")
    if not plain.isidentifier():
        return None
    for package in (f"onnxruntime_{plain}", f"onnxruntime_ep_{plain}"):
        try:
            spec = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            continue
        for location in (spec.submodule_search_locations or ()) if spec is not None else ():
            for pattern in (f"**/lib*{plain}*.so", f"**/lib*{plain}*.dylib", f"**/*{plain}*.dll"):
                for path in sorted(Path(location).glob(pattern)):
                    return path
    return None


def _inline_plugin(entry: str) -> Provider:
    library, *attributes = entry[len(_PREFIX) :].split("|")
    if not library.strip():
        raise InvalidArgumentError(f"ep has {entry!r}; write plugin:LIBRARY, with the path of a plugin library")
    name, device, options = "", "", {}
    for attribute in attributes:
        key, _, value = (part.strip() for part in attribute.partition("="))
        if key == "name":
            name = value
        elif key == "device":
            device = _device(value, entry)
        elif key.startswith("opt.") and key != "opt.":
            options[key.removeprefix("opt.")] = value
        else:
            raise InvalidArgumentError(
                f"ep has the attribute {attribute!r} in {entry!r}; allowed: name=, device=, opt.KEY="
            )
    return Provider(entry=entry, name=name, plugin_path=_absolute(library.strip()), device=device, options=options)


def _named_plugin(name: str, environ: Mapping[str, str]) -> Provider:
    """``plugin`` or ``metal``; without a library and a name if the environment names none."""
    variables = METAL_LIBRARIES if name == "metal" else (PLUGIN_LIBRARY,)
    library = next((environ[variable] for variable in variables if environ.get(variable)), "")
    if not library:
        return Provider(entry=name)
    options = _pairs(environ.get(PLUGIN_OPTIONS, ""))
    if name == "metal":
        return Provider(entry=name, plugin_path=_absolute(library), options=options)
    return Provider(
        entry=name,
        name=environ.get(PLUGIN_NAME, ""),
        plugin_path=_absolute(library),
        device=_device(environ.get(PLUGIN_DEVICE, ""), PLUGIN_DEVICE),
        options=options,
    )


def _device(word: str, where: str) -> str:
    if word and word.upper() not in DEVICES:
        raise InvalidArgumentError(f"{where} names the device {word!r}; allowed: {', '.join(DEVICES)}")
    return word.upper()


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip():
            raise InvalidArgumentError(f"{PLUGIN_OPTIONS} has {part!r}; write KEY=VALUE,KEY=VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _absolute(path: str) -> Path:
    return Path(path).expanduser().absolute()


def _short(entry: str) -> str:
    """An entry without the folders of its library."""
    return f"{_PREFIX}{Path(entry[len(_PREFIX) :].split('|')[0]).name}" if entry.lower().startswith(_PREFIX) else entry


def reason(error: GenAIError) -> str:
    """The error in one short line."""
    text = re.sub(r"/\S*/", "", str(error).splitlines()[0]).rstrip(".")  # names of files, without their folders
    return text if len(text) <= _REASON_CHARACTERS else f"{text[: _REASON_CHARACTERS - 1]}…"
