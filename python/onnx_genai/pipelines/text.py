"""Text generation on one package: :class:`LLM`."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, cast, overload

from onnx_genai.engine import Generation, Profile, RequestOptions, Verbosity
from onnx_genai.errors import QueueFullError
from onnx_genai.grammar import GrammarSpec
from onnx_genai.pipelines.chat import ChatRequest, Tool, ToolChoice, listed_tools
from onnx_genai.pipelines.profile_run import ProfileRun, ended
from onnx_genai.pipelines.session import Session
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

__all__ = ["LLM"]


class LLM(TextModel):
    """A language model that is ready to generate. Safe to use from many threads; requests share the model.

    Args and errors: see the base class. Every call that generates takes these options of a request:

    * ``priority``: higher runs first, and may take the place of a running request of lower priority; 0 by default.
    * ``timeout``: seconds from now to the last token; then ``DeadlineError``. None is no limit.
    * ``cache_salt``: only requests with the same salt share cached KV.
    * ``adapter``: name of a LoRA adapter that :meth:`load_adapter` loaded; None runs without one. Requests with
      different adapters run side by side, and share no KV.

    Example:
        >>> with LLM("smollm2") as llm:  # doctest: +SKIP
        ...     print(llm.generate("The sky is", SamplingParams(max_new_tokens=8)).text)
    """

    # The overlap is a list of ids, which the first signature takes as one prompt, and so does the code.
    @overload
    def generate(  # type: ignore[overload-overlap]
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
    def generate(
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
    def generate(
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
        """Generates for one prompt, or for a list of prompts at once.

        Args:
            prompts: Text, token ids, or a list of those (each text or ids). Text is taken as it is, without a chat
                template, see :meth:`chat`.
            params: For all prompts, or one for each.
            priority: See the class; for all prompts, as are the next three.
            timeout: See the class.
            cache_salt: See the class.
            adapter: See the class.
            grammar: What every answer must look like; made by the functions of :mod:`onnx_genai.grammar`. An answer
                that runs out of tokens is led to a short end that fits, and has the finish reason ``length``.
            suffix: Text that follows, for coder models: the answer is what belongs between prompt and suffix.

        Returns:
            A result, or a list of results in the order of the prompts.

        Raises:
            InvalidArgumentError, ContextOverflowError: A prompt or parameter is refused. Nothing was generated.
            QueueFullError: ``max_queue`` requests of others are open; a list itself may be longer.
            DeadlineError: The time ran out.
            GenAIError: A request failed; the others of the list are dropped.
        """
        options = self._options(priority, timeout, cache_salt, adapter, grammar)
        if is_single(prompts):
            generation, ids = self._submit(cast("Prompt", prompts), single_params(params), options, suffix)
            return _result(generation, ids)
        many = cast("Sequence[Prompt]", prompts)
        each = params_for(many, params)
        started: deque[tuple[Generation, tuple[int, ...]]] = deque()
        results: list[Result] = []
        try:
            for prompt, own in zip(many, each, strict=True):
                # A list may be longer than the queue: the rest waits here until its first answers are done.
                while True:
                    try:
                        started.append(self._submit(prompt, own, options, suffix))
                        break
                    except QueueFullError:
                        if not started:
                            raise
                        results.append(_result(*started[0]))
                        started.popleft()
            results.extend(_result(generation, ids) for generation, ids in started)
            return results
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
    ) -> Iterator[Chunk]:
        """Starts one request and returns its pieces as they come. Leaving the iterator aborts the request.

        Raises:
            InvalidArgumentError, ContextOverflowError: At once, before the first piece.
        """
        options = self._options(priority, timeout, cache_salt, adapter, grammar)
        return iter(self._submit(prompt, params, options, suffix)[0])

    def chat(
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
        """Renders the messages with the chat template and generates the assistant's answer.

        Args:
            messages: As the template takes them; ``result.message`` of an earlier answer is one.
            params: How answers are sampled.
            tools: OpenAI's objects, or functions with annotations (they are not called). A template that knows no
                tools gets them described in a system message.
            tool_choice: ``auto`` leaves it to the model, ``none`` does not offer them; ``required``, or an object that
                names a function, forces a call whose arguments fit its schema.
            parallel_tool_calls: Whether a forced answer may have several calls.
            tool_format: How the model writes calls (:data:`onnx_genai.tools.FORMATS`); None finds it in the template.
            enforce_tool_calls: With ``auto``: once a call has begun, it must become a right one.
            response_format: What the answer must look like, unless it is a call: a pydantic model, a dataclass or
                another type, a JSON schema, OpenAI's ``response_format``, or a grammar of :mod:`onnx_genai.grammar`.
                What runs out of tokens is led to a short end that fits, and has the finish reason ``length``.
            template_kwargs: Further variables of the template, such as ``enable_thinking``.
            priority: See the class, as the next three.
            timeout: See the class.
            cache_salt: See the class.
            adapter: See the class.

        Returns:
            A result whose ``text`` is the answer alone; see ``message``, ``tool_calls``, ``reasoning`` and ``parsed``.

        Raises:
            UnsupportedError: The package has no chat template.
            InvalidArgumentError, ContextOverflowError: Something is refused. Nothing was generated.
        """
        request = ChatRequest(
            tools=listed_tools(tools),
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            enforce_tool_calls=enforce_tool_calls,
            response_format=response_format,
        )
        began = time.perf_counter()
        options = self._options(priority, timeout, cache_salt, adapter)
        chat = self.prepare_chat(messages, params, request, template_kwargs=template_kwargs)
        options = dataclasses.replace(options, grammar=chat.grammar).left(began)
        return chat.read(self._engine.submit(chat.prompt_ids, chat.params, options).result())

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
    ) -> Iterator[ChatChunk]:
        """As :meth:`chat`, in pieces as they come: reasoning, text, and each call when it is complete.

        Leaving the iterator aborts the request.
        """
        request = ChatRequest(
            tools=listed_tools(tools),
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            tool_format=tool_format,
            enforce_tool_calls=enforce_tool_calls,
            response_format=response_format,
        )
        began = time.perf_counter()
        options = self._options(priority, timeout, cache_salt, adapter)
        chat = self.prepare_chat(messages, params, request, template_kwargs=template_kwargs)
        options = dataclasses.replace(options, grammar=chat.grammar).left(began)
        generation = self._engine.submit(chat.prompt_ids, chat.params, options)
        reader = chat.reader()
        return (reader.read(chunk) for chunk in generation)

    def session(self, *, cache_salt: str = "", adapter: str | None = None) -> Session:
        """Returns an empty :class:`Session`: a text that grows turn by turn.

        Args:
            cache_salt: Its KV is shared with requests and sessions of the same salt.
            adapter: The LoRA adapter that its turns run with; see :meth:`load_adapter`.
        """
        return Session(self, cache_salt=cache_salt, adapters=self._engine.adapters.spans(adapter))

    def load_session(
        self,
        path: str | Path,
        *,
        cache_salt: str = "",
        adapter: str | None = None,
        allow_recompute: bool = False,
    ) -> Session:
        """Returns a session that :meth:`Session.save` wrote, and puts its KV into the cache.

        Args:
            path: The file.
            cache_salt: As in :meth:`session`; the file has none.
            adapter: As in :meth:`session`: the one that it was saved with.
            allow_recompute: Take the tokens even if the KV cannot be used (another model with the same vocabulary,
                another KV type, damaged bytes); it is then computed with the next turn.

        Raises:
            NotFoundError: There is no such file.
            PackageError: It is no session file, is damaged, or was made with another model.
        """
        session = Session(self, cache_salt=cache_salt, adapters=self._engine.adapters.spans(adapter))
        session.restore(path, allow_recompute=allow_recompute)
        return session

    def load_adapter(self, path: str | Path, name: str) -> None:
        """Loads a LoRA adapter that requests may then name; while they run, too.

        Args:
            path: A file in ONNX Runtime's adapter format, usually ``*.onnx_adapter``, made for this export.
            name: How requests call it.

        Raises:
            InvalidArgumentError: The name is taken, or path or name are none.
            NotFoundError: There is no such file.
            PackageError: It is no adapter, or one of another model; the text says in what they differ.
            UnsupportedError: The model has no inputs for adapters.
        """
        self._engine.adapters.load(path, name)

    def start_profile(self, path: str | Path | None = None, verbosity: Verbosity = "full") -> None:
        """Starts to record what the model does; may be called while requests run.

        Args:
            path: Where :meth:`stop_profile` writes the timeline; None writes none.
            verbosity: ``decisions`` records steps, requests and KV, ``ops`` also operators of a part of the runs,
                ``full`` also each token.

        Raises:
            InvalidArgumentError: A profile is recorded already, the verbosity is not known, or the path cannot be a
                file.
            AbortedError: The model is closed.
        """
        self._profile_run = ProfileRun(self._engine, path, verbosity)

    def stop_profile(self) -> Profile:
        """Ends the recording, writes the timeline if a path was given, and returns the figures.

        Raises:
            InvalidArgumentError: None was started.
        """
        return ended(self._profile_run)

    @contextlib.contextmanager
    def profile(self, path: str | Path | None = None, verbosity: Verbosity = "full") -> Iterator[ProfileRun]:
        """:meth:`start_profile` and :meth:`stop_profile` around a block; the figures are ``run.result``.

        Example:
            >>> with llm.profile("trace.json") as run:  # doctest: +SKIP
            ...     llm.generate("The sky is")
            >>> run.result.time_to_first_token.p50  # doctest: +SKIP
        """
        run = ProfileRun(self._engine, path, verbosity)
        try:
            yield run
        finally:
            run.stop()

    def close(self) -> None:
        """Aborts what runs and frees the model; a second call does nothing."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _submit(
        self, prompt: Prompt, params: SamplingParams | None, options: RequestOptions, suffix: str | None = None
    ) -> tuple[Generation, tuple[int, ...]]:
        began = time.perf_counter()
        ids, own = self.prepared(*((prompt, params) if suffix is None else self.fill_in(prompt, suffix, params)))
        return self._engine.submit(ids, own, options.left(began)), plain_ids(ids)


def _result(generation: Generation, prompt_ids: tuple[int, ...]) -> Result:
    return dataclasses.replace(generation.result(), prompt_token_ids=prompt_ids)
