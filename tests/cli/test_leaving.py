"""The end of the process does not wait for work that nobody needs any more."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from onnx_genai.cli import app
from onnx_genai.pipelines.background import DaemonThreads

PROGRAM = """
import sys, threading
from onnx_genai.cli import app
from onnx_genai.pipelines.background import DaemonThreads

def run(arguments, state):
    global threads
    threads = DaemonThreads(1, "stuck")
    begun = threading.Event()
    threads.submit(lambda: (begun.set(), threading.Event().wait()))
    begun.wait()
    print("said before")
    return 7

app._run = run
sys.exit(app.main())
"""


def test_busy_threads_are_left_to_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr("os._exit", codes.append)
    threads, begun, free = DaemonThreads(1, "stuck"), threading.Event(), threading.Event()
    working = threads.submit(lambda: (begun.set(), free.wait(20)))
    assert begun.wait(20)

    app._leave_busy_threads(3)

    assert codes == [3]
    free.set()
    working.result(20)
    threads.shutdown()


def test_what_was_said_is_written_and_the_exit_code_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (7, "said before\n", "")
