"""The channels of gpt-oss: every message says where it belongs; calls are messages to a recipient."""

from __future__ import annotations

import re

from onnx_genai.tools.calls import Call, Region, arguments_text, load_json
from onnx_genai.tools.scan import Scan
from onnx_genai.tools.schemas import ToolSchemas

__all__ = ["Channels"]


class Channels:
    """``<|channel|>commentary to=functions.name <|constrain|>json<|message|>{...}<|call|>``.

    The header of a message may begin with ``<|start|>assistant``; the recipient may stand in either part of it.
    Messages of the final and commentary channels without a recipient are text, their marks are not; those of the
    analysis channel are reasoning and are taken out by :mod:`onnx_genai.reasoning` before this format sees them.
    """

    name = "channels"
    openers = ("<|start|>", "<|channel|>", "<|end|>", "<|return|>")
    marks = (*openers, "<|message|>", "<|constrain|>", "<|call|>")
    at_start: tuple[str, ...] = ()
    after_call: tuple[str, ...] = ()
    _head = re.compile(
        r"(?:<\|start\|>assistant)?(?:\s*to=(?P<early>[\w.\-]+))?"
        r"(?:\s*<\|channel\|>(?P<channel>\w+)(?:\s+to=(?P<late>[\w.\-]+))?)?"
        r"(?:\s*<\|constrain\|>)?(?:\s*(?P<kind>\w+))?\s*<\|message\|>"
    )
    _head_limit = 300
    _ends = ("<|call|>", "<|end|>", "<|return|>", "<|start|>")

    def parse(self, text: str, tools: ToolSchemas, scan: Scan, *, at_end: bool) -> Region | None:
        for mark in ("<|end|>", "<|return|>"):
            if text.startswith(mark):
                return Region(len(mark), silent=True)
        opener = next(mark for mark in self.openers if text.startswith(mark))
        if text.find("<|message|>", 0, self._head_limit) < 0:
            if len(text) >= self._head_limit:
                return Region(len(opener))
            return Region(len(text), unfinished=True) if at_end else None
        head = self._head.match(text)
        if head is None:
            return Region(len(opener))
        recipient = head["early"] or head["late"]
        if recipient is None:
            return Region(head.end(), silent=True)
        found = scan.find(text, head.end(), *self._ends)
        if found < 0 and not at_end:
            return None
        end = len(text) if found < 0 else found
        length = end + len("<|call|>") if text.startswith("<|call|>", end) else end
        if found < 0:
            # Without <|call|> the message may be cut off, but a whole object is a whole call.
            length = len(text)
        try:
            # Nothing at all is an empty object, but only of a message that has ended.
            body = text[head.end() : end].strip() or ("" if found < 0 else "{}")
            arguments = arguments_text(load_json(body))
        except ValueError:
            arguments = None
        name = recipient.removeprefix("functions.")
        calls = () if arguments is None else (Call(name, arguments),)
        may_go_on = found < 0 and self._body_begun(text[head.end() :].lstrip())
        return Region(length, calls, unfinished=may_go_on and not calls)

    def _body_begun(self, body: str) -> bool:
        """Whether more text may make a whole message of it: an object and a mark."""
        end = 0
        if body.startswith("{"):
            found = Scan().json_end(body, 0)
            if not found:
                return found is None
            end = found
        return any(mark.startswith(body[end:].lstrip()) for mark in self._ends)
