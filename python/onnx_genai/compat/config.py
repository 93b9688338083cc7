"""What is to be loaded, and how: :class:`Config`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NoReturn, cast

from onnx_genai import package
from onnx_genai.compat.unsupported import refuse
from onnx_genai.errors import InvalidArgumentError, NotFoundError, UnsupportedError
from onnx_genai.package import ContextLimit, KvHints, ModelPackage, genai_config, huggingface
from onnx_genai.package.fields import Fields
from onnx_genai.package.files import PackageFolder
from onnx_genai.types import Backend

__all__ = ["Config", "config_of"]

_SPELLING = {
    "coreml": "CoreML",
    "dml": "DML",
    "migraphx": "MIGraphX",
    "openvino": "OpenVINO",
    "qnn": "QNN",
    "vitisai": "VitisAI",
    "webgpu": "WebGPU",
    "xnnpack": "XNNPACK",
}
"""Providers whose name scripts write in several ways; others are passed on in lower case."""


class Config:
    """A model package and changes to how it is loaded.

    Args:
        path: A package folder of any format that :class:`onnx_genai.LLM` opens, or the alias of a pulled model.

    Raises:
        NotFoundError, PackageError, UnsupportedError: It is no package, or is broken.
    """

    def __init__(self, path: str | Path) -> None:
        located = _located(path)
        self._refusal: UnsupportedError | None = None
        try:
            self._read = package.read(located)
        except UnsupportedError as error:  # a model that cannot run may still have a tokenizer
            if not (located / genai_config.FILE_NAME).is_file():
                raise
            self._refusal = error
            self._read = _text_only(located)
        self._folder = _DocumentFolder(self._read.root)
        self._document = self._folder.json(genai_config.FILE_NAME) or {}
        self._providers: list[str] | None = None
        self._options: dict[str, dict[str, str]] = {}

    @property
    def document(self) -> Mapping[str, Any]:
        """``genai_config.json`` with all overlays; empty for packages that have none."""
        return self._document

    def overlay(self, text: str) -> None:
        """Merges a JSON object into ``genai_config.json``: objects key by key, everything else by replacement.

        Raises:
            InvalidArgumentError: It is no JSON object.
            PackageError: The result is no valid configuration; what was before stays.
            UnsupportedError: The package has no ``genai_config.json``.
        """
        try:
            changes = json.loads(text)
        except (TypeError, ValueError) as error:
            raise InvalidArgumentError(f"overlay is no JSON text ({error}); give an object such as {{}}") from error
        if not isinstance(changes, dict):
            raise InvalidArgumentError(f"overlay is a JSON {type(changes).__name__}; allowed: an object")
        if not self._document:
            raise UnsupportedError(
                f"{self._read.root} has no {genai_config.FILE_NAME}, so there is nothing to merge into; set search "
                "options on GeneratorParams instead"
            )
        before = self._document
        self._document = _merged(before, changes)
        try:
            self.text_package()
        except Exception:
            self._document = before
            raise

    def clear_providers(self) -> None:
        """Forgets the providers of the package; with none appended the model runs on the CPU."""
        self._providers = []

    def append_provider(self, name: str) -> None:
        """Adds an execution provider; the first one is used.

        Raises:
            InvalidArgumentError: The name is empty or no text.
        """
        if not isinstance(name, str) or not name:
            raise InvalidArgumentError(f"provider is {name!r}; allowed: a name such as cpu or cuda")
        self._providers = [*(self._providers or ()), name]

    def set_provider_option(self, provider: str, key: str, value: str) -> None:
        """Sets an option of a provider, and appends that provider if it is not there yet.

        ``cpu`` has the option ``backend`` (``auto``, ``ort`` or ``native``) of :class:`onnx_genai.LLM`.
        """
        for name, text in (("provider", provider), ("key", key), ("value", value)):
            if not isinstance(text, str):
                raise InvalidArgumentError(f"{name} is {text!r}; allowed: a text")
        self._options.setdefault(provider.lower(), {})[key] = value
        if provider.lower() not in (name.lower() for name in self._provider_names()):
            self.append_provider(provider)

    def set_decoder_provider_options_hardware_device_type(self, provider: str, value: str) -> None:
        """Raises ``UnsupportedError``: a device is chosen by the options of its provider."""
        _refuse_hardware("device_type", value)

    def set_decoder_provider_options_hardware_device_id(self, provider: str, value: int) -> None:
        """Raises ``UnsupportedError``: a device is chosen by the options of its provider."""
        _refuse_hardware("device_id", value)

    def set_decoder_provider_options_hardware_vendor_id(self, provider: str, value: int) -> None:
        """Raises ``UnsupportedError``: a device is chosen by the options of its provider."""
        _refuse_hardware("vendor_id", value)

    def clear_decoder_provider_options_hardware_device_type(self, provider: str) -> None:
        """Does nothing: none can be set."""

    def clear_decoder_provider_options_hardware_device_id(self, provider: str) -> None:
        """Does nothing: none can be set."""

    def clear_decoder_provider_options_hardware_vendor_id(self, provider: str) -> None:
        """Does nothing: none can be set."""

    def add_model_data(self, name: str, data: object) -> None:
        """Raises ``UnsupportedError``: models are read from files."""
        refuse("Config.add_model_data", "models are read from files; write the data into the package folder")

    def remove_model_data(self, name: str) -> None:
        """Raises ``UnsupportedError``; see :meth:`add_model_data`."""
        refuse("Config.remove_model_data", "no model data can be added")

    @staticmethod
    def from_package_ep(config_path: str, ep: str) -> Config:
        """Raises ``UnsupportedError``: packages with a variant for each provider do not open as a whole."""
        refuse("Config.from_package_ep", "give the folder of one variant to Config(folder)")

    def provider(self) -> tuple[str, Mapping[str, str]]:
        """The execution provider to load the model on, as ONNX Runtime spells it, and its options."""
        names = self._provider_names()
        if not names:
            return "cpu", {}
        name = names[0].lower()
        stated = {entry.name: entry.options for entry in self.package().session_options.provider_options}
        own = {**(stated.get(name, {}) if self._providers is None else {}), **self._options.get(name, {})}
        return _SPELLING.get(name, name), own if name != "cpu" else {}

    def backend(self) -> Backend:
        """Whose kernels compute quantized products: the option ``backend`` of the provider ``cpu``, else ``auto``."""
        return cast("Backend", self._options.get("cpu", {}).get("backend", "auto"))

    def package(self) -> ModelPackage:
        """What the package says, with all overlays.

        Raises:
            PackageError: An overlay has a value that is not allowed.
            UnsupportedError: Such models do not run.
        """
        if self._refusal is not None:
            raise self._refusal
        return self.text_package()

    def text_package(self) -> ModelPackage:
        """As :meth:`package`, but enough for a tokenizer if the model cannot run."""
        found = self._read
        if self._refusal is not None or self._document == self._folder.original:
            return found
        self._folder.document = self._document
        config = genai_config.load(self._folder, found.root / genai_config.FILE_NAME)
        if _tokenizer_dir(self._document) != _tokenizer_dir(self._folder.original):
            raise UnsupportedError("overlay has model.tokenizer_dir; change it in genai_config.json itself")
        model_path = found.model_path
        if config.model_file is not None:
            model_path = self._folder.resolve(config.model_file, origin="overlay: model.decoder.filename")
        encoder = config.encoder
        if encoder is not None:
            path = self._folder.resolve(str(encoder.path), origin="overlay: model.encoder.filename")
            encoder = replace(encoder, path=path)
        return replace(
            found,
            model_path=model_path,
            encoder=encoder,
            model_type=config.model_type or found.model_type,
            io=config.io,
            kv=replace(found.kv, **_stated_hints(config.kv)),
            context_limits=_limits(found, config.context_limits),
            vocab_size=config.vocab_size or found.vocab_size,
            eos_token_ids=config.eos_token_ids or found.eos_token_ids,
            bos_token_id=config.bos_token_id,
            pad_token_id=config.pad_token_id,
            generation=config.generation or found.generation,
            session_options=config.session_options,
        )

    def _provider_names(self) -> list[str]:
        if self._providers is not None:
            return self._providers
        return [entry.name for entry in self.package().session_options.provider_options]


def config_of(source: object) -> Config:
    """The config that ``Model`` and ``Tokenizer`` were given, or a new one for a path.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(source, Config):
        return source
    if isinstance(source, (str, Path)) and str(source):
        return Config(source)
    raise InvalidArgumentError(f"model is {source!r}; allowed: a Config, or the path of a package folder")


