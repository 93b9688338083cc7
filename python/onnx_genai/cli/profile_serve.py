"""Profiles of the models of a server: recorded from when each is loaded, written when the server has ended."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_genai.cli import console
from onnx_genai.cli.profile import ProfileOptions, parse_verbosity
from onnx_genai.cli.profile_report import stage_lines

if TYPE_CHECKING:
    from onnx_genai.pipelines import AsyncEmbedder, AsyncLLM, Profile, Recording
    from onnx_genai.server import ModelSpec

__all__ = ["ServedProfiles"]

MAX_EVENTS = 200_000
"""That a model's recording keeps: the last ones. About 10 MB, and some minutes of a busy server."""


class ServedProfiles:
    """Records models as they are loaded. Does nothing where nothing was asked for. Thread-safe."""

    def __init__(self, options: ProfileOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._recordings: dict[str, Recording] = {}  # guarded by _lock

    @property
    def wanted(self) -> bool:
        options = self._options
        return options.profile or options.profile_json is not None or options.profile_trace is not None

    def add(self, name: str, llm: AsyncLLM) -> None:
        """Records a model that was just loaded; of one that is loaded again only its last life is kept."""
        if not self.wanted:
            return
        recording = llm.engine.start_profile(parse_verbosity(self._options.profile_verbosity), max_events=MAX_EVENTS)
        with self._lock:
            last = self._recordings.pop(name, None)
            self._recordings[name] = recording
        if last is not None:
            last.stop()

    def recorded(self, spec: ModelSpec) -> ModelSpec:
        """The same model, which is recorded once it is loaded."""
        from onnx_genai.pipelines import AsyncLLM

        def load() -> AsyncLLM | AsyncEmbedder:
            model = spec.load()
            if isinstance(model, AsyncLLM):
                self.add(spec.name, model)
            return model

        return dataclasses.replace(spec, load=load) if self.wanted else spec

    def write(self) -> None:
        """Stops all recordings and writes what was asked for."""
        with self._lock:
            recordings, self._recordings = self._recordings, {}
        profiles = {name: recording.stop() for name, recording in recordings.items()}
        if self._options.profile:
            for name, profile in profiles.items():
                console.note("\n" + "\n".join(_lines(name, profile)))
        if self._options.profile_json is not None:
            values = {name: _values(profile) for name, profile in profiles.items()}
            text = json.dumps({"models": values}, ensure_ascii=False) + "\n"
            if self._options.profile_json == "-":
                console.write(text)
            else:
                Path(self._options.profile_json).write_text(text, encoding="utf-8")
        if self._options.profile_trace is not None:
            for name, profile in profiles.items():
                path = _path_of(self._options.profile_trace, name, alone=len(profiles) == 1)
                profile.write_trace(path)
                console.note(f"[profile] wrote {path}; open it at https://ui.perfetto.dev (or chrome://tracing)")


def _values(profile: Profile) -> dict[str, Any]:
    values = profile.as_dict()
    values.pop("nodes", None)
    return values


def _path_of(path: Path, name: str, *, alone: bool) -> Path:
    """``trace.json``, or with several models ``trace-NAME.json``."""
    return path if alone else path.with_name(f"{path.stem}-{re.sub(r'[^A-Za-z0-9._-]', '_', name)}{path.suffix}")


def _lines(name: str, profile: Profile) -> list[str]:
    rows = [f"── profile of {name} " + "─" * 40, f"requests {len(profile.requests)}, steps {profile.num_steps}"]
    return [*rows, *stage_lines(profile, profile.generated_tokens)]
