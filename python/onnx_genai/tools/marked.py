"""Formats whose calls stand between marks: Hermes, Qwen3-Coder, Granite, Phi-4, Command-R, Mistral, DeepSeek."""

from __future__ import annotations

import re
from collections.abc import Sequence

from onnx_genai.tools.calls import Call, Region, arguments_text, calls_from_json, load_json
from onnx_genai.tools.scan import Scan, could_be, skip_space
from onnx_genai.tools.schemas import ToolSchemas

__all__ = ["CommandR", "DeepSeek", "Hermes", "JsonList", "Mistral"]


def _broken(text: str, closer: str, start: int, *, at_end: bool) -> Region | None:
    """What is no call is text up to its closing mark, or up to the end if there is none."""
    found = text.find(closer, start) if closer else -1
    if found < 0:
        return Region(len(text)) if at_end else None
    return Region(found + len(closer))


class JsonList:
    """A mark, a JSON object or a list of them, and perhaps a closing mark."""

    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()

    def __init__(
        self,
        name: str,
        opener: str,
        closer: str = "",
        *,
        name_keys: Sequence[str] = ("name",),
        argument_keys: Sequence[str] = ("arguments", "parameters"),
    ) -> None:
        """``closer`` is left out by models that end their turn after the list."""
        self.name = name
        self.openers = (opener,)
        self.marks = (opener, closer)
        self._closer = closer
        self._name_keys = tuple(name_keys)
        self._argument_keys = tuple(argument_keys)

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        opener, closer = self.openers[0], self._closer
        start = skip_space(text, len(opener))
        if start == len(text):
            return Region(len(text)) if at_end else None
        if text[start] not in "[{":
            return Region(len(opener))
        end = scan.json_end(text, start)
        if end is None:
            return _broken(text, closer, start, at_end=True) if at_end else None
        close = end
        if closer:
            close = skip_space(text, end)
            if text.startswith(closer, close):
                close += len(closer)
            elif not closer.startswith(text[close:]):
                return _broken(text, closer, end, at_end=at_end)
            elif not at_end:
                return None
            # The end-of-turn token often stands where the mark should.
            elif close == len(text):
                close = end
            else:
                return Region(len(text))
        return Region(
            close, calls_from_json(text[start:end], name_keys=self._name_keys, argument_keys=self._argument_keys)
        )


