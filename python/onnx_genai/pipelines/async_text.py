"""Text generation for asyncio: :class:`AsyncLLM`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast, overload

from onnx_genai.engine import AsyncGeneration, Profile, RequestOptions, Verbosity
from onnx_genai.grammar import GrammarSpec
from onnx_genai.pipelines.async_session import AsyncSession
from onnx_genai.pipelines.async_stream import AsyncChatStream, AsyncTextStream, Begun
from onnx_genai.pipelines.background import DaemonThreads, closed
from onnx_genai.pipelines.chat import ChatRequest, PreparedChat, Tool, ToolChoice, listed_tools
from onnx_genai.pipelines.profile_run import ProfileRun, ended
from onnx_genai.pipelines.text_model import (
    ChatMessage,
    Prompt,
    TextModel,
    is_single,
    params_for,
    plain_ids,
    single_params,
)
from onnx_genai.types import ChatChunk, Chunk, Result, SamplingParams

__all__ = ["AsyncLLM"]

_COMPILING = DaemonThreads(2, "onnx-genai-grammar")


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
        adapter: str | None = None,
        grammar: GrammarSpec | None = None,
        suffix: str | None = None,
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
        adapter: str | None = None,
        grammar: GrammarSpec | None = None,
        suffix: str | None = None,
    ) -> list[Result]: ...
    async def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        adapter: str | None = None,
        grammar: GrammarSpec | None = None,
        suffix: str | None = None,
    ) -> Result | list[Result]:
        """As :meth:`LLM.generate <onnx_genai.LLM.generate>`."""
        options = self._options(priority, timeout, cache_salt, adapter, grammar)
        began = time.perf_counter()
        await self._compile(grammar)
        options = options.left(began)
        if is_single(prompts):
            generation, ids = self._submit(cast("Prompt", prompts), single_params(params), options, suffix)
            return await _result(generation, ids)
        many = cast("Sequence[Prompt]", prompts)
        each = params_for(many, params)
        started: list[tuple[AsyncGeneration, tuple[int, ...]]] = []
        try:
            for prompt, own in zip(many, each, strict=True):
                started.append(self._submit(prompt, own, options, suffix))
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
        adapter: str | None = None,
        grammar: GrammarSpec | None = None,
        suffix: str | None = None,
    ) -> AsyncTextStream:
        """As :meth:`LLM.stream <onnx_genai.LLM.stream>`, for ``async for``; read in the event loop that calls it.

        With a ``grammar``, which is compiled beside the loop, it begins with the first piece that is asked for.
        """
        options = self._options(priority, timeout, cache_salt, adapter, grammar)
        began = time.perf_counter()
        ids, own = self.prepared(*((prompt, params) if suffix is None else self.fill_in(prompt, suffix, params)))

        def submitted() -> Begun[Chunk]:
            return Begun(self._engine.submit_async(ids, own, options.left(began)), _as_it_is)

        async def compiled() -> Begun[Chunk]:
            await self._compile(grammar)
            return submitted()

        return AsyncTextStream(submitted() if grammar is None else compiled)

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str | None = None,
        enforce_tool_calls: bool = False,
        response_format: Any = None,
        template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        adapter: str | None = None,
    ) -> Result:
        """As :meth:`LLM.chat <onnx_genai.LLM.chat>`."""
        request = ChatRequest(
            tools=listed_tools(tools),
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            enforce_tool_calls=enforce_tool_calls,
            response_format=response_format,
        )
        options = self._options(priority, timeout, cache_salt, adapter)
        chat, generation = await self._start_chat(
            messages, params, request, template_kwargs=template_kwargs, options=options, until_end=True
        )
        return chat.read(await generation.result())

    def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None = None,
        *,
        tools: Sequence[Tool] | None = None,
        tool_choice: ToolChoice = "auto",
        parallel_tool_calls: bool = True,
        tool_format: str | None = None,
        enforce_tool_calls: bool = False,
        response_format: Any = None,
        template_kwargs: Mapping[str, Any] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        adapter: str | None = None,
    ) -> AsyncChatStream:
        """As :meth:`LLM.chat_stream <onnx_genai.LLM.chat_stream>`, for ``async for``; begins with the first piece."""
        request = ChatRequest(
            tools=listed_tools(tools),
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            enforce_tool_calls=enforce_tool_calls,
            response_format=response_format,
        )
        options = self._options(priority, timeout, cache_salt, adapter)

        async def start() -> Begun[ChatChunk]:
            chat, generation = await self._start_chat(
                messages, params, request, template_kwargs=template_kwargs, options=options, until_end=False
            )
            return Begun(generation, chat.reader().read)

        return AsyncChatStream(start)

    def session(self, *, cache_salt: str = "", adapter: str | None = None) -> AsyncSession:
        """As :meth:`LLM.session <onnx_genai.LLM.session>`."""
        return AsyncSession(self, cache_salt=cache_salt, adapters=self._engine.adapters.spans(adapter))

    async def load_session(
        self,
        path: str | Path,
        *,
        cache_salt: str = "",
        adapter: str | None = None,
        allow_recompute: bool = False,
    ) -> AsyncSession:
        """As :meth:`LLM.load_session <onnx_genai.LLM.load_session>`."""
        session = AsyncSession(self, cache_salt=cache_salt, adapters=self._engine.adapters.spans(adapter))
        await asyncio.to_thread(session.restore, path, allow_recompute=allow_recompute)
        return session

    async def load_adapter(self, path: str | Path, name: str) -> None:
        """As :meth:`LLM.load_adapter <onnx_genai.LLM.load_adapter>`."""
        await asyncio.to_thread(self._engine.adapters.load, path, name)

    async def start_profile(self, path: str | Path | None = None, verbosity: Verbosity = "full") -> None:
        """As :meth:`LLM.start_profile <onnx_genai.LLM.start_profile>`."""
        self._profile_run = await asyncio.to_thread(ProfileRun, self._engine, path, verbosity)

    async def stop_profile(self) -> Profile:
        """As :meth:`LLM.stop_profile <onnx_genai.LLM.stop_profile>`."""
        return await asyncio.to_thread(ended, self._profile_run)

    @contextlib.asynccontextmanager
    async def profile(
        self, path: str | Path | None = None, verbosity: Verbosity = "full"
    ) -> AsyncGenerator[ProfileRun, None]:
        """As :meth:`LLM.profile <onnx_genai.LLM.profile>`, for ``async with``."""
        run = await asyncio.to_thread(ProfileRun, self._engine, path, verbosity)
        try:
            yield run
        finally:
            await asyncio.to_thread(run.stop)

    async def close(self) -> None:
        """Aborts what runs and frees the model; a second call does nothing."""
        await closed(self._engine.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _start_chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None,
        request: ChatRequest,
        *,
        template_kwargs: Mapping[str, Any] | None,
        options: RequestOptions,
        until_end: bool,
    ) -> tuple[PreparedChat, AsyncGeneration]:
        began = time.perf_counter()
        chat = await asyncio.to_thread(self.prepare_chat, messages, params, request, template_kwargs=template_kwargs)
        await self._compile(chat.grammar)
        own = dataclasses.replace(options, grammar=chat.grammar).left(began)
        return chat, self._engine.submit_async(chat.prompt_ids, chat.params, own, until_end=until_end)

    async def _compile(self, grammar: GrammarSpec | None) -> None:
        """Compiles beside the loop; the engine finds the grammar again.

        In few threads of their own: this may take seconds, and must hold up neither templates nor the tokenizer.
        """
        if grammar is not None:
            await asyncio.get_running_loop().run_in_executor(_COMPILING, self._engine.compile_grammar, grammar)

    def _submit(
        self, prompt: Prompt, params: SamplingParams | None, options: RequestOptions, suffix: str | None
    ) -> tuple[AsyncGeneration, tuple[int, ...]]:
        began = time.perf_counter()
        ids, own = self.prepared(*((prompt, params) if suffix is None else self.fill_in(prompt, suffix, params)))
        return self._engine.submit_async(ids, own, options.left(began), until_end=True), plain_ids(ids)


def _as_it_is(chunk: Chunk) -> Chunk:
    return chunk


async def _result(generation: AsyncGeneration, prompt_ids: tuple[int, ...]) -> Result:
    return dataclasses.replace(await generation.result(), prompt_token_ids=prompt_ids)
