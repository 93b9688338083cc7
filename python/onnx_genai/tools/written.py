"""Formats that write calls as code: pythonic lists, the Python tag, Gemma's fences and function marks, bare JSON."""

from __future__ import annotations

import ast
import json
import re
import warnings

from onnx_genai.tools.calls import Call, Region, arguments_text, calls_from_json
from onnx_genai.tools.scan import Scan, begun, could_be, skip_space
from onnx_genai.tools.schemas import ToolSchemas

__all__ = ["FunctionGemma", "GemmaCode", "LlamaJson", "Pythonic"]

_MAX_CODE = 1 << 20
_MAX_CODE_BETWEEN_TEXTS = 1 << 15
"""Characters outside of strings: Python 3.10 has no bound of its own on how deep `a.b.c` and `1+1+1` nest."""
_STRING = re.compile(
    r"([A-Za-z]{0,3})("
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')",
    re.DOTALL,
)
_DOTTED = re.compile(r"[A-Za-z_][\w.]*")
_CALL_HEAD = re.compile(r"(?:print\s*\(\s*)?[A-Za-z_][\w.]*\s*\(\s*(?:\)|[^\W\d]\w*\s*=)")
_CALL_BEGUN = re.compile(r"(?:print\s*\(\s*)?(?:[A-Za-z_][\w.]*\s*(?:\(\s*(?:[^\W\d]\w*\s*)?)?)?")
_LONG_ENOUGH = 2000
"""Characters that tell whether a list is one of calls."""
_SPACE = re.compile(r"\s+")
_NAMES = {"true": True, "false": False, "null": None}
"""Words of JSON that models write in Python calls."""


class Pythonic:
    """``[f(a=1), g(b="x")]`` as the whole answer (Llama 3.2 and 4, and others), of tools that exist only."""

    name = "pythonic"
    openers: tuple[str, ...] = ()
    at_start: tuple[str, ...] = ("[",)
    after_call: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        if (at_end or scan.reached == 0) and not (
            _begins(text, "[", tools, "(") or _begins(text, "[print(", tools, "(")
        ):
            return Region(1)
        scan.reached = max(0, len(text) - _LONG_ENOUGH)
        end = scan.code_end(text, 0)
        if end is None:
            return Region(len(text), unfinished=True) if at_end else None
        calls = python_calls(text[:end])
        return Region(end, calls if all(call.name in tools for call in calls) else ())


