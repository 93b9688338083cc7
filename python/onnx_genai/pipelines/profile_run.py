"""A profile of a model that is being recorded: :class:`ProfileRun`."""

from __future__ import annotations

from pathlib import Path

from onnx_genai.engine import ModelEngine, Profile, Verbosity
from onnx_genai.errors import InvalidArgumentError

__all__ = ["ProfileRun", "ended"]


class ProfileRun:
    """Records what an engine does, from its construction until :meth:`stop`."""

    def __init__(self, engine: ModelEngine, path: str | Path | None, verbosity: Verbosity) -> None:
        """Use :meth:`onnx_genai.LLM.profile`."""
        self._path = None if path is None else Path(path)
        if self._path is not None and (self._path.is_dir() or not self._path.absolute().parent.is_dir()):
            raise InvalidArgumentError(f"path is {str(path)!r}; name a file in a folder that exists")
        self._recording = engine.start_profile(verbosity)
        self._result: Profile | None = None

    @property
    def result(self) -> Profile:
        """The figures so far; once it has ended, those of the whole recording."""
        return self._result or self._recording.snapshot()

    def stop(self) -> Profile:
        """Ends the recording and writes the timeline; a second call returns the same."""
        if self._result is None:
            self._result = self._recording.stop()
            if self._path is not None:
                self._result.write_trace(self._path)
        return self._result


def ended(run: ProfileRun | None) -> Profile:
    """Stops it.

    Raises:
        InvalidArgumentError: There is none.
    """
    if run is None:
        raise InvalidArgumentError("no profile was started; call start_profile() first")
    return run.stop()
