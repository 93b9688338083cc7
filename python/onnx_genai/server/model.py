"""A loaded model as the routes see it: :class:`ServedModel`. The only place that knows ``AsyncLLM``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from typing import Any

from onnx_genai.errors import InvalidArgumentError, UnsupportedError
from onnx_genai.pipelines import AsyncLLM, ModelKind
from onnx_genai.pipelines.chat import ChatRequest
from onnx_genai.server.errors import ApiError, late
from onnx_genai.types import Chunk, Result, SamplingParams, TokenLogprob, Usage

__all__ = ["CallPart", "ChatAnswer", "ChatCall", "ChatPart", "CompletionOptions", "ServedModel"]

_OF_GRAMMARS = ("the JSON schema ", "the Lark grammar ", "the grammar ")
_PLACES = ("_path", "packed_weights")
"""How facts end that name files."""
_LONG_TEXT = 512
"""Characters from which a text is tokenised outside of the event loop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOptions:
    """How a request is scheduled and cached."""

    priority: int = 0
    timeout: float | None = None
    """Seconds from ``arrived`` to the last token."""
    cache_salt: str = ""
    arrived: float = field(default_factory=time.perf_counter)

    def as_arguments(self) -> dict[str, Any]:
        """What a call now is given: the timeout is what is left of it.

        Raises:
            DeadlineError: Nothing is left.
        """
        timeout = self.timeout
        if timeout is not None:
            # Whole milliseconds, as errors show it.
            timeout = min(round(timeout - (time.perf_counter() - self.arrived), 3), timeout)
            if timeout <= 0:
                raise late(self.timeout)
        return {"priority": self.priority, "timeout": timeout, "cache_salt": self.cache_salt}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """A chat request."""

    messages: Sequence[Mapping[str, Any]]
    params: SamplingParams
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    response_format: Mapping[str, Any] | None = None
    format_name: str = "response_format"
    """How the route calls the format, for errors."""
    template_kwargs: Mapping[str, Any] | None = None
    options: CompletionOptions = field(default_factory=CompletionOptions)

    def as_arguments(self) -> dict[str, Any]:
        return {
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": self.response_format,
            "template_kwargs": self.template_kwargs,
            **self.options.as_arguments(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPart:
    """A tool call of an answer."""

    index: int
    id: str
    name: str
    arguments: str
    """JSON text of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPart:
    """A piece of a streamed answer, or a whole choice of one that is not streamed."""

    index: int
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[CallPart, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    usage: Usage | None = None
    """On the last piece of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """A whole answer."""

    choices: tuple[ChatPart, ...]
    usage: Usage


class ServedModel:
    """A loaded model."""

    def __init__(self, llm: AsyncLLM, *, adapter: str | None = None) -> None:
        """``adapter`` is what answers run with."""
        self._llm = llm
        self._adapter = adapter

    def with_adapter(self, name: str) -> ServedModel:
        """The same model, whose answers run with one of its adapters."""
        return ServedModel(self._llm, adapter=name)

    @property
    def context_limit(self) -> int | None:
        """Tokens that prompt and answer may have together; None if nothing limits them."""
        return self._llm.context_limit

    @property
    def kind(self) -> ModelKind:
        return "text"

    @property
    def has_chat_template(self) -> bool:
        return self._llm.template is not None

    @property
    def is_encoder_decoder(self) -> bool:
        """A prompt is a source, to which the answer stands apart."""
        return self._llm.engine.is_encoder_decoder

    @property
    def is_closed(self) -> bool:
        """The engine has ended, and nothing can be computed any more."""
        return self._llm.engine.closed

    def held_bytes(self) -> int:
        """Memory for weights and KV now, without what a run takes."""
        memory = self._llm.engine.memory()
        return sum(part or 0 for part in (memory.weights_bytes, memory.kv_bytes, memory.warm_bytes))

    def info(self) -> dict[str, object]:
        """Facts, as ``AsyncLLM.info``, without places in the file system."""
        return {name: value for name, value in self._llm.info().items() if not name.endswith(_PLACES)}

    def metrics(self) -> dict[str, float]:
        """Numbers of the engine; does not wait for it."""
        return self._llm.metrics()

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text."""
        if len(text) < _LONG_TEXT:
            return self._llm.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return await asyncio.to_thread(self._llm.tokenizer.encode, text, add_special_tokens=add_special_tokens)

    def check_room(self, prompt: str | Sequence[int]) -> None:
        """Refuses what cannot fit the context window, as far as that is known before it is tokenised.

        Raises:
            ContextOverflowError: It cannot.
        """
        self._llm.check_room(prompt)

    async def encode_prompt(self, prompt: str | Sequence[int]) -> Sequence[int]:
        """Token ids of a text, or ids, that are to be a prompt.

        Raises:
            ContextOverflowError: They cannot fit the context window.
        """
        self.check_room(prompt)
        return await self.encode(prompt) if isinstance(prompt, str) else prompt

    async def count(self, *texts: str) -> int:
        """Tokens that texts have by themselves."""
        return sum([len(await self.encode(text, add_special_tokens=False)) for text in texts if text])

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids."""
        return await asyncio.to_thread(self._llm.tokenizer.decode, ids, skip_special_tokens=skip_special_tokens)

    def token_text(self, token: int) -> str:
        """How one token is written in the vocabulary."""
        return self._llm.tokenizer.id_to_token(token) or ""

    async def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt that the chat template makes of messages."""
        self._need_template()
        return await asyncio.to_thread(
            self._llm.render,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            template_kwargs=template_kwargs,
        )

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of the prompt that :meth:`chat` would compute."""
        self._need_template()
        request = ChatRequest(tools=tuple(tools or ()))
        chat = await asyncio.to_thread(self._llm.prepare_chat, messages, None, request, template_kwargs=template_kwargs)
        return list(chat.prompt_ids)

    async def complete(
        self, prompt: str | Sequence[int], params: SamplingParams, options: CompletionOptions, suffix: str | None = None
    ) -> Result:
        """Continues a text or token ids, up to ``suffix`` if there is one."""
        ids, own = await self._prompt(prompt, suffix, params)
        return await self._llm.generate(ids, own, **options.as_arguments(), adapter=self._adapter)

    async def complete_stream(
        self, prompt: str | Sequence[int], params: SamplingParams, options: CompletionOptions, suffix: str | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """:meth:`complete`, piece by piece."""
        ids, own = await self._prompt(prompt, suffix, params)
        async with aclosing(self._llm.stream(ids, own, **options.as_arguments(), adapter=self._adapter)) as pieces:
            async for piece in pieces:
                yield piece

    async def chat(self, call: ChatCall) -> ChatAnswer:
        """Answers a chat."""
        self._need_template()
        with _named(call):
            result = await self._llm.chat(call.messages, call.params, **call.as_arguments(), adapter=self._adapter)
        return ChatAnswer(choices=tuple(_part(choice) for choice in result.choices), usage=result.usage)

    async def chat_stream(self, call: ChatCall) -> AsyncGenerator[ChatPart, None]:
        """:meth:`chat`, piece by piece."""
        self._need_template()
        with _named(call):
            stream = self._llm.chat_stream(call.messages, call.params, **call.as_arguments(), adapter=self._adapter)
            async with aclosing(stream) as pieces:
                async for piece in pieces:
                    yield _part(piece)

    async def close(self) -> None:
        """Aborts what runs and frees the model."""
        await self._llm.close()

    async def _prompt(
        self, prompt: str | Sequence[int], suffix: str | None, params: SamplingParams
    ) -> tuple[list[int], SamplingParams]:
        """Token ids and parameters that continue a prompt, up to ``suffix`` if there is one.

        Raises:
            ApiError: There is a suffix, and the model cannot fill in the middle.
        """
        if suffix is None:
            return (list(await self.encode_prompt(prompt))), params
        try:
            if not isinstance(prompt, str):
                raise UnsupportedError("the prompt is no text")
            return await asyncio.to_thread(self._llm.fill_in, prompt, suffix, params)
        except UnsupportedError as error:
            raise ApiError(
                400,
                "suffix is not supported: this model does not fill in the middle, or the prompt is no text.",
                param="suffix",
                code="unsupported_parameter",
            ) from error

    def _need_template(self) -> None:
        if not self.has_chat_template:
            raise ApiError(
                400, "This model has no chat template; use /v1/completions.", param="messages", code="no_chat_template"
            )


@contextmanager
def _named(call: ChatCall) -> Iterator[None]:
    """Names the field of the request whose grammar is refused, at once or where an answer cannot go on."""
    try:
        yield
    except InvalidArgumentError as error:
        name = call.format_name if call.response_format is not None else "tools" if call.tools else None
        if name is None or not str(error).startswith(_OF_GRAMMARS):
            raise
        raise ApiError(400, f"{name}: {error}", param=name, code="invalid_value") from error


def _part(piece: Any) -> ChatPart:
    """A choice or chunk of ``AsyncLLM``; a plain one has its whole text in ``text``."""
    content = getattr(piece, "content", None)
    return ChatPart(
        index=piece.index,
        content=(content if content is not None else getattr(piece, "text", "")) or "",
        reasoning=getattr(piece, "reasoning", None) or "",
        tool_calls=tuple(
            CallPart(index=call.index, id=call.id, name=call.name, arguments=call.arguments or "{}")
            for call in getattr(piece, "tool_calls", None) or ()
        ),
        finish_reason=piece.finish_reason,
        stop_reason=piece.stop_reason,
        token_ids=piece.token_ids,
        logprobs=piece.logprobs,
        usage=getattr(piece, "usage", None),
    )
