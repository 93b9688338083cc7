"""A plain model of the C++ detokenizer, written from the contract in ``cpp/genai/core/token_table.h``."""

from __future__ import annotations

from collections.abc import Sequence

from onnx_genai.tokenizer import TokenKind, TokenTableData

__all__ = ["detokenize"]


def detokenize(table: TokenTableData, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
    """Text of ``ids``, all at once."""
    out = bytearray()
    run = bytearray()
    at_start = True
    strips = table.strip_first_space

    def end_run() -> None:
        if run:
            try:
                bytes(run).decode("utf-8")
                out.extend(run)
            except UnicodeDecodeError:
                out.extend("\ufffd".encode() * len(run))
            run.clear()

    for token_id in ids:
        if token_id >= len(table.bytes):
            continue
        kind = table.kinds[token_id]
        # A special token without text is an id that does not exist.
        if kind is TokenKind.SPECIAL and (skip_special_tokens or not table.bytes[token_id]):
            continue
        if kind is TokenKind.BYTE and table.decoding == "byte_fallback":
            run.extend(table.bytes[token_id])
            at_start = False
            continue
        end_run()
        if at_start and token_id in table.first:
            out.extend(table.first[token_id])
            strips = False
        else:
            out.extend(table.bytes[token_id])
        at_start = False
    end_run()
    text = out.decode("utf-8", errors="replace")
    return text.removeprefix(" ") if strips else text
