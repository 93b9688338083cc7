"""One answer as it comes: :class:`Reply`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnx_genai.cli.profile import AnswerTimes
from onnx_genai.cli.profile_report import KvPages
from onnx_genai.cli.prompts import UNKNOWN_LIMIT_TOKENS
from onnx_genai.cli.repl.conversation import Message
from onnx_genai.cli.repl.settings import Settings
from onnx_genai.cli.stats import Stats, backend_name, finish_word, page_counts, resident_bytes
from onnx_genai.errors import ContextOverflowError
from onnx_genai.types import Chunk, SamplingParams, ToolCall
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM
    from onnx_genai.pipelines.answer import AnswerParser, AnswerPiece

__all__ = ["Piece", "Reply", "Request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a turn asks of the model."""

    messages: Sequence[Message]
    """The last one is the user's, or the result of a tool."""
    settings: Settings
    raw: bool = False
    """Only the text of the last message, without the template."""
    tools: Sequence[Mapping[str, Any]] = ()
    response_format: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A piece of an answer; what is not there is empty."""

    reasoning: str = ""
    content: str = ""
    tool_call: ToolCall | None = None


class Reply:
    """Iterate over its :class:`Piece` s, then ask how it went. Leaving the iterator stops the model.

    A piece may be empty: its tokens are counted, and their text comes later.
    """

    def __init__(self, llm: LLM, request: Request) -> None:
        """Starts the answer.

        Raises:
            ContextOverflowError: The prompt fills the window; the text has ``n/limit``.
            GenAIError: The template, the engine or a parameter refuses something.
        """
        self._llm = llm
        params = request.settings.params(package_temperature=llm.package.generation.temperature)
        self._parser: AnswerParser | None = None
        grammar = None
        if request.raw or llm.template is None:
            ids: Sequence[int] = llm.tokenizer.encode(str(request.messages[-1]["content"]))
        else:
            from onnx_genai.pipelines.chat import ChatRequest

            form = ChatRequest(tools=tuple(request.tools), response_format=request.response_format)
            kwargs = request.settings.template_kwargs
            chat = llm.prepare_chat(request.messages, params, form, template_kwargs=kwargs)
            ids, params, grammar = chat.prompt_ids, chat.params, chat.grammar
            self._parser = chat.form.parser()
        self.prompt_tokens = len(ids)
        self.asked_tokens = params.max_new_tokens
        self._before = page_counts(llm)
        self.times = AnswerTimes()
        self.finished: float | None = None
        self.last: Chunk | None = None
        self.content = ""
        self.tool_calls: list[ToolCall] = []
        self._stream = llm.stream(ids, self._bounded(ids, params), grammar=grammar)

    def __iter__(self) -> Iterator[Piece]:
        """Yields one piece at least for each step of the model."""
        for chunk in self._stream:
            self.times.add(chunk)
            self.last = chunk
            pieces = self._pieces(chunk)
            for piece in pieces:
                self.content += piece.content
                if piece.tool_call is not None:
                    self.tool_calls.append(piece.tool_call)
                yield piece
            if not pieces:
                yield Piece()
        self.finished = time.perf_counter()

    def close(self) -> None:
        """Stops the model; after the end it does nothing."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()
        self.finished = self.finished or time.perf_counter()

    @property
    def is_cut_inside_reasoning(self) -> bool:
        """It ended before there was an answer."""
        return self._parser is not None and self._parser.unfinished_reasoning

    @property
    def message(self) -> Message:
        """The answer as it becomes history: without reasoning."""
        content = self.content if self.content or not self.tool_calls else None
        message: Message = {"role": "assistant", "content": content}
        if self.tool_calls:
            message["tool_calls"] = [call.as_message() for call in self.tool_calls]
        return message

    @property
    def finish(self) -> str | None:
        """How it ended, in a word; ``interrupt`` if it was stopped."""
        reason = None if self.last is None else self.last.finish_reason
        if reason is None or self.last is None:
            return "interrupt" if self.finished is not None else None
        return finish_word(reason, self.last.stop_reason, asked_length=self.asked_tokens is not None)

    @property
    def started(self) -> float:
        return self.times.started

    def stats(self) -> Stats:
        """The numbers so far."""
        arrivals = self.times.token_times
        usage = None if self.last is None else self.last.usage
        return Stats(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=len(arrivals) if usage is None else usage.completion_tokens,
            cached_tokens=None if usage is None else usage.cached_tokens,
            context_limit=self._llm.context_limit,
            backend=backend_name(self._llm.info()),
            started=self.started,
            first_token=arrivals[0] if arrivals else None,
            last_token=arrivals[-1] if arrivals else None,
            budget_cap=self.times.budget_cap,
            resident=resident_bytes(),
            finished=self.finished,
            finish=self.finish,
            pages=KvPages.between(self._before, page_counts(self._llm)),
        )

    def _bounded(self, ids: Sequence[int], params: SamplingParams) -> SamplingParams:
        limit = self._llm.context_limit
        if limit and len(ids) >= limit:
            raise ContextOverflowError(
                f"the context is full: {len(ids)}/{counted(limit, 'token')} (limit from {self._llm.context_source})"
            )
        if params.max_new_tokens is not None or limit:
            return params
        return dataclasses.replace(params, max_new_tokens=UNKNOWN_LIMIT_TOKENS)

    def _pieces(self, chunk: Chunk) -> list[Piece]:
        if self._parser is None:
            return [Piece(content=chunk.text)] if chunk.text else []
        parts: list[AnswerPiece] = self._parser.feed(chunk.text)
        if chunk.finish_reason is not None:
            from onnx_genai.pipelines.answer import was_cut

            parts += self._parser.finish(was_cut=was_cut(chunk))
        return [Piece(reasoning=part.reasoning, content=part.content, tool_call=part.tool_call) for part in parts]
