"""The known formats, and which one a model uses: :data:`FORMATS`, :func:`detect_format`."""

from __future__ import annotations

from collections.abc import Collection

from onnx_genai.errors import InvalidArgumentError
from onnx_genai.tools.calls import ToolFormat
from onnx_genai.tools.channels import Channels
from onnx_genai.tools.marked import CommandR, DeepSeek, Hermes, JsonList, Mistral
from onnx_genai.tools.written import FunctionGemma, GemmaCode, LlamaJson, Pythonic

__all__ = ["FORMATS", "detect_format", "get_format"]

FORMATS: dict[str, ToolFormat] = {
    form.name: form
    for form in (
        Hermes(),
        LlamaJson(),
        Mistral(),
        DeepSeek(),
        CommandR(),
        JsonList(
            "command_r7b",
            "<|START_ACTION|>",
            "<|END_ACTION|>",
            name_keys=("tool_name",),
            argument_keys=("parameters",),
        ),
        JsonList("phi4", "<|tool_call|>", "<|/tool_call|>"),
        JsonList("functools", "functools["),
        JsonList("granite", "<|tool_call|>"),
        GemmaCode(),
        FunctionGemma(),
        Channels(),
        Pythonic(),
    )
}
"""By name. ``hermes`` covers Qwen 2.5/3, Qwen3-Coder, SmolLM3, Granite 4 and Hermes itself."""

_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("channels", ("<|channel|>",)),
    ("deepseek", ("<｜tool▁call▁begin｜>",)),
    ("command_r7b", ("<|START_ACTION|>",)),
    ("command_r", ("Action: ```json", "Action:```json")),
    ("function_gemma", ("<start_function_call>",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("phi4", ("<|/tool_call|>",)),
    ("functools", ("functools[",)),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("gemma", ("```tool_code",)),
    ("llama3_json", ("<|python_tag|>", '"parameters": dictionary of argument name')),
    ("pythonic", ("[func_name1(", "[function_name(", "[func_name(")),
)
"""Texts of a template, first match first, that show which format its model writes."""


def get_format(name: str) -> ToolFormat:
    """Returns a format by name.

    Raises:
        InvalidArgumentError: There is none.
    """
    form = FORMATS.get(name) if isinstance(name, str) else None
    if form is None:
        raise InvalidArgumentError(f"tool format is {name!r}; allowed: {', '.join(FORMATS)}")
    return form


def detect_format(template_source: str, tokens: Collection[str] = ()) -> ToolFormat | None:
    """Returns the format that a package's model writes, from its chat template, else from its special tokens.

    The template says it best, as it renders earlier calls the way the model wrote them. None when neither knows any.
    """
    for text in (template_source, "\n".join(tokens)):
        for name, signs in _SIGNS:
            if any(sign in text for sign in signs):
                return FORMATS[name]
    return None
