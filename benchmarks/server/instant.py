"""A model that takes no time: what is left of a server's work is the server's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from onnx_genai.types import ChatChunk, Chunk, SamplingParams, Usage

__all__ = ["InstantLLM"]

_WORD = " word"


class InstantLLM:
    """In the place of ``AsyncLLM``: says the same word again and again, one token a turn of the event loop.

    All streams that are open take turns, as those of a batch do.
    """

    def __init__(self) -> None:
        self.context_limit = None
        self.template = object()
        self.tokenizer = SimpleNamespace(encode=lambda text, add_special_tokens=True: list(range(len(text.split()))))
        self.engine = SimpleNamespace(closed=False, is_encoder_decoder=False)

    def info(self) -> dict[str, object]:
        return {}

    def metrics(self) -> dict[str, float]:
        return {}

    def check_room(self, prompt: object) -> None:
        """There is room for every prompt."""

    async def stream(self, prompt: Sequence[int], params: SamplingParams, **_: Any) -> AsyncIterator[Chunk]:
        count = params.max_new_tokens or 1
        for number in range(1, count + 1):
            await asyncio.sleep(0)
            last = number == count
            yield Chunk(
                index=0,
                text=_WORD,
                token_ids=(5,),
                finish_reason="length" if last else None,
                usage=Usage(prompt_tokens=len(prompt), completion_tokens=count) if last else None,
            )

    async def chat_stream(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams, **_: Any
    ) -> AsyncIterator[ChatChunk]:
        async for chunk in self.stream(range(len(messages)), params):  # type: ignore[arg-type]
            yield ChatChunk(
                index=0,
                content=chunk.text,
                token_ids=chunk.token_ids,
                finish_reason=chunk.finish_reason,
                usage=chunk.usage,
            )

    async def close(self) -> None:
        return None
