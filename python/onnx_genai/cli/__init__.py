"""The command ``onnx-genai``. Only the product goes to stdout; everything else goes to stderr.

This module imports nothing: Ctrl-C is handled before the second that the other imports take.
"""

from __future__ import annotations

TYPE_CHECKING = False  # that of typing, whose import takes time; type checkers know the name

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

_EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command line. Ctrl-C gives exit code 130 at any moment, also while modules are imported.

    Args:
        arguments: Without the program's name; None takes those of the process, whose last work this then is.

    Returns:
        0 success, 1 failure, 2 wrong usage, 130 interrupted.
    """
    try:
        was_taken = _end_at_ctrl_c()
        from onnx_genai.cli import app

        if was_taken:
            _raise_at_ctrl_c()
        code = app.main(arguments)
        if arguments is None:
            _end_at_ctrl_c()  # while the interpreter ends
    except KeyboardInterrupt:
        _end_at_ctrl_c()
        _report_interrupt()
        code = _EXIT_INTERRUPTED
    return code


def _end_at_ctrl_c() -> bool:
    """Makes Ctrl-C end the process at once; False where somebody else handles it, or another thread is the main one.

    Not an exception: imports and the end of the interpreter turn it into something else, or drop it.
    """
    import signal

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    try:
        signal.signal(signal.SIGINT, _end)
    except ValueError:  # not in the main thread
        return False
    return True


def _raise_at_ctrl_c() -> None:
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(number: int, frame: object) -> None:
    import os

    _report_interrupt()
    os._exit(_EXIT_INTERRUPTED)


def _report_interrupt() -> None:
    """As :func:`onnx_genai.cli.console.report_interrupt`, which may not be there yet."""
    import os

    for descriptor, data in ((1, b"\n"), (2, b"^C interrupted\n")):
        try:
            if descriptor == 2 or os.isatty(descriptor):
                os.write(descriptor, data)
        except OSError:  # it is closed
            continue
