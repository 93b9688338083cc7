"""What all request schemas share."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from onnx_genai.server.config import Limits
from onnx_genai.server.errors import ApiError

__all__ = ["ListOf", "ObjectsOf", "RequestModel", "bad_value", "bounded_tools", "tool_object"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Bounded:
    """The check of a list ends at the first wrong entry, as with pydantic's ``FailFast``, which cannot be part of a
    union: one error for each of millions would fill the memory. One that is too long is not looked at.
    """

    limit: int
    max_objects: int | None = None
    """JSON objects in the entries, at any depth."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        entries = cast("CoreSchema", {**handler(source), "fail_fast": True, "max_length": self.limit})
        return core_schema.no_info_before_validator_function(self._checked, entries)

    def _checked(self, given: Any) -> Any:
        if isinstance(given, list) and len(given) > self.limit:
            counts = {"count": len(given), "limit": self.limit}
            raise PydanticCustomError("too_long", "there are {count} entries; allowed: {limit}", counts)
        if isinstance(given, list) and self.max_objects is not None and _has_more_objects(given, self.max_objects):
            text = "there are more than {limit} objects in the entries, as parts or calls; send fewer"
            raise PydanticCustomError("too_long", text, {"limit": self.max_objects})
        return given


def _has_more_objects(value: list[Any], limit: int) -> bool:
    stack: list[Any] = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            limit -= 1
            each = each.values()
        if limit < 0 or len(each) > _MAX_ENTRIES:
            return True
        stack.extend([inner for inner in each if isinstance(inner, (dict, list))])
    return False


_MAX_ENTRIES = 2**20


ListOf = Annotated[list[T], _Bounded(_MAX_ENTRIES)]
"""A list of a body."""

ObjectsOf = Annotated[list[T], _Bounded(10_000, max_objects=30_000)]
"""A list of messages, parts or tools, each of which costs time in the event loop; more than large windows hold."""

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


def bad_value(param: str, text: str) -> ApiError:
    """A field with a value that cannot be taken."""
    return ApiError(400, text, param=param, code="invalid_value")


def tool_object(name: str, description: str | None, parameters: Any) -> dict[str, Any]:
    """A tool as OpenAI's chat writes it, without what is None."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


def bounded_tools(tools: list[dict[str, Any]], limits: Limits) -> list[dict[str, Any]]:
    """The tools, if they are within the limits.

    Raises:
        ApiError: 400, they are too many or too large.
    """
    size = len(json.dumps(tools))
    if len(tools) > limits.max_tools or size > limits.max_schema_bytes:
        raise bad_value(
            "tools",
            f"tools has {len(tools)} entries of {size} bytes; this server allows at most {limits.max_tools} of "
            f"{limits.max_schema_bytes}",
        )
    return tools
