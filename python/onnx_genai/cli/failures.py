"""Errors in the three parts that the user reads: what happened, why, how to fix it."""

from __future__ import annotations

from dataclasses import dataclass

from onnx_genai import errors
from onnx_genai.package.wheel import FetchError

__all__ = ["Failure", "explain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    what: str
    why: str
    fix: str


# The most special class first: an error takes the first row that it is an instance of.
_ROWS: tuple[tuple[type[BaseException], str, str], ...] = (
    (
        errors.ContextOverflowError,
        "Prompt and answer together must fit the context window.",
        "Shorten the prompt, or use a model with a larger window; the limit and its source are named above.",
    ),
    (
        errors.InvalidArgumentError,
        "A value that was given is not allowed.",
        "Correct the value named above; `onnx-genai COMMAND --help` lists the options.",
    ),
    (
        errors.NotFoundError,
        "What was named does not exist, here or under that name.",
        "Check the spelling, or do what the text above says; `onnx-genai list` shows the models on this machine, "
        "`onnx-genai pull NAME` fetches one.",
    ),
    (
        errors.UnsupportedError,
        "This version, execution provider or package cannot do that.",
        "Use another model, provider or option; `onnx-genai show MODEL` and `onnx-genai version` tell what there is.",
    ),
    (
        errors.ResourceExhaustedError,
        "A memory budget, queue or disk is full.",
        "Free memory, or change --host-ram-limit, --vram-limit or --max-context.",
    ),
    (errors.DeadlineError, "A time limit ran out.", "Try again, or raise the limit."),
    (errors.AbortedError, "The work was stopped before it was done.", "Run the command again."),
    (
        errors.PackageError,
        "The model package cannot be used as it is.",
        "Do what the text above says, or fetch the package again; `onnx-genai show MODEL` checks it.",
    ),
    (
        FetchError,
        "The model could not be fetched.",
        "Check network, proxy and HF_ENDPOINT, or use a model that is on this machine (`onnx-genai list`).",
    ),
    (
        ConnectionError,
        "The server is not there, or does not answer as one with OpenAI's interface does.",
        "Check the address, the API key and the server's log.",
    ),
    (
        errors.BackendError,
        "ONNX Runtime refused the model or failed while it ran.",
        "Check `onnx-genai version`, update onnxruntime, or export the model again.",
    ),
    (
        errors.InternalError,
        "This is a fault in onnx-genai.",
        "Please report it with the output of `onnx-genai --debug ...` and `onnx-genai version`.",
    ),
    (
        PermissionError,
        "The operating system does not allow it.",
        "Check the permissions of the file or folder.",
    ),
    (FileNotFoundError, "A file or folder is missing.", "Check the path."),
    (OSError, "The operating system reported an error.", "Check the path, the free disk space and the permissions."),
    (MemoryError, "The memory is used up.", "Close other programs, or use a smaller model or variant."),
    (
        ImportError,
        "A Python package that this needs cannot be imported.",
        "Install it in this environment: pip install 'onnx-genai' --upgrade, or the package named above.",
    ),
)
_UNKNOWN = (
    "This is a fault in onnx-genai.",
    "Please report it with the output of `onnx-genai --debug ...` and `onnx-genai version`.",
)


def explain(error: BaseException) -> Failure:
    """The three parts for any error; causes that say more are part of the reason."""
    why, fix = next(((why, fix) for kind, why, fix in _ROWS if isinstance(error, kind)), _UNKNOWN)
    return Failure(what=_text(error), why=" ".join([why, *_causes(error)]), fix=fix)


def _text(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, errors.GenAIError) and text:
        return text
    if isinstance(error, OSError) and error.strerror:
        name = f": {error.filename}" if error.filename is not None else ""
        return f"{error.strerror}{name}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _causes(error: BaseException) -> list[str]:
    """The chain of causes whose text is not already part of an outer text."""
    said = _text(error)
    causes: list[str] = []
    cause = error.__cause__
    while cause is not None and len(causes) < 4:
        text = _text(cause)
        detail = str(cause).strip() or text
        if detail not in said:
            causes.append(f"({text})")
            said += text
        cause = cause.__cause__
    return causes
