"""What all request schemas share."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from onnx_genai.server.errors import ApiError

__all__ = ["ListOf", "RequestModel"]

T = TypeVar("T")


class _FailsFast:
    """As pydantic's ``FailFast``, which cannot be part of a union."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return cast("CoreSchema", {**handler(source), "fail_fast": True})


ListOf = Annotated[list[T], _FailsFast()]
"""A list of a body. Its check ends at the first wrong entry: one error for each of millions would fill the memory."""

_log = logging.getLogger("onnx_genai.server")


class RequestModel(BaseModel):
    """A request body. Types are strict: ``"5"`` is no number. Unknown fields are ignored, as SDKs send many."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, protected_namespaces=())

    refused: ClassVar[Mapping[str, str]] = {}
    """Fields that would change the answer but cannot be honoured, and what to do instead."""

    def check_refused(self) -> None:
        """Refuses fields that may not be ignored; notes the others in the log.

        Raises:
            ApiError: 400, names the field.
        """
        extra = self.model_extra or {}
        for name, reason in self.refused.items():
            # A value that asks for nothing is harmless; SDKs fill such in.
            if extra.get(name) not in (None, False, [], {}, ""):
                raise ApiError(400, f"{name} is not supported: {reason}", param=name, code="unsupported_parameter")
        ignored = sorted(extra.keys() - self.refused.keys())
        if ignored:
            _log.info("fields that were ignored: %s", ", ".join(ascii(name)[1:-1][:64] for name in ignored[:16]))
