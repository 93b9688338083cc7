"""Fill in the middle: prompts for coder models, from marks in the tokenizer itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from onnx_genai.tokenizer.tokenizer import Tokenizer

__all__ = ["FimMarks", "find_fim_marks"]


@dataclass(frozen=True, slots=True)
class FimMarks:
    """The marks of a tokenizer, and which parts they stand before."""

    prefix: str
    suffix: str
    middle: str
    """"" where the answer follows the prefix without a mark."""
    hole: bool = False
    """``suffix`` stands where the gap is, and ``middle`` at the end (the same order of the texts)."""
    orders: tuple[Literal["psm", "spm"], ...] = ("psm", "spm")
    """Orders that the marks allow; the first is the usual one."""

    def prompt_ids(
        self,
        prefix: str,
        suffix: str,
        *,
        tokenizer: Tokenizer,
        order: Literal["psm", "spm"] | None = None,
    ) -> list[int]:
        """Prompt ids: the texts are encoded by themselves, so that marks inside them stay text.

        In front stands what the tokenizer puts before every text. The prefix is encoded as the beginning of a text, the
        suffix as what stands inside one.

        Args:
            prefix: The text before the gap.
            suffix: The text behind it.
            tokenizer: Has the marks.
            order: Prefix-suffix-middle or suffix-prefix-middle; None takes the usual one. Requires: it is in
                :attr:`orders`.
        """
        token_id = tokenizer.added_tokens.__getitem__
        before = [token_id(self.prefix), *tokenizer.encode(prefix, add_special_tokens=False, special_tokens="text")]
        behind = [token_id(self.suffix), *tokenizer.encode_inside(suffix)]
        parts = before + behind if (order or self.orders[0]) == "psm" else behind + before
        parts = [*tokenizer.ids_before_text, *parts]
        return [*parts, token_id(self.middle)] if self.middle else parts


_MARKS = (
    FimMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    FimMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    FimMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    FimMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", hole=True, orders=("psm",)),
    FimMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),
    FimMarks("<PRE>", "<SUF>", "<MID>"),
    FimMarks("[PREFIX]", "[SUFFIX]", "[MIDDLE]", orders=("spm",)),
    FimMarks("[PREFIX]", "[SUFFIX]", "", orders=("spm",)),
)
STOPS = (
    "<|fim_pad|>",
    "<|endoftext|>",
    "<|file_sep|>",
    "<|repo_name|>",
    "<file_sep>",
    "<|cursor|>",
    "▁<EOT>",
    "<EOT>",
    "<fim_pad>",
)
"""Tokens that end an answer besides the marks, where the tokenizer has them."""


def find_fim_marks(tokens: Collection[str]) -> FimMarks | None:
    """Returns the marks that a tokenizer has among its tokens; None if it is no coder's."""
    known = set(tokens)
    for marks in _MARKS:
        if {marks.prefix, marks.suffix, *([marks.middle] if marks.middle else [])} <= known:
            return marks
    return None