def _refuse_hardware(name: str, value: object) -> NoReturn:
    refuse(
        f"the hardware filter {name}={value!r}",
        'a device is chosen by the options of its provider: set_provider_option(provider, "device_id", "0")',
    )


class _DocumentFolder(PackageFolder):
    """A package folder whose genai_config.json is the one with the overlays."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.document: Mapping[str, Any] | None = None
        self.original = self.json(genai_config.FILE_NAME) or {}

    def text(self, path: Path, *, limit: int = 2**28) -> str:
        if self.document is not None and path.name == genai_config.FILE_NAME:
            return json.dumps(self.document)
        return super().text(path, limit=limit)


def _located(path: str | Path) -> Path:
    if not isinstance(path, (str, Path)) or not str(path):
        raise InvalidArgumentError(f"path is {path!r}; allowed: the path of a package folder")
    try:
        if Path(path).exists():
            return Path(path)
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise NotFoundError(f"no model {str(path)!r}: {error.strerror}") from error
    from onnx_genai.package import hub  # only names need it, and its own imports take time

    found = hub.resolve(str(path))
    if found is None:
        raise NotFoundError(f"no model {str(path)!r}: it is no folder, and no alias of a model that was pulled")
    return found


def _text_only(path: Path) -> ModelPackage:
    """The parts of a package that a tokenizer needs."""
    root = path.absolute()
    folder = PackageFolder(root)
    texts = huggingface.load(folder)
    document = folder.json(genai_config.FILE_NAME) or {}
    model = Fields(document, root / genai_config.FILE_NAME).sub("model")
    tokenizer = root / "tokenizer.json"
    return ModelPackage(
        format="genai_config",
        root=root,
        model_path=root,
        tokenizer_path=tokenizer if tokenizer.is_file() else None,
        tokenizer_searched=(tokenizer,),
        eos_token_ids=(model.ids("eos_token_id") if model is not None else ()) or texts.eos_token_ids,
        bos_token_id=model.one_id("bos_token_id") if model is not None else texts.bos_token_id,
        pad_token_id=model.one_id("pad_token_id") if model is not None else texts.pad_token_id,
        special_tokens=texts.special_tokens,
        chat_template=texts.chat_template,
    )


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _stated_hints(hints: KvHints) -> dict[str, Any]:
    values = {each.name: getattr(hints, each.name) for each in fields(KvHints)}
    return {name: value for name, value in values.items() if value is not None}


def _tokenizer_dir(document: Mapping[str, Any]) -> object:
    model = document.get("model")
    return model.get("tokenizer_dir") if isinstance(model, Mapping) else None


def _limits(found: ModelPackage, own: tuple[ContextLimit, ...]) -> tuple[ContextLimit, ...]:
    """The limits of the changed file, and those that other files state."""
    others = [limit for limit in found.context_limits if not limit.source.startswith(genai_config.FILE_NAME)]
    return (*own, *others)