class Hermes:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, and Qwen3-Coder's XML between the same marks."""

    name = "hermes"
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    openers = ("<tool_call>",)
    marks = ("<tool_call>", "</tool_call>")
    _closer = "</tool_call>"
    _function = re.compile(r"<function=([^>\s]+)>")
    _parameter = re.compile(r"\s*<parameter=([^>]+)>\n?")

    def __init__(self) -> None:
        self._json = JsonList(self.name, self.openers[0], self._closer)

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        start = skip_space(text, len(self.openers[0]))
        if start < len(text) and text[start] == "<":
            return self._parse_xml(text, start, tools, scan, at_end=at_end)
        return self._json.parse(text, tools, scan, at_end=at_end)

    def _parse_xml(self, text: str, start: int, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        # A value may hold the closing mark only after </function>, so that is what ends the block.
        body = scan.find(text, start, "</function>")
        if body < 0:
            if at_end or not could_be("<function=", text[start : start + len("<function=")]):
                return _broken(text, self._closer, start, at_end=at_end)
            return None
        close = skip_space(text, body + len("</function>"))
        if not text.startswith(self._closer, close):
            if self._closer.startswith(text[close:]) and not at_end:
                return None
            if close < len(text):
                return _broken(text, self._closer, start, at_end=at_end)
        end = min(len(text), close + len(self._closer))
        call = self._xml_call(text[start:body], tools)
        return Region(end, () if call is None else (call,))

    def _xml_call(self, body: str, tools: ToolSchemas) -> Call | None:
        head = self._function.match(body)
        if head is None:
            return None
        name, position = head[1], head.end()
        arguments: dict[str, object] = {}
        while position < len(body):
            parameter = self._parameter.match(body, position)
            if parameter is None:
                return None if body[position:].strip() else _call(name, arguments)
            end = body.find("</parameter>", parameter.end())
            if end < 0:
                return None
            value = body[parameter.end() : end]
            value = value[:-1] if value.endswith("\n") else value
            arguments[parameter[1].strip()] = _typed(value, text=tools.is_text(name, parameter[1].strip(), value))
            position = end + len("</parameter>")
        return _call(name, arguments)


def _call(name: str, arguments: dict[str, object]) -> Call | None:
    text = arguments_text(arguments)
    return None if text is None else Call(name, text)


def _typed(value: str, *, text: bool) -> object:
    """A value written as plain text: JSON unless the schema wants a text; what is no JSON stays text."""
    if text:
        return value
    try:
        return load_json(value)
    except ValueError:
        return value


class CommandR:
    """``Action: ```json [...] ``` `` of Command-R and R+, with the call that only says "answer now" left out."""

    name = "command_r"
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    openers = ("Action: ```json", "Action:```json")
    marks = openers
    _closer = "```"

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        opener = next(opener for opener in self.openers if text.startswith(opener))
        form = JsonList(self.name, opener, self._closer, name_keys=("tool_name",), argument_keys=("parameters",))
        region = form.parse(text, tools, scan, at_end=at_end)
        if region is None:
            return None
        wanted = tuple(call for call in region.calls if call.name != "directly_answer")
        return Region(region.length, wanted, silent=bool(region.calls))


class Mistral:
    """``[TOOL_CALLS]`` with a list of objects, or (from v11 on) ``name[CALL_ID]id[ARGS]{...}`` and ``name{...}``."""

    name = "mistral"
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    openers = ("[TOOL_CALLS]",)
    marks = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    _head = re.compile(r"\s*([A-Za-z_][\w.\-]*)(?:\s*\[CALL_ID\]\s*([\w\-]+))?(?:\s*\[ARGS\])?\s*(?=\{)")
    _head_begins = re.compile(r"\s*(?:[A-Za-z_][\w.\-]*\s*(?:\[[^{}]*)?)?")

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        opener = self.openers[0]
        start = skip_space(text, len(opener))
        if start == len(text):
            return Region(len(text)) if at_end else None
        if text[start] in "[{":
            return JsonList(self.name, opener).parse(text, tools, scan, at_end=at_end)
        head = self._head.match(text, len(opener))
        if head is None:
            begun = self._head_begins.fullmatch(text, len(opener))
            return None if begun is not None and not at_end else Region(len(opener))
        end = scan.json_end(text, head.end())
        if end is None:
            return Region(len(text)) if at_end else None
        try:
            arguments = arguments_text(load_json(text[head.end() : end]))
        except ValueError:
            arguments = None
        return Region(end, () if arguments is None else (Call(head[1], arguments, head[2] or ""),))


class DeepSeek:
    """DeepSeek R1 and V3 (``type<sep>name`` and fenced JSON) and V3.1 (``name<sep>{...}``) between their marks."""

    name = "deepseek"
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    openers = ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>")
    _all_end = "<｜tool▁calls▁end｜>"
    _end = "<｜tool▁call▁end｜>"
    marks = (*openers, _all_end, _end, "<｜tool▁sep｜>")
    _head = re.compile(r"\s*(?!\s)(?:function<｜tool▁sep｜>([^\n<]+)\n```json\n|([^\n<]+)<｜tool▁sep｜>\s*)(?=\{)")
    _head_begins = re.compile(r"\s*[^{}]{0,200}")

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        if text.startswith(self.openers[0]):
            # The outer marks carry nothing; each inner block is a region of its own.
            return Region(len(self.openers[0]), silent=True)
        start = len(self.openers[1])
        head = self._head.match(text, start)
        if head is None:
            begun = self._head_begins.fullmatch(text, start)
            if begun is not None and not at_end:
                return None
            return _broken(text, self._end, start, at_end=at_end)
        end = scan.json_end(text, head.end())
        if end is None:
            return _broken(text, self._end, start, at_end=at_end) if at_end else None
        close = skip_space(text, end)
        if head[1] is not None and text.startswith("```", close):
            close = skip_space(text, close + 3)
        if not text.startswith(self._end, close):
            rest = text[close:]
            if (self._end.startswith(rest) or "```".startswith(rest)) and not at_end:
                return None
            return _broken(text, self._end, start, at_end=at_end)
        close += len(self._end)
        outer = skip_space(text, close)
        if text.startswith(self._all_end, outer):
            close = outer + len(self._all_end)
        elif self._all_end.startswith(text[outer:]) and not at_end:
            return None
        try:
            arguments = arguments_text(load_json(text[head.end() : end]))
        except ValueError:
            arguments = None
        name = (head[1] or head[2]).strip()
        return Region(close, () if arguments is None or not name else (Call(name, arguments),))
