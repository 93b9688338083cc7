"""The streams of the process."""

from __future__ import annotations

import _thread
import io
import os
import select
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar

import click

from onnx_genai.cli.failures import Failure
from onnx_genai.errors import InvalidArgumentError

__all__ = [
    "drop_stdout",
    "has_piped_stdin",
    "interruptible",
    "note",
    "prepare_streams",
    "read_file",
    "read_stdin",
    "report_failure",
    "report_interrupt",
    "tell_what_is_awaited",
    "warn",
    "write",
]

T = TypeVar("T")

AWAIT_SECONDS = 2.0
"""Silence on stdin after which the user is told what is awaited."""


def prepare_streams() -> None:
    """Makes output UTF-8 with a replacement for what cannot be encoded, whatever the console's code page is.

    A stream that was closed before the start (``>&-``) leads nowhere. Its descriptor is taken again, so that no file
    that is opened later gets what native code prints.
    """
    nowhere = Path(os.devnull)
    sys.stdin = sys.stdin or nowhere.open(encoding="utf-8")
    sys.stdout = sys.stdout or nowhere.open("w", encoding="utf-8")
    sys.stderr = sys.stderr or nowhere.open("w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="replace")


def write(text: str) -> None:
    """Writes a piece of the product to stdout and flushes it."""
    sys.stdout.write(text)
    sys.stdout.flush()


def note(text: str) -> None:
    """One line on stderr."""
    click.echo(text, err=True)


def warn(text: str) -> None:
    note(f"warning: {text}")


def report_failure(failure: Failure) -> None:
    for label, text in (("What happened", failure.what), ("Why", failure.why), ("How to fix", failure.fix)):
        click.echo(f"{click.style(label + ':', bold=True)} {text}", err=True)


def report_interrupt() -> None:
    if sys.stdout.isatty():
        write("\n")
    note("^C interrupted")


def drop_stdout() -> None:
    """Sends what is still to be written nowhere, so that the interpreter's last flush finds no closed pipe."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file, as in tests
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def has_piped_stdin() -> bool:
    """Standard input is a pipe, a file or a socket: something that somebody sends. No terminal, and not /dev/null."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # not a file, as in tests
        return isinstance(getattr(sys.stdin, "buffer", None), io.BytesIO)
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)


def read_stdin() -> str:
    """All of stdin, less one line end at its end.

    Raises:
        InvalidArgumentError: It is not UTF-8.
    """
    tell_what_is_awaited(
        sys.stdin, "reading the prompt from standard input until it ends; with </dev/null nothing is read"
    )
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"stdin is not UTF-8 (byte {error.start}); convert it, for example with: iconv -t UTF-8"
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def read_file(path: Path) -> str:
    """The text of a file, with or without the mark that some editors put first.

    Raises:
        InvalidArgumentError: It is not UTF-8.
        OSError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not UTF-8 (byte {error.start}); convert it") from None


def tell_what_is_awaited(file: IO[Any], text: str) -> None:
    """Waits a moment for ``file``; a pipe that nobody writes to and nobody closes would be a silent wait for ever."""
    try:
        waits = not select.select([file], [], [], AWAIT_SECONDS)[0]
    except (OSError, ValueError, TypeError):  # not a file that can be waited for
        return
    if waits:
        note(text)


def interruptible(work: Callable[[], T]) -> T:
    """Runs ``work``, which may be deep in native code for long, so that Ctrl-C ends the process at once."""
    results: list[T] = []
    errors: list[BaseException] = []
    done = threading.Lock()
    done.acquire()

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(error)
        finally:
            done.release()

    try:
        # Not threading.Thread: Ctrl-C inside its start() or join() can leave its locks in a state that raises
        # RuntimeError instead. A bare lock is taken or not.
        _thread.start_new_thread(run, ())
        while not done.acquire(timeout=0.1):
            pass
    except KeyboardInterrupt:
        report_interrupt()
        sys.stderr.flush()
        # The worker cannot be stopped, and an orderly exit would wait for it.
        os._exit(130)
    if errors:
        raise errors[0]
    return results[0]