class LlamaJson:
    """``{"name": ..., "parameters": {...}}`` as the whole answer, ``;`` between several, or after ``<|python_tag|>``.

    Behind the tag may also stand the call of a built-in tool, ``name.call(query="...")``. Without the tag only names of
    tools that exist are calls, because an answer may be JSON as well.
    """

    name = "llama3_json"
    openers = ("<|python_tag|>",)
    marks = openers
    at_start: tuple[str, ...] = ("{",)
    after_call: tuple[str, ...] = (";",)

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        if text.startswith(";"):
            return self._next(text, tools, scan, at_end=at_end)
        return self._one(text, tools, scan, at_end=at_end)

    def _next(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        """A semicolon behind a call: it belongs to the calls when another one or nothing follows."""
        following = skip_space(text, 1)
        if following == len(text):
            return Region(following, silent=True) if at_end else None
        if text[following] != "{":
            return Region(1)
        end = scan.json_end(text, following)
        if end == following:
            return Region(1)
        if end is None:
            return Region(len(text), unfinished=self._begun(text[following:], tools)) if at_end else None
        return Region(end, self._known(text[following:end], tools))

    def _one(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        tagged = text.startswith(self.openers[0])
        start = skip_space(text, len(self.openers[0])) if tagged else 0
        if start == len(text):
            return Region(len(text), unfinished=True) if at_end else None
        if text[start] != "{":
            return self._builtin(text, start, scan, at_end=at_end)
        end = scan.json_end(text, start)
        if end == start:
            return Region(max(1, start))
        if end is None:
            return Region(len(text), unfinished=tagged or self._begun(text, tools)) if at_end else None
        return Region(end, calls_from_json(text[start:end]) if tagged else self._known(text[start:end], tools))

    @staticmethod
    def _known(text: str, tools: ToolSchemas) -> tuple[Call, ...]:
        calls = calls_from_json(text)
        return calls if all(call.name in tools for call in calls) else ()

    @staticmethod
    def _begun(text: str, tools: ToolSchemas) -> bool:
        """Whether an object that was not closed is the call of a tool, as far as one can see."""
        heads = ('{"name":"', '{"type":"function","name":"')
        return any(_begins(text, head, tools, '"') for head in heads)

    @staticmethod
    def _builtin(text: str, start: int, scan: Scan, *, at_end: bool) -> Region | None:
        if not _could_be_call(text, start):
            return Region(len(LlamaJson.openers[0]))
        opened = text.find("(", start)
        end = None if opened < 0 else scan.code_end(text, opened)
        if end is None:
            return Region(len(text), unfinished=True) if at_end else None
        calls = python_calls(text[start:end])
        named = tuple(Call(call.name.removesuffix(".call"), call.arguments) for call in calls)
        return Region(end, named)


class GemmaCode:
    """Gemma's ```` ```tool_code ```` fence with one call a line, perhaps inside ``print()``."""

    name = "gemma"
    openers = ("```tool_code",)
    marks = openers
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    _closer = "\n```"
    _line = re.compile(r"[ \t\r]*\n\s*(?:\[\s*)?")

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        start = len(self.openers[0])
        line = self._line.match(text, start)
        if text[start:].strip(" \t\r") if line is None else not _could_be_call(text, line.end()):
            return Region(start)
        end = scan.find(text, start, self._closer)
        if end < 0:
            return Region(len(text), unfinished=True) if at_end else None
        return Region(end + len(self._closer), python_calls(text[start:end].strip()))


class FunctionGemma:
    """``<start_function_call>call:name{key:<escape>text<escape>,other:1}<end_function_call>``."""

    name = "function_gemma"
    openers = ("<start_function_call>",)
    marks = ("<start_function_call>", "<end_function_call>", "<escape>")
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    _closer = "<end_function_call>"
    _head = re.compile(r"\s*call:\s*([A-Za-z_][\w.\-]*)\s*\{")
    _head_whole = re.compile(_head.pattern + r"\s*(?:\}|[A-Za-z_][\w\-]*\s*:)")
    _head_begun = re.compile(
        r"\s*(?:" + begun("call:") + r"|call:\s*(?:[A-Za-z_][\w.\-]*\s*(?:\{\s*(?:[A-Za-z_][\w\-]*\s*)?)?)?)?"
    )
    _escape = "<escape>"
    _key = re.compile(r"([{,]\s*)([A-Za-z_][\w\-]*)\s*:")

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        start = len(self.openers[0])
        if not (self._head_whole.match(text, start) or self._head_begun.fullmatch(text, start)):
            return Region(start)
        end = text.find(self._closer, start)
        # The closing mark may stand inside an escaped text.
        while end >= 0 and text.count(self._escape, start, end) % 2:
            end = text.find(self._closer, end + 1)
        if end < 0:
            if not at_end:
                return None
            first = text.find(self._closer, start)
            return Region(len(text), unfinished=True) if first < 0 else Region(first + len(self._closer))
        call = self._call(text[start:end])
        return Region(end + len(self._closer), () if call is None else (call,))

    def _call(self, body: str) -> Call | None:
        head = self._head.match(body)
        if head is None or not body.rstrip().endswith("}"):
            return None
        # Escaped texts become JSON strings; then only the keys need quotes.
        pieces = body[head.end() - 1 :].strip().split(self._escape)
        if len(pieces) % 2 == 0:
            return None
        if any("\0" in piece for piece in pieces[::2]):
            return None
        # A key may stand behind a text and its comma, so places are held for the texts while keys are looked for.
        texts = iter(pieces[1::2])
        text = self._key.sub(r'\1"\2":', "\0".join(pieces[::2]))
        arguments = arguments_text(re.sub("\0", lambda _: json.dumps(next(texts)), text))
        return None if arguments is None else Call(head[1], arguments)


def _could_be_call(text: str, start: int) -> bool:
    """Whether a call in Python begins at ``start``, or may do so when more text comes."""
    return _CALL_HEAD.match(text, start) is not None or _CALL_BEGUN.fullmatch(text, start) is not None


def _begins(text: str, head: str, tools: ToolSchemas, tail: str) -> bool:
    """Whether ``head``, a tool's name and ``tail`` stand at the start, or as much of them as the text is long.

    White space does not count.
    """
    given = _SPACE.sub("", text)
    return any(could_be(f"{head}{name}{tail}", given) for name in tools)


def python_calls(code: str) -> tuple[Call, ...]:
    """The calls of a list, a call, or one call a line; empty unless all is calls with literal keyword arguments.

    Nothing is run: the code is parsed and only literals are read.
    """
    # What stands in an f-string is code.
    strings = sum(len(found[2]) for found in _STRING.finditer(code) if "f" not in found[1].lower())
    if len(code) > _MAX_CODE or len(code) - strings > _MAX_CODE_BETWEEN_TEXTS or "\0" in code:
        return ()
    nodes: list[ast.expr] = []
    try:
        for statement in _parsed(code.strip()).body:
            if not isinstance(statement, ast.Expr):
                return ()
            value = _without_print(statement.value)
            nodes.extend(value.elts if isinstance(value, ast.List) else [value])
        found = [_call(node) for node in nodes]
    # What a model writes may be no Python, no literal, no key of a dict, or nested too deeply.
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ()
    return tuple(call for call in found if call is not None) if all(found) else ()


def _parsed(code: str) -> ast.Module:
    """``ast.parse`` without its warnings, which would go to standard error and are no business of who runs a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def _without_print(node: ast.expr) -> ast.expr:
    wraps = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    return node.args[0] if wraps and isinstance(node, ast.Call) and len(node.args) == 1 else node


def _call(node: ast.expr) -> Call | None:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        return None
    name = ast.unparse(node.func)
    if not _DOTTED.fullmatch(name):
        return None
    values = {keyword.arg: _literal(keyword.value) for keyword in node.keywords}
    arguments = arguments_text(values) if _is_json(values) else None
    return None if arguments is None else Call(name, arguments)


def _literal(node: ast.expr) -> object:
    if isinstance(node, ast.Name) and node.id in _NAMES:
        return _NAMES[node.id]
    if isinstance(node, ast.List):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        pairs = zip(node.keys, node.values, strict=True)
        return {ast.literal_eval(key): _literal(value) for key, value in pairs if key is not None}
    value: object = ast.literal_eval(node)
    return value


def _is_json(value: object) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_json(item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return all(_is_json(item) for item in value)
    if isinstance(value, float):
        return value == value and abs(value) != float("inf")
    return value is None or isinstance(value, (bool, int, str))
