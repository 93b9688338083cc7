"""Progress bars on standard error, on terminals only."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from onnx_genai.package import hub

__all__ = ["ProgressBar", "fetch"]

REFRESH_SECONDS = 0.1


class ProgressBar:
    """A bar of bytes; shows nothing unless stderr is a terminal.

    Example:
        >>> with ProgressBar("fetching model.onnx") as bar:
        ...     bar.update(10, 100)
    """

    def __init__(self, label: str) -> None:
        self._label = label
        self._shown = sys.stderr.isatty()
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            BarColumn(bar_width=20),
            DownloadColumn(table_column=Column(no_wrap=True)),
            TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
            console=Console(stderr=True),
            transient=True,
            disable=not self._shown,
        )
        self._task = self._progress.add_task(label, total=None)
        self._drawn = label
        self._last = 0.0

    def update(self, done: int, total: int | None, label: str | None = None) -> None:
        """Sets how far it is. Cheap enough for every chunk: it draws at most ten times a second."""
        now = time.perf_counter()
        if not self._shown or (now - self._last < REFRESH_SECONDS and done != total):
            return
        self._last = now
        label = label or self._label
        if label != self._drawn:  # another thing: its speed is its own
            self._drawn = label
            self._progress.reset(self._task)
        self._progress.update(self._task, completed=done, total=total, description=label)

    def __enter__(self) -> ProgressBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()


def fetch(
    name: str,
    *,
    revision: str | None = None,
    variant: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
) -> Path:
    """Folder of the model, fetched if it is not here yet; what comes as GGUF or checkpoint is made into a package."""
    with ProgressBar(f"fetching {name}") as bar:

        def convert(source: Path, out: Path) -> object:
            from onnx_genai.convert import import_encoder, import_gguf

            if source.is_dir():
                return import_encoder(source, out)
            return import_gguf(
                source, out, progress=lambda _tensor, done, total: bar.update(done, total, f"importing {source.name}")
            )

        return hub.pull(
            name,
            revision=revision,
            variant=variant,
            cache_dir=cache_dir,
            offline=offline,
            importer=convert,
            progress=lambda what, done, total: bar.update(done, total, f"fetching {what}"),
        )
