"""Typed errors of onnx_genai.

Every error that this package raises on purpose derives from :class:`GenAIError`, and also from the built-in
exception that fits, so that ``except ValueError`` keeps working. The text says what happened, the value, the limit
and where it comes from, and how to fix it.

    GenAIError
    ├── InvalidArgumentError (ValueError)
    │   └── ContextOverflowError
    ├── NotFoundError (LookupError)
    ├── UnsupportedError (NotImplementedError)
    ├── ResourceExhaustedError (RuntimeError)
    │   └── QueueFullError
    ├── DeadlineError (TimeoutError)
    ├── AbortedError (RuntimeError)
    ├── PackageError (ValueError)
    ├── BackendError (RuntimeError)
    └── InternalError (RuntimeError)
"""

from __future__ import annotations

__all__ = [
    "AbortedError",
    "BackendError",
    "ContextOverflowError",
    "DeadlineError",
    "GenAIError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "PackageError",
    "QueueFullError",
    "ResourceExhaustedError",
    "UnsupportedError",
]


class GenAIError(Exception):
    """Base of every error that onnx_genai raises on purpose."""


class InvalidArgumentError(GenAIError, ValueError):
    """A parameter has a value that is not allowed; the text names parameter, value and allowed values."""


class ContextOverflowError(InvalidArgumentError):
    """The prompt (or prompt and output) does not fit a limit; the text gives tokens, limit and the limit's source."""


class NotFoundError(GenAIError, LookupError):
    """A file, model, alias or session that was named does not exist."""


class UnsupportedError(GenAIError, NotImplementedError):
    """The request is sound but this version, provider or package cannot do it."""


class ResourceExhaustedError(GenAIError, RuntimeError):
    """A memory budget, disk or other resource is full; trying later may work."""


class QueueFullError(ResourceExhaustedError):
    """As many requests are open as may be; the same one may be sent again as soon as others have ended."""


class DeadlineError(GenAIError, TimeoutError):
    """A time limit ran out."""


class AbortedError(GenAIError, RuntimeError):
    """The work was aborted: by the caller, because the engine was closed, or after a fork."""


class PackageError(GenAIError, ValueError):
    """A model package is broken; the text names the file, the key and what was expected."""


class BackendError(GenAIError, RuntimeError):
    """ONNX Runtime refused or failed; the text holds its code and message."""


class InternalError(GenAIError, RuntimeError):
    """A broken invariant inside onnx_genai; please report it."""
