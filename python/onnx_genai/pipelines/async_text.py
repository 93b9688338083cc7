"""Text generation for asyncio: :class:`AsyncLLM`."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast, overload

from onnx_genai.engine import AsyncGeneration, RequestOptions
from onnx_genai.pipelines.async_session import AsyncSession
from onnx_genai.pipelines.text_model import (
    ChatMessage,
    Prompt,
    TextModel,
    is_single,
    params_for,
    plain_ids,
    single_params,
)
from onnx_genai.types import Result, SamplingParams

__all__ = ["AsyncLLM"]


class AsyncLLM(TextModel):
    """:class:`~onnx_genai.LLM` for asyncio: the same names, awaited or iterated over with ``async for``.

    The constructor loads the model and blocks meanwhile, as that of ``LLM``; in a running loop use
    ``await asyncio.to_thread(AsyncLLM, "smollm2")``. Any number of tasks, event loops and threads may use one model.
    Cancelling a task that waits for a result or a piece, or leaving ``async for``, aborts its request at once.

    Example:
        >>> async with AsyncLLM("smollm2") as llm:  # doctest: +SKIP
        ...     async for chunk in llm.stream("The sky is", SamplingParams(max_new_tokens=8)):
        ...         print(chunk.text, end="")
    """

    # The overlap is a list of ids, which the first signature takes as one prompt, and so does the code.
    @overload
    async def generate(  # type: ignore[overload-overlap]
        self,
        prompts: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> Result: ...
    @overload
    async def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> list[Result]: ...
    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> Result | list[Result]:
        """As :meth:`LLM.generate <onnx_genai.LLM.generate>`."""
        options = RequestOptions(priority=priority, timeout=timeout, cache_salt=cache_salt)
        if is_single(prompts):
            generation, ids = self._submit(cast("Prompt", prompts), single_params(params), options)
            return await _result(generation, ids)
        many = cast("Sequence[Prompt]", prompts)
        each = params_for(many, params)
        started: list[tuple[AsyncGeneration, tuple[int, ...]]] = []
        try:
            for prompt, own in zip(many, each, strict=True):
                started.append(self._submit(prompt, own, options))
            return [await _result(generation, ids) for generation, ids in started]
        finally:
            for generation, _ in started:
                generation.close()

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> AsyncGeneration:
        """As :meth:`LLM.stream <onnx_genai.LLM.stream>`, for ``async for``; read in the event loop that calls it."""
        options = RequestOptions(priority=priority, timeout=timeout, cache_salt=cache_salt)
        ids, own = self.prepared(prompt, params)
        return self._engine.submit_async(ids, own, options)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
    ) -> Result:
        """As :meth:`LLM.chat <onnx_genai.LLM.chat>`."""
        options = RequestOptions(priority=priority, timeout=timeout, cache_salt=cache_salt)
        prompt = self.encode_chat(messages, tools=tools, template_kwargs=template_kwargs)
        return await _result(*self._submit(prompt, params, options))

    def session(self, *, cache_salt: str = "") -> AsyncSession:
        """As :meth:`LLM.session <onnx_genai.LLM.session>`."""
        return AsyncSession(self, cache_salt=cache_salt)

    async def load_session(
        self, path: str | Path, *, cache_salt: str = "", allow_recompute: bool = False
    ) -> AsyncSession:
        """As :meth:`LLM.load_session <onnx_genai.LLM.load_session>`."""
        session = AsyncSession(self, cache_salt=cache_salt)
        await asyncio.to_thread(session.restore, path, allow_recompute=allow_recompute)
        return session

    async def close(self) -> None:
        """Aborts what runs and frees the model; a second call does nothing."""
        await asyncio.to_thread(self._engine.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def _submit(
        self, prompt: Prompt, params: SamplingParams | None, options: RequestOptions
    ) -> tuple[AsyncGeneration, tuple[int, ...]]:
        ids, own = self.prepared(prompt, params)
        return self._engine.submit_async(ids, own, options, until_end=True), plain_ids(ids)


async def _result(generation: AsyncGeneration, prompt_ids: tuple[int, ...]) -> Result:
    return dataclasses.replace(await generation.result(), prompt_token_ids=prompt_ids)
