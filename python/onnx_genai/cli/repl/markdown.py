"""Markdown for a terminal: :func:`render`, and :func:`split_finished` for text that still comes."""

from __future__ import annotations

import functools
import io
import itertools
import re
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import CodeBlock, Heading, ListItem, Markdown, MarkdownElement, Paragraph
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.text import Text
from rich.theme import Theme

__all__ = ["THEME", "is_table", "render", "split_finished"]

_ESCAPES = re.compile(r"\x1b\[[\d;]*m")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")

# Colours of the terminal's own palette, and no background: readable on dark and on light.
THEME = Theme(
    {
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "italic",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.link": "underline",
        "markdown.link_url": "underline",
        "markdown.hr": "dim",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.h5": "italic",
        "markdown.h6": "italic",
        "markdown.table.header": "bold",
        "markdown.table.border": "dim",
    }
)


@functools.cache
def _code_theme() -> ANSISyntaxTheme:
    """Colours for code that can be read on dark and on light; most of it has none."""
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    colours = {
        Comment: "dim italic",
        Keyword: "blue",
        Operator.Word: "blue",
        Name.Builtin: "cyan",
        Name.Class: "bold",
        Name.Decorator: "magenta",
        Name.Function: "bold",
        Name.Tag: "blue",
        Number: "magenta",
        String: "green",
    }
    return ANSISyntaxTheme({token: Style.parse(colour) for token, colour in colours.items()})


def _parser() -> MarkdownIt:
    # HTML is shown as text, or it would vanish; a backslash stays, as formulas are full of them.
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable(["escape"])


class _Heading(Heading):
    """At the left, in bold."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        yield self.text


class _Paragraph(Paragraph):
    """Without spaces that fill the line, so that what is copied has none."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.text


class _CodeBlock(CodeBlock):
    """Indented by two, without a background."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = Syntax(
            str(self.text).rstrip(), self.lexer_name, theme=_code_theme(), word_wrap=True, background_color="default"
        )
        inner = options.update(width=max(1, options.max_width - 2))
        for line in console.render_lines(code, inner, pad=False):
            yield Text("  ", end="")
            yield from line
            yield Text("")


class _ListItem(ListItem):
    """Numbers with their dot."""

    def render_number(self, console: Console, options: ConsoleOptions, number: int, last_number: int) -> RenderResult:
        """The item with a number before its first line."""
        label = f"{number}. ".rjust(len(f" {last_number}. "))
        style = console.get_style("markdown.item.number")
        inner = options.update(width=max(1, options.max_width - len(label)))
        for line in console.render_lines(self.elements, inner, pad=False):
            yield Segment(label, style)
            yield from line
            yield Segment.line()
            label = " " * len(label)


class _Answer(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = {
        **Markdown.elements,
        "paragraph_open": _Paragraph,
        "heading_open": _Heading,
        "list_item_open": _ListItem,
        "fence": _CodeBlock,
        "code_block": _CodeBlock,
    }

    def __init__(self, markup: str) -> None:
        super().__init__(markup, hyperlinks=False)
        self.parsed = _parser().parse(markup)
        for token in self.parsed:
            _keep_line_ends(token)


def _keep_line_ends(token: Token) -> None:
    """A line end that the model wrote is one on the screen: answers have verses and addresses."""
    for child in token.children or ():
        if child.type == "softbreak":
            child.type = "hardbreak"


def split_finished(source: str) -> tuple[str, str]:
    """Cuts before the last block: what comes later can only change what follows the cut."""
    blocks = _blocks(source)
    return "".join(blocks[:-1]), blocks[-1]


def is_table(source: str) -> bool:
    """There is a table in it, whose columns may still change their widths."""
    return any(token.type == "table_open" for token in _parser().parse(source) if token.level == 0)


def render(source: str, width: int, *, colours: bool) -> list[str]:
    """The lines of a Markdown text, with colours as escape sequences, none longer than ``width`` columns."""
    lines: list[str] = []
    for block in _blocks(source):
        rendered = _rendered(block, width, colours=colours)
        lines += ["", *rendered] if lines and rendered else rendered
    return lines


def _blocks(source: str) -> list[str]:
    """The text, cut before each block but the first; one piece at least."""
    starts = [token.map[0] for token in _parser().parse(source) if token.level == 0 and token.map is not None]
    lines = _LINES.findall(source)
    cuts = [0, *(start for start in dict.fromkeys(starts) if start and start != starts[0]), len(lines)]
    return ["".join(lines[begin:end]) for begin, end in itertools.pairwise(cuts)] or [""]


def _rendered(block: str, width: int, *, colours: bool) -> list[str]:
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(8, width),
        force_terminal=colours,
        no_color=not colours,
        color_system="standard" if colours else None,
        legacy_windows=False,
        theme=THEME,
    )
    console.print(_Answer(block))
    lines = [line.rstrip(" ") for line in buffer.getvalue().split("\n")]
    # Lists and tables come with empty lines of their own.
    while lines and _is_blank(lines[0]):
        del lines[0]
    while lines and _is_blank(lines[-1]):
        del lines[-1]
    return lines


def _is_blank(line: str) -> bool:
    return not _ESCAPES.sub("", line).strip()
