"""What happens to an encoder when the process is interrupted, forks, or ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnx_genai import Embedder
from onnx_genai.errors import AbortedError
from tests.embedding.conftest import WritePackage

WAIT_SECONDS = 120

LONG_WORK = """
import sys
from onnx_genai import Embedder

embedder = Embedder(sys.argv[1], max_batch_tokens=4, threads=1)
prepared = embedder.prepare(["w4 w5"] * 2000)
print("ready", flush=True)
try:
    while True:
        embedder.embed_prepared(prepared)
except KeyboardInterrupt:
    print("interrupted", embedder.embed("w4").shape, flush=True)
"""

ENDS_WHILE_THREADS_RUN = """
import sys, threading, time
from onnx_genai import Embedder

embedder = Embedder(sys.argv[1], max_batch_tokens=4, threads=1)
prepared = embedder.prepare(["w4 w5"] * 20000)
started = threading.Semaphore(0)

def work():
    started.release()
    while True:
        embedder.embed_prepared(prepared)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
for _ in range(4):
    started.acquire()
time.sleep(0.2)
print("ends", flush=True)
"""


def start(script: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ctrl_c_ends_a_call_between_two_runs(package: WritePackage) -> None:
    with start(LONG_WORK, package()) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=WAIT_SECONDS)

    assert out == "interrupted (1, 8)\n", err
    assert process.returncode == 0


def test_interpreter_ends_while_daemon_threads_run(package: WritePackage) -> None:
    with start(ENDS_WHILE_THREADS_RUN, package()) as process:
        out, err = process.communicate(timeout=WAIT_SECONDS)

    assert out == "ends\n"
    assert process.returncode == 0, err
    assert "Fatal" not in err
    assert "terminate called" not in err


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_a_fork_is_told_so(package: WritePackage) -> None:
    with Embedder(package(), threads=1) as embedder:
        embedder.embed("w4")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                embedder.embed("w4")
            except AbortedError as error:
                code = 0 if "forked" in str(error) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)

        assert os.waitstatus_to_exitcode(status) == 0
        assert embedder.embed("w4").shape == (1, 8)
