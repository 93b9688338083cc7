"""The loaded model of a session, and loading another in its place: :class:`ModelHost`."""

from __future__ import annotations

import _thread
import contextlib
import dataclasses
import importlib.util
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, cast

from onnx_genai.cli.models import fetched_model
from onnx_genai.cli.options import BACKENDS, ModelOptions
from onnx_genai.cli.repl.interrupts import Interrupts
from onnx_genai.errors import AbortedError, GenAIError, InvalidArgumentError

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM
    from onnx_genai.types import Backend

__all__ = ["ModelHost", "open_model"]

AUTO = "auto"
STEP_TOKENS = 512
"""Prompt tokens in a step: a step cannot be stopped, and Ctrl-C should free the model soon."""


def open_model(path: Path, options: ModelOptions) -> LLM:
    """Loads a model for one person who talks to it."""
    return options.open(path, max_num_batched_tokens=STEP_TOKENS)


class ModelHost:
    """Keeps one model loaded. A model that cannot be loaded changes nothing. One thread."""

    def __init__(self, name: str, path: Path, options: ModelOptions, llm: LLM) -> None:
        """Args: MODEL as it was written, where it is, how it was loaded, and the model, which is closed here."""
        self.name = name
        self.path = path
        self.options = options
        self.llm = llm

    @property
    def label(self) -> str:
        """A short name of the model."""
        if not Path(self.name).exists():
            return self.name
        folder = self.path if self.path.is_dir() else self.path.parent
        return folder.resolve().name or self.name

    @property
    def modalities(self) -> tuple[str, ...]:
        """What a message may hold; ``text`` is always among it."""
        return ("text",)

    @property
    def accepts(self) -> str:
        """``text``, ``text + image``, ``text + audio`` or ``text + image + audio``."""
        return " + ".join(self.modalities)

    @property
    def provider(self) -> str:
        """The execution provider that runs."""
        return str(self.llm.info().get("execution_provider", self.options.ep))

    @property
    def backend(self) -> str:
        """The backend that runs, ``auto`` resolved."""
        return str(self.llm.info().get("backend", self.options.backend))

    @property
    def decoder(self) -> str:
        return str(self.llm.info().get("decoder", "unknown"))

    def providers(self) -> list[str]:
        """Names that ``/ep`` takes."""
        from onnx_genai.pipelines import find_ort_library

        names = [name.removesuffix("ExecutionProvider").lower() for name in find_ort_library().providers]
        return list(dict.fromkeys([AUTO, "cpu", *names]))

    def use_model(self, name: str, interrupts: Interrupts) -> None:
        """Loads another model in place of this one.

        Raises:
            AbortedError: Ctrl-C was pressed; the old one stays.
            GenAIError: It cannot be found or loaded; the old one stays.
        """
        options = dataclasses.replace(self.options, variant=None)
        try:
            with interrupts.raising():  # a download may take long
                path = fetched_model(name, variant=None, offline=options.offline)
        except KeyboardInterrupt as error:
            interrupts.take()
            raise AbortedError("fetching was stopped; the model from before is still there") from error
        self._load(name, path, options, interrupts)

    def use_provider(self, name: str, interrupts: Interrupts) -> None:
        """Loads the model anew on another execution provider; ``auto`` takes that of the environment, or cpu.

        Raises:
            InvalidArgumentError: There is none of that name; nothing was loaded.
            GenAIError: It cannot run the model; the old one stays.
        """
        from onnx_genai.pipelines import parse_providers

        known = self.providers()
        for entry in (part.strip().lower() for part in name.split(",")):
            if entry and entry not in known and not _is_plugin(entry):
                raise InvalidArgumentError(
                    f"there is no execution provider {entry!r}; choose one of {', '.join(known)}, plugin:LIBRARY, or a "
                    "list of them, best first"
                )
        if name.lower() == AUTO:
            name = os.environ.get("ONNX_GENAI_RUN_EP") or os.environ.get("ONNX_GENAI_EP") or "cpu"
        parse_providers(name)  # checks it
        self._load(self.name, self.path, dataclasses.replace(self.options, ep=name), interrupts)

    def use_backend(self, name: str, interrupts: Interrupts) -> None:
        """Loads the model anew with another backend; errors as :meth:`use_provider`."""
        name = name.lower()
        if name not in BACKENDS:
            raise InvalidArgumentError(f"there is no backend {name!r}; choose auto, ort, or native")
        self._load(self.name, self.path, dataclasses.replace(self.options, backend=cast("Backend", name)), interrupts)

    def close(self) -> None:
        """Frees the model."""
        self.llm.close()

    def _load(self, name: str, path: Path, options: ModelOptions, interrupts: Interrupts) -> None:
        llm = _Loading(path, options).wait(interrupts)
        old, self.llm = self.llm, llm
        self.name, self.path, self.options = name, path, options
        old.close()


def _is_plugin(entry: str) -> bool:
    """A library, or a provider in a Python package of its own."""
    plain = entry.replace("-", "_")
    if entry.startswith("plugin:") or entry in ("plugin", "metal"):
        return True
    return plain.isidentifier() and any(
        importlib.util.find_spec(package) is not None for package in (f"onnxruntime_{plain}", f"onnxruntime_ep_{plain}")
    )


class _Loading:
    """Loads in a thread, so that Ctrl-C gives up waiting; a model that comes too late is closed."""

    def __init__(self, path: Path, options: ModelOptions) -> None:
        self._path = path
        self._options = options
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._given_up = False  # guarded by _lock
        self._llm: LLM | None = None  # guarded by _lock
        self._error: BaseException | None = None

    def wait(self, interrupts: Interrupts) -> LLM:
        """The model.

        Raises:
            AbortedError: Ctrl-C was pressed.
            GenAIError: It cannot be loaded.
        """
        _thread.start_new_thread(self._run, ())
        while not self._done.wait(0.1):
            if interrupts.take():
                self._give_up()
                raise AbortedError("loading was stopped; the model from before is still there")
        if self._error is not None:
            raise self._error
        if self._llm is None:
            raise AbortedError("the model was not loaded")
        return self._llm

    def _run(self) -> None:
        try:
            llm = open_model(self._path, self._options)
            with self._lock:
                self._llm, late = llm, self._given_up
            if late:
                llm.close()
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._error = error
        finally:
            self._done.set()

    def _give_up(self) -> None:
        with self._lock:
            self._given_up, llm = True, self._llm
        if llm is not None:
            with contextlib.suppress(GenAIError):
                llm.close()
