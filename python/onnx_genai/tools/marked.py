"""Formats whose calls stand between marks: Hermes, Qwen3-Coder, Granite, Phi-4, Command-R, Mistral, DeepSeek."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from onnx_genai.tools.calls import Call, Region, arguments_text, calls_from_json, load_json
from onnx_genai.tools.scan import Scan, begun, skip_space
from onnx_genai.tools.schemas import ToolSchemas

__all__ = ["CommandR", "DeepSeek", "Hermes", "JsonList", "Mistral"]


def _begun(text: str, *, at_end: bool, closer: str = "", start: int = 0) -> Region | None:
    """What may still become a call; with its closing mark from ``start`` on it was ended, and is text up to there."""
    if not at_end:
        return None
    found = text.find(closer, start) if closer else -1
    return Region(len(text), unfinished=True) if found < 0 else Region(found + len(closer))


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
        keys = "|".join(map(re.escape, name_keys))
        # A list of something else than objects, or a name that is no text.
        self._wrong_head = re.compile(r'\[\s*[^{\s]|(?:\[\s*)?\{\s*"(?:' + keys + r')"\s*:\s*[^"\s]')

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        opener, closer = self.openers[0], self._closer
        start = len(opener) - 1 if opener.endswith("[") else skip_space(text, len(opener))
        if start == len(text):
            return _begun(text, at_end=at_end)
        if text[start] not in "[{" or self._wrong_head.match(text, start):
            return Region(len(opener))
        end = scan.json_end(text, start)
        if end is None:
            return _begun(text, at_end=at_end, closer=closer, start=start)
        if end == start:
            return Region(len(opener))
        close = end
        if closer:
            close = skip_space(text, end)
            if text.startswith(closer, close):
                close += len(closer)
            elif not closer.startswith(text[close:]):
                return Region(end)
            elif not at_end:
                return None
            else:  # the end-of-turn token often stands where the mark should
                close = len(text)
        calls = calls_from_json(text[start:end], name_keys=self._name_keys, argument_keys=self._argument_keys)
        return Region(close, calls)


class Hermes:
    """``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, and Qwen3-Coder's XML between the same marks."""

    name = "hermes"
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    openers = ("<tool_call>",)
    marks = ("<tool_call>", "</tool_call>")
    _closer = "</tool_call>"
    _function = re.compile(r"<function=([^>\s]{1,256})>")
    _function_begun = re.compile(begun("<function=") + r"|<function=[^>\s]{0,256}")
    _parameter = re.compile(r"\s*<parameter=([^<>\n]{1,256})>\n?")
    _parameter_begun = re.compile(r"\s*(?:" + begun("<parameter=") + r"|<parameter=[^<>\n]{0,256})?")

    def __init__(self) -> None:
        self._json = JsonList(self.name, self.openers[0], self._closer)

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        start = skip_space(text, len(self.openers[0]))
        if start < len(text) and text[start] == "<":
            return self._parse_xml(text, start, tools, scan, at_end=at_end)
        return self._json.parse(text, tools, scan, at_end=at_end)

    def _parse_xml(self, text: str, start: int, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        body = self._xml_end(text, start, scan)
        if body is None:
            return _begun(text, at_end=at_end, closer=self._closer, start=start)
        if body == start:
            return Region(len(self.openers[0]))
        close = skip_space(text, body + len("</function>"))
        if text.startswith(self._closer, close):
            close += len(self._closer)
        elif not self._closer.startswith(text[close:]):
            return Region(body + len("</function>"))
        elif not at_end:
            return None
        else:
            close = len(text)
        call = self._xml_call(text[start:body], tools)
        return Region(close, () if call is None else (call,))

    def _xml_end(self, text: str, start: int, scan: Scan) -> int | None:
        """Index of ``</function>``; None while it is not there, ``start`` as soon as no more text makes a call.

        A value may hold the closing mark, so that ``</function>`` is what ends the block.
        """
        if scan.reached == 0:
            head = self._function.match(text, start)
            if head is None:
                return None if self._function_begun.fullmatch(text, start) else start
            scan.reached = head.end()
        while True:
            place = skip_space(text, scan.reached)
            if text.startswith("</function>", place):
                return place
            if "</function>".startswith(text[place:]):
                return None
            parameter = self._parameter.match(text, scan.reached)
            if parameter is None:
                return None if self._parameter_begun.fullmatch(text, scan.reached) else start
            end = scan.find(text, parameter.end(), "</parameter>", "</function>")
            if end < 0:
                return None
            if not text.startswith("</parameter>", end):
                return start
            scan.reached = end + len("</parameter>")

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
        return dataclasses.replace(region, calls=wanted, silent=bool(region.calls))


class Mistral:
    """``[TOOL_CALLS]`` with a list of objects, or (from v11 on) ``name[CALL_ID]id[ARGS]{...}`` and ``name{...}``."""

    name = "mistral"
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    openers = ("[TOOL_CALLS]",)
    marks = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]")
    _head = re.compile(r"\s*([A-Za-z_][\w.\-]*)(?:\s*\[CALL_ID\]\s*([\w\-]+))?(?:\s*\[ARGS\])?\s*(?=\{)")
    _head_begun = re.compile(
        r"\s*(?:[A-Za-z_][\w.\-]*\s*(?:" + begun("[CALL_ID]") + "|" + begun("[ARGS]") + r"|\[ARGS\]\s*"
        r"|\[CALL_ID\]\s*(?:[\w\-]+\s*(?:" + begun("[ARGS]") + r"|\[ARGS\]\s*)?)?)?)?"
    )

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        opener = self.openers[0]
        start = skip_space(text, len(opener))
        if start < len(text) and text[start] in "[{":
            return JsonList(self.name, opener).parse(text, tools, scan, at_end=at_end)
        head = self._head.match(text, len(opener))
        if head is None:
            is_begun = self._head_begun.fullmatch(text, len(opener)) is not None
            return _begun(text, at_end=at_end) if is_begun else Region(len(opener))
        end = scan.json_end(text, head.end())
        if end is None:
            return _begun(text, at_end=at_end)
        if end == head.end():
            return Region(len(opener))
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
    _head = re.compile(
        r"\s*(?!\s)(?:function<｜tool▁sep｜>(?!\s*\{)([^\n<]+)\n```json\n|([^\n<]+)<｜tool▁sep｜>\s*)(?=\{)"
    )
    _head_begun = re.compile(
        r"\s*(?!\s)(?:" + begun("function<｜tool▁sep｜>") + r"|function<｜tool▁sep｜>[^\n<]{0,200}"
        r"(?:\n|\n" + begun("```json\n") + r")?|[^\n<]{0,200}(?:" + begun("<｜tool▁sep｜>") + r"|<｜tool▁sep｜>\s*)?)"
    )

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        if text.startswith(self.openers[0]):
            # The outer marks carry nothing; each inner block is a region of its own.
            return Region(len(self.openers[0]), silent=True)
        start = len(self.openers[1])
        head = self._head.match(text, start)
        if head is None:
            is_begun = not text[start:].strip() or self._head_begun.fullmatch(text, start) is not None
            return _begun(text, at_end=at_end) if is_begun else Region(start)
        end = scan.json_end(text, head.end())
        if end is None:
            return _begun(text, at_end=at_end, closer=self._end, start=start)
        if end == head.end():
            return Region(start)
        close = skip_space(text, end)
        if head[1] is not None and text.startswith("```", close):
            close = skip_space(text, close + 3)
        if not text.startswith(self._end, close):
            rest = text[close:]
            if self._end.startswith(rest) or (head[1] is not None and "```".startswith(rest)):
                return _begun(text, at_end=at_end)
            return Region(end)
        close += len(self._end)
        outer = skip_space(text, close)
        if text.startswith(self._all_end, outer):
            close = outer + len(self._all_end)
        elif self._all_end.startswith(text[outer:]):
            if not at_end:
                return None
            close = len(text)
        try:
            arguments = arguments_text(load_json(text[head.end() : end]))
        except ValueError:
            arguments = None
        name = (head[1] or head[2]).strip()
        return Region(close, () if arguments is None or not name else (Call(name, arguments),))
