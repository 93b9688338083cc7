"""What :class:`~onnx_genai.LLM` and :class:`~onnx_genai.AsyncLLM` share: loading, prompts, templates, facts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from onnx_genai import package
from onnx_genai.engine import EngineOptions, ModelEngine, PromptIds, RequestOptions, describe_graph
from onnx_genai.errors import ContextOverflowError, InternalError, InvalidArgumentError, NotFoundError, UnsupportedError
from onnx_genai.grammar import GrammarSpec
from onnx_genai.pipelines.chat import (
    ChatAbilities,
    ChatRequest,
    PreparedChat,
    listed_tools,
    tools_as_text,
)
from onnx_genai.pipelines.messages import ChatMessage, before_user, with_calls_as_text, with_system
from onnx_genai.pipelines.profile_run import ProfileRun
from onnx_genai.template import ChatTemplate, GuardedPrompt
from onnx_genai.tokenizer import Tokenizer, TokenTableData, find_fim_marks
from onnx_genai.tokenizer.fim import STOPS as FIM_STOPS
from onnx_genai.tools import ToolFormat
from onnx_genai.types import Backend, Decoder, KvDtype, MemorySize, SamplingParams
from onnx_genai.words import counted

__all__ = [
    "ChatMessage",
    "Prompt",
    "TextModel",
    "inspect",
    "is_single",
    "locate",
    "params_for",
    "plain_ids",
    "single_params",
]

Prompt = str | PromptIds
"""Text, or token ids (a list of ints or a 1-D int64/int32 array)."""

_TEMPLATE_ARGUMENTS = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
_TAKEN_NAMES = {"self", "control_texts"}
"""Of template variables: taken by jinja and by this package."""


class TextModel:
    """A loaded language model; use :class:`~onnx_genai.LLM` or :class:`~onnx_genai.AsyncLLM`.

    Args:
        model: A package folder, a file inside one, or an alias or hub id that was pulled before.
        ep: Execution providers, best first, such as ``cuda,cpu`` or ``plugin:/path/lib.so``; ``cpu`` by default.
        ep_options: Options of the first one.
        ep_strict: A provider that cannot be used is an error; False logs a warning and goes on without it.
        backend: Whose kernels compute quantized matrix products: ``native`` this package's, or an error if there are
            none that they can; ``ort`` ONNX Runtime's; ``auto`` the faster ones.
        variant: Which of several graphs to take (``q4``, ``fp16``, ...); None chooses.
        decoder: For experts: ``paged``, ``slot`` or ``copy`` forces one; ``auto`` takes the first that can run the
            graph.
        kv_dtype: Element type of KV in the paged decoder: ``float32``, ``float16``, ``bfloat16``, ``int8``; ``auto``
            is that of the graph, and ``float16`` instead of ``float32`` where weights are quantized.
        prefix_cache: Keep the KV of finished requests for later ones that begin alike.
        vram_limit: Memory of the hot tier of KV; grammar: ``auto``, bytes, ``0.5``, ``8GiB``.
        host_ram_limit: On a CPU provider memory of the hot and warm tiers together, else of the warm tier.
        disk_limit: Size of the cold tier's file; None or 0 is off, ``0.5`` is half of the free space.
        disk_folder: Where that file lies; None is a private folder below the system's one for temporary files.
        packed_cache: Most that files of packed weights may take in the cache folder; later loads and other processes
            map them. 0 makes none; ``auto`` is what ``ONNX_GENAI_PACKED_CACHE`` says, else 16 GiB.
        max_context: Upper bound on prompt and output tokens.
        threads: Intra-op threads; None uses the physical cores that this process may use.
        max_num_seqs: Sequences that run at once.
        max_num_batched_tokens: Token budget of a step.
        max_prefill_tokens_while_decoding: Prompt tokens in a step that also decodes.
        max_queue: Open requests; one more is refused.

    Raises:
        NotFoundError: There is no such model.
        InvalidArgumentError: An option has a value that is not allowed.
        PackageError, UnsupportedError, BackendError: It cannot be used; the text says why and what to do.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        ep: str = "cpu",
        ep_options: Mapping[str, str] | None = None,
        ep_strict: bool = True,
        backend: Backend = "auto",
        variant: str | None = None,
        decoder: Decoder = "auto",
        kv_dtype: KvDtype = "auto",
        prefix_cache: bool = True,
        vram_limit: MemorySize = "auto",
        host_ram_limit: MemorySize = "auto",
        disk_limit: MemorySize | None = None,
        disk_folder: str | Path | None = None,
        packed_cache: MemorySize = "auto",
        max_context: int | None = None,
        threads: int | None = None,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        max_prefill_tokens_while_decoding: int = 256,
        max_queue: int = 4096,
    ) -> None:
        if variant is not None and not isinstance(variant, str):
            raise InvalidArgumentError(f"variant is {variant!r}; allowed: a text such as q4, or None")
        options = EngineOptions(
            ep=ep,
            ep_options={} if ep_options is None else ep_options,
            ep_strict=ep_strict,
            backend=backend,
            threads=threads,
            max_context=max_context,
            decoder=decoder,
            kv_dtype=kv_dtype,
            prefix_cache=prefix_cache,
            vram_limit=vram_limit,
            host_ram_limit=host_ram_limit,
            disk_limit=disk_limit,
            disk_folder=disk_folder,
            packed_cache=packed_cache,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_prefill_tokens_while_decoding=max_prefill_tokens_while_decoding,
            max_queue=max_queue,
        )
        self.package, self._tokenizer = _read(model, variant)
        self.template = _template(self.package)
        table = TokenTableData.empty() if self._tokenizer is None else self._tokenizer.token_table()
        self._profile_run: ProfileRun | None = None
        self._engine = ModelEngine.open(self.package, table, options, tokenize=self._tokenize_inside(table))

    @property
    def tokenizer(self) -> Tokenizer:
        """The package's tokenizer.

        Raises:
            PackageError: There is none; token ids can still be generated from, without text.
        """
        if self._tokenizer is None:
            self.package.require_tokenizer()  # raises, and says where it was looked for
            raise InternalError("a tokenizer appeared after the model was loaded; load it again")
        return self._tokenizer

    def _options(
        self,
        priority: int,
        timeout: float | None,
        cache_salt: str,
        adapter: str | None,
        grammar: GrammarSpec | None = None,
    ) -> RequestOptions:
        """What a caller asks for beside the prompt.

        Raises:
            NotFoundError: There is no adapter of that name.
        """
        spans = self._engine.adapters.spans(adapter)
        return RequestOptions(
            priority=priority, timeout=timeout, cache_salt=cache_salt, grammar=grammar, adapters=spans
        )

    def _tokenize_inside(self, table: TokenTableData) -> Callable[[str], list[int]] | None:
        """How a text is written in the middle of one. Other vocabularies mark the beginning of a text."""
        tokenizer = self._tokenizer
        if tokenizer is None or table.decoding != "byte_level" or table.strip_first_space or table.first:
            return None
        return lambda text: tokenizer.encode(text, add_special_tokens=False)

    @property
    def engine(self) -> ModelEngine:
        """The engine under this model: token ids in, token ids out."""
        return self._engine

    @property
    def context_limit(self) -> int | None:
        """Tokens that prompt and output may have together; None if nothing limits them."""
        return self._engine.context_limit

    @property
    def context_source(self) -> str:
        """Where the context limit comes from."""
        return self._engine.context_source

    @property
    def description(self) -> Mapping[str, object]:
        """Roles of the graph's ports, the decoder and why, rewrites and notes."""
        return self._engine.description

    def info(self) -> dict[str, object]:
        """Facts about the loaded model: decoder, execution provider, threads, ONNX Runtime, limits."""
        return self._engine.info()

    @property
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded LoRA adapters, in the order in which they were loaded."""
        return self._engine.adapters.names

    def unload_adapter(self, name: str) -> None:
        """Frees the name of an adapter. Requests and sessions that have it keep it; then its memory is freed.

        Raises:
            NotFoundError: There is no such adapter.
        """
        self._engine.adapters.unload(name)

    def metrics(self) -> dict[str, float]:
        """Totals since the model was loaded, and gauges; ``docs/python.md`` lists the names."""
        return self._engine.metrics()

    def render(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Returns the prompt text of a chat: what the package's chat template makes of the messages.

        Tools and earlier calls that the template leaves out are described, as :meth:`prepare_chat` does, but only with
        the defaults of ``add_generation_prompt`` and ``continue_final_message``: else it is no prompt of a chat.

        Raises:
            UnsupportedError: The package has no chat template.
            InvalidArgumentError: The template refuses the messages, or the tools are none.
        """
        if add_generation_prompt and not continue_final_message:
            return self._chat_prompt(messages, ChatRequest(tools=listed_tools(tools)), template_kwargs)[0].text
        return self._needed_template().render(
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **_checked_template_kwargs(template_kwargs),
        )

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Returns the prompt ids of a chat; templates write special tokens themselves, so none are added.

        Control strings such as ``<|im_end|>`` in what others than the assistant said are plain text.
        """
        return self._chat_ids(self._chat_prompt(messages, ChatRequest(tools=listed_tools(tools)), template_kwargs)[0])

    @cached_property
    def abilities(self) -> ChatAbilities:
        """What the model does in a chat: marks of its reasoning, the format of its tool calls."""
        return ChatAbilities.of(self.template, self.tokenizer.special_tokens, self.tokenizer.added_tokens)

    def opens_reasoning(
        self,
        prompt: str,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> bool:
        """Whether a prompt, rendered from these messages, ends inside reasoning that the template itself has opened.

        A mark that somebody wrote in a message opens nothing.
        """
        markers = self.abilities.reasoning
        if markers is None or not markers.opened_by(prompt):
            return False
        return markers.opened_by(
            self._needed_template().generation_prompt(
                messages, tools=tools, **_checked_template_kwargs(template_kwargs)
            )
        )

    def prepare_chat(
        self,
        messages: Sequence[ChatMessage],
        params: SamplingParams | None,
        request: ChatRequest,
        *,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> PreparedChat:
        """Renders a chat and works out how its answers are generated and read.

        Raises:
            UnsupportedError: The package has no chat template.
            InvalidArgumentError: The template or the vocabulary refuses something.
        """
        prompt, shown_tools, tool_format = self._chat_prompt(messages, request, template_kwargs)
        inside = self.opens_reasoning(prompt.text, messages, tools=shown_tools, template_kwargs=template_kwargs)
        form, grammar = request.answer_form(self.abilities, tool_format, inside_reasoning=inside)
        ids, own = self.prepared(self._chat_ids(prompt), params)
        visible = request.visible_tokens(form, self.abilities.special_tokens)
        if visible:
            own = dataclasses.replace(own, visible_special_tokens=(*own.visible_special_tokens, *visible))
        return PreparedChat(
            prompt_ids=plain_ids(ids), params=own, form=form, grammar=grammar, parse_type=request.parse_type
        )

    def _chat_prompt(
        self, messages: Sequence[ChatMessage], request: ChatRequest, template_kwargs: Mapping[str, Any] | None
    ) -> tuple[GuardedPrompt, Sequence[Mapping[str, Any]] | None, ToolFormat | None]:
        """The prompt of a chat, the tools that the template shows in it, and the format of calls if there are tools."""
        tools = request.offered_tools or None
        messages = self._with_calls_shown(messages, tools, template_kwargs)
        prompt = self._guarded(messages, tools=tools, template_kwargs=template_kwargs)
        if tools is None:
            return prompt, None, None
        # A package may have a template for requests with tools only, which is made to show them.
        if (
            not self._needed_template().source_for(tools=False)
            or prompt.text != self._guarded(messages, template_kwargs=template_kwargs).text
        ):
            return prompt, tools, request.format_of_calls(self.abilities.tool_format)
        form = request.format_of_calls(None)
        return self._guarded_with(tools_as_text(tools, form), messages, template_kwargs), None, form

    def _guarded(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> GuardedPrompt:
        """:meth:`render`, with the places of the control strings that are no work of the template."""
        return self._needed_template().render_guarded(
            messages,
            control_texts=self.tokenizer.special_tokens,
            tools=tools,
            **_checked_template_kwargs(template_kwargs),
        )

    def _with_calls_shown(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] | None,
        template_kwargs: Mapping[str, Any] | None,
    ) -> Sequence[ChatMessage]:
        """The messages, with calls of earlier answers in their texts if the template would leave them out."""
        without = [{key: value for key, value in each.items() if key != "tool_calls"} for each in messages]
        if without == list(messages):
            return messages
        try:
            shown, hidden = (
                self._guarded(each, tools=tools, template_kwargs=template_kwargs).text for each in (messages, without)
            )
        except InvalidArgumentError:  # the template tells what it makes of them
            return messages
        return messages if shown != hidden else [with_calls_as_text(each) for each in messages]

    def _chat_ids(self, prompt: GuardedPrompt) -> list[int]:
        self.check_room(prompt.text)
        return self.tokenizer.encode(prompt.text, add_special_tokens=False, plain=prompt.plain)

    def refuse_encoder_decoder(self, what: str) -> None:
        """Raises UnsupportedError if the model is an encoder-decoder: its answer does not go on with its prompt."""
        if self._engine.is_encoder_decoder:
            raise UnsupportedError(
                f"{self.package.root} is an encoder-decoder, which reads a whole source and answers apart from it: "
                f"{what} is not available; use generate() with the source text"
            )

    def _needed_template(self) -> ChatTemplate:
        self.refuse_encoder_decoder("a chat")
        if self.template is None:
            raise UnsupportedError(
                f"{self.package.root} has no chat template (chat_template.jinja or chat_template in "
                "tokenizer_config.json); use generate() with a text prompt"
            )
        return self.template

    def _guarded_with(
        self, text: str, messages: Sequence[ChatMessage], template_kwargs: Mapping[str, Any] | None
    ) -> GuardedPrompt:
        """Renders the messages with a text of ours in the system message, or where the template has none, before the
        first message of the user.
        """
        try:
            prompt = self._guarded(with_system(messages, text), template_kwargs=template_kwargs)
            if text in prompt.text:
                return prompt
        except InvalidArgumentError:
            pass
        return self._guarded(before_user(messages, text), template_kwargs=template_kwargs)

    def check_room(self, prompt: str | Sequence[int]) -> None:
        """Refuses what cannot be a prompt, a text whatever its tokens, without the time and memory to tokenise it.

        Raises:
            ContextOverflowError: It has more tokens than the context window.
            InvalidArgumentError: It is no text that has tokens.
        """
        limit = self.context_limit
        if limit is None or len(prompt) <= limit:
            return
        if not isinstance(prompt, str):
            size = f"has {counted(len(prompt), 'token')}"
        elif (least := self.tokenizer.least_tokens(prompt)) > limit:
            size = f"is a text of {len(prompt)} characters, which are at least {least} tokens"
        else:
            return
        raise ContextOverflowError(
            f"the prompt {size}, but the context window has {limit} ({self.context_source}); shorten the prompt"
        )

    def fill_in(self, prefix: Prompt, suffix: str, params: SamplingParams | None) -> tuple[list[int], SamplingParams]:
        """Returns prompt ids and parameters that make the model write what belongs between two texts.

        Raises:
            UnsupportedError: The tokenizer has no marks for that.
        """
        marks = find_fim_marks(self.tokenizer.added_tokens)
        if marks is None:
            raise UnsupportedError(
                f"{self.package.root} has no tokens for filling in the middle (such as <|fim_prefix|>), so suffix "
                "cannot be used; take a coder model, or leave suffix out"
            )
        if not isinstance(prefix, str) or not isinstance(suffix, str):
            raise InvalidArgumentError("suffix needs a prompt and a suffix that are texts")
        self.check_room(prefix)
        self.check_room(suffix)
        ids = marks.prompt_ids(prefix, suffix, tokenizer=self.tokenizer)
        params = params if params is not None else SamplingParams()
        ends = [marks.prefix, marks.suffix, marks.middle, *FIM_STOPS]
        stops = [self.tokenizer.added_tokens[text] for text in ends if text in self.tokenizer.added_tokens]
        return ids, dataclasses.replace(params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *stops))))

    def prepared(self, prompt: Prompt, params: SamplingParams | None) -> tuple[PromptIds, SamplingParams]:
        """Returns prompt ids, and parameters as the engine takes them."""
        params = params if params is not None else SamplingParams()
        if not isinstance(params, SamplingParams):
            raise InvalidArgumentError(f"params is {type(params).__name__}; allowed: SamplingParams")
        # A stop string that is a special token never shows in the text, so its id is what to look for.
        special = self.tokenizer.special_stop_ids(params.stop) if params.stop else ()
        if special:
            params = dataclasses.replace(
                params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *special)))
            )
        if isinstance(prompt, str):
            if not prompt:
                raise InvalidArgumentError("the prompt is empty; give at least one character")
            self.check_room(prompt)
            prompt = self.tokenizer.encode(prompt)
        return prompt, params


def inspect(
    model: str | Path, *, variant: str | None = None, backend: Backend = "auto"
) -> tuple[package.ModelPackage, dict[str, object]]:
    """Returns what a package says and how its graph would run, without loading it.

    Raises:
        NotFoundError, PackageError, UnsupportedError: As :class:`~onnx_genai.LLM`.
    """
    found, _ = _read(model, variant)
    return found, describe_graph(found, backend=backend)


def plain_ids(prompt: PromptIds) -> tuple[int, ...]:
    """The ids of a prompt as plain ints."""
    return tuple(int(token) for token in prompt)


def is_single(prompts: object) -> bool:
    """Whether ``prompts`` is one prompt and not a list of them.

    Raises:
        InvalidArgumentError: It is neither.
    """
    if isinstance(prompts, (str, np.ndarray)):
        return True
    if isinstance(prompts, bytes) or not isinstance(prompts, Sequence):
        raise InvalidArgumentError(f"prompts is {type(prompts).__name__}; allowed: str, token ids, or a list of those")
    # An empty list is an empty batch; a list of ints is one prompt.
    return len(prompts) > 0 and not isinstance(prompts[0], (str, bytes, Sequence, np.ndarray))


def params_for(
    prompts: Sequence[Prompt], params: SamplingParams | Sequence[SamplingParams] | None
) -> Sequence[SamplingParams | None]:
    """One entry for each prompt.

    Raises:
        InvalidArgumentError: Not as many as there are prompts.
    """
    if params is None or isinstance(params, SamplingParams):
        return [params] * len(prompts)
    if isinstance(params, str) or not isinstance(params, Sequence):
        raise InvalidArgumentError(
            f"params is {type(params).__name__}; allowed: a SamplingParams, or a list with one for each prompt"
        )
    if len(params) != len(prompts):
        given = counted(len(params), "entry", "entries")
        raise InvalidArgumentError(f"params has {given} for {counted(len(prompts), 'prompt')}; give one for each")
    return params


def single_params(params: SamplingParams | Sequence[SamplingParams] | None) -> SamplingParams | None:
    """The parameters of the only prompt.

    Raises:
        InvalidArgumentError: It is a list or something else.
    """
    if params is not None and not isinstance(params, SamplingParams):
        raise InvalidArgumentError(f"params is {params!r}; allowed for one prompt: a SamplingParams")
    return params


def _read(model: str | Path, variant: str | None) -> tuple[package.ModelPackage, Tokenizer | None]:
    found = package.read(locate(model), variant=variant)
    if found.tokenizer_path is None:
        return found, None
    tokenizer = Tokenizer.from_file(found.tokenizer_path)
    if not found.eos_token_ids:
        found = dataclasses.replace(found, eos_token_ids=tokenizer.eos_candidates(), eos_source="tokenizer vocabulary")
    return found, tokenizer


def locate(model: str | Path) -> Path:
    if not isinstance(model, (str, Path)) or not str(model):
        raise InvalidArgumentError(f"model is {model!r}; allowed: a folder, a file in it, an alias or a hub id")
    try:
        if Path(model).exists():
            return Path(model)
    except OSError as error:  # a name that is too long, a folder that may not be entered
        raise NotFoundError(f"no model {str(model)!r}: {error.strerror}") from error
    from onnx_genai.package import hub  # only names need it, and its own imports take time
    from onnx_genai.package.aliases import ALIASES

    path = hub.resolve(str(model))
    if path is None:
        can_be_pulled = str(model) in ALIASES or "/" in str(model)
        advice = f"fetch it with: onnx-genai pull {model}" if can_be_pulled else f"take an alias ({', '.join(ALIASES)})"
        raise NotFoundError(
            f"no model {str(model)!r}: it is not a folder or file, and no alias or hub id of that name was pulled. "
            f"Check the path and the spelling, or {advice}"
        )
    return path


def _template(source: package.ModelPackage) -> ChatTemplate | None:
    template = source.chat_template
    if not template.texts:
        return None
    return ChatTemplate(template.texts, special_tokens=source.special_tokens, name=template.source)


def _checked_template_kwargs(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Further variables of the template; names that mean something else here are refused."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise InvalidArgumentError(f"template_kwargs is {given!r}; allowed: a mapping from names to values")
    own = sorted(_TEMPLATE_ARGUMENTS & given.keys())
    if own:
        raise InvalidArgumentError(f"template_kwargs has {', '.join(own)}; give {own[0]} as an argument of its own")
    taken = sorted(_TAKEN_NAMES & given.keys())
    if taken:
        raise InvalidArgumentError(
            f"template_kwargs has {', '.join(taken)}, which no variable of a template may be named"
        )
    return given
