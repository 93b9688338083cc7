"""The channels of gpt-oss: every message says where it belongs; calls are messages to a recipient."""

from __future__ import annotations

import re

from onnx_genai.tools.calls import Call, Region, ToolSchemas, arguments_text, load_json

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
    _head = re.compile(
        r"(?:<\|start\|>assistant)?(?:\s*to=(?P<early>[\w.\-]+))?\s*"
        r"(?:<\|channel\|>(?P<channel>\w+)(?:\s+to=(?P<late>[\w.\-]+))?)?"
        r"\s*(?:<\|constrain\|>)?\s*(?P<kind>\w+)?\s*<\|message\|>"
    )
    _head_limit = 300
    _ends = ("<|call|>", "<|end|>", "<|return|>", "<|start|>")

    def parse(self, text: str, tools: ToolSchemas, *, at_end: bool) -> Region | None:
        for mark in ("<|end|>", "<|return|>"):
            if text.startswith(mark):
                return Region(len(mark), silent=True)
        opener = next(mark for mark in self.openers if text.startswith(mark))
        message = text.find("<|message|>")
        if message < 0:
            return None if not at_end and len(text) < self._head_limit else Region(len(opener))
        head = self._head.match(text)
        if head is None:
            return Region(len(opener))
        recipient = head["early"] or head["late"]
        if recipient is None:
            return Region(head.end(), silent=True)
        found = [place for place in (text.find(mark, head.end()) for mark in self._ends) if place >= 0]
        if not found and not at_end:
            return None
        end = min(found, default=len(text))
        length = end + len("<|call|>") if text.startswith("<|call|>", end) else end
        if not found:
            # Without <|call|> the message may be cut off, but a whole object is a whole call.
            length = len(text)
        try:
            arguments = arguments_text(load_json(text[head.end() : end].strip() or "{}"))
        except ValueError:
            arguments = None
        name = recipient.removeprefix("functions.")
        return Region(length, () if arguments is None else (Call(name, arguments),))
