"""The files of a batch: prompts in, answers out, both JSON lines.

The file of answers is always a beginning of the whole: one record for each prompt, in the order of the prompts. So what
is there tells what is missing, and an interrupted batch can go on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from onnx_genai.cli import console
from onnx_genai.errors import InvalidArgumentError

if sys.platform != "win32":
    import fcntl

__all__ = ["InputFile", "InputLine", "OutputFile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputLine:
    """One line of the input that is not blank."""

    number: int
    """In the file, from 1."""
    place: int
    """Among the lines that are not blank, from 0."""
    data: bytes

    @property
    def digest(self) -> str:
        """Tells the line from another one that stands in its place later."""
        return hashlib.sha256(self.data.strip()).hexdigest()[:16]

    def head(self) -> dict[str, Any]:
        """How its record begins."""
        return {"line": self.number, "input": self.digest}


class InputFile:
    """The file of prompts, which is read several times; what comes from a pipe or terminal is copied first."""

    def __init__(self, path: Path) -> None:
        """Opens the file, and reads a pipe to its end.

        Raises:
            InvalidArgumentError: It is a device.
            OSError: It cannot be read, or the folder for temporary files has no room for what the pipe gives.
        """
        self.path = path
        file: IO[bytes] = path.open("rb")
        try:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or file.isatty()):
                    raise InvalidArgumentError(f"--batch is {path}, a device; allowed: a file or a pipe")
                file = _copied(file, path)
        except BaseException:
            file.close()
            raise
        self._file = file

    def lines(self) -> Iterator[InputLine]:
        """The lines that are not blank, one at a time. One such iterator at a time: they share the open file."""
        self._file.seek(0)
        place = 0
        for number, data in enumerate(self._file, start=1):
            data = data.removeprefix(b"\xef\xbb\xbf") if number == 1 else data
            if data.strip():
                yield InputLine(number=number, place=place, data=data)
                place += 1

    def count(self) -> int:
        """How many lines are not blank."""
        return sum(1 for _ in self.lines())

    def __enter__(self) -> InputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()


def _copied(file: IO[bytes], path: Path) -> IO[bytes]:
    """All that the pipe gives, in a file without a name; closes the pipe."""
    console.tell_what_is_awaited(file, f"reading prompts from {path} until it ends")
    copy = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        with file:
            shutil.copyfileobj(file, copy)
        copy.flush()
    except BaseException:
        copy.close()
        raise
    return copy


class OutputFile:
    """The records that are there already, and those that come; one process at a time."""

    def __init__(self, path: Path, source: InputFile, *, overwrite: bool) -> None:
        """Opens the file and checks that its records belong to ``source``; :meth:`begin` is the first to change it.

        Raises:
            InvalidArgumentError: It is a pipe or device, or no file of answers to these prompts, or another process
                writes it.
        """
        self._path = path
        if path.exists():
            if path.samefile(source.path):
                raise InvalidArgumentError(f"--output is {path}, which is the file of prompts; name another file")
            if not path.is_file():  # before it is opened, as to open a pipe takes part in it
                raise InvalidArgumentError(
                    f"--output is {path}, a pipe or device, which cannot be read and gone on with; name a file, or "
                    "leave --output out, and answers go to standard output"
                )
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            self._lock()
            self.num_records, self.num_failed, self._size = (0, 0, 0) if overwrite else self._checked(source)
        except BaseException:
            os.close(self._file)
            raise

    def begin(self) -> None:
        """Drops what is not gone on with: a last line that was cut off, or all with ``overwrite``."""
        os.ftruncate(self._file, self._size)
        os.lseek(self._file, self._size, os.SEEK_SET)

    def write(self, record: Mapping[str, Any]) -> None:
        """Adds a record, after :meth:`begin`. A process that is killed leaves whole lines, but for the last one."""
        data = (json.dumps(record, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._file, data) :]
        self.num_records += 1

    def sync(self) -> None:
        """Waits until what was written is on the disk."""
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(self._file)

    def __enter__(self) -> OutputFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sync()
        os.close(self._file)

    def _lock(self) -> None:
        if sys.platform == "win32":
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InvalidArgumentError(f"{self._path}: another process writes it; wait for its end") from error
        except OSError:  # a file system without locks
            return

    def _checked(self, source: InputFile) -> tuple[int, int, int]:
        """Records that are whole, how many of them are errors, and the bytes they take."""
        size = records = failed = 0
        lines = source.lines()
        with os.fdopen(os.dup(self._file), "rb") as file:
            file.seek(0)
            data = next(file, b"")
            while data:
                following = next(file, b"")
                try:
                    if not data.endswith(b"\n"):
                        raise ValueError("it has no end")
                    record = json.loads(data)
                except ValueError as error:
                    if following or not (records or _may_begin_record(data)):
                        raise InvalidArgumentError(
                            f"{self._path}: line {records + 1} is no record of a batch ({error}); name another file, "
                            "or begin anew with --overwrite"
                        ) from error
                    break  # cut off when the process ended
                self._check_record(record, records, next(lines, None))
                failed += "error" in record
                records += 1
                size += len(data)
                data = following
        return records, failed, size

    def _check_record(self, record: object, place: int, line: InputLine | None) -> None:
        if line is not None and isinstance(record, dict) and record.get("input") == line.digest:
            return
        what = "there are fewer prompts" if line is None else f"line {line.number} of the prompts is another one"
        raise InvalidArgumentError(
            f"{self._path}: record {place + 1} does not belong to these prompts ({what}); name another file, or begin "
            "anew with --overwrite"
        )


def _may_begin_record(data: bytes) -> bool:
    """Whether a line that is cut off can be the beginning of a record, and not somebody's own text."""
    head = b'{"line": '
    return data[: len(head)] == head[: len(data)]
