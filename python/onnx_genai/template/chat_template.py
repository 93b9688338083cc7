"""Chat templates as Hugging Face renders them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from jinja2.exceptions import SecurityError, TemplateSyntaxError

from onnx_genai.errors import InvalidArgumentError, PackageError
from onnx_genai.template.guard import Guard, GuardedPrompt
from onnx_genai.template.jinja2_engine import Jinja2Engine, TemplateLimitError, TemplateRefusalError
from onnx_genai.template.messages import (
    ArgumentForms,
    ContentForms,
    checked_messages,
    fit_arguments,
    fit_content,
    has_arguments,
    plain_copy,
)
from onnx_genai.template.minijinja_engine import MinijinjaEngine, are_portable_values, is_portable

__all__ = ["ChatTemplate"]

_TESTS_NONE = re.compile(r"content['\"\]\)]*\s+is\s+(?:not\s+)?none\b", re.IGNORECASE)
_TEXT_PROBE = "\u27e8text probe\u27e9"
_PARTS_PROBE = "\u27e8parts probe\u27e9"
_ARGUMENTS = {"probe_key": "probe value"}
_ARGUMENTS_TEXT = '{"probe_key": "probe value"}'
_FINAL_MARK = "\u27e8final message ends here\u27e9"
_MAX_MESSAGE = 300


def _now() -> datetime:
    return datetime.now().astimezone()


class ChatTemplate:
    """A package's chat template: messages in, prompt text out. Immutable; safe from any thread.

    The text is the one that Hugging Face's ``apply_chat_template`` gives: trimmed and left-stripped blocks, loop
    controls, ``tojson`` without HTML escapes, ``raise_exception``, ``strftime_now``, Python's string and dict methods.
    In addition a content given as parts reaches templates that only print texts, and a text reaches templates that
    only print parts; ``content: null`` is an empty text unless the template tests for none; arguments of tool calls
    reach it as text or as an object, whichever it prints; ``developer`` is ``system`` for templates that do not know
    it.

    A template is first parsed when it is first rendered, so a broken one does not keep a package from loading.

    Example:
        >>> template = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}")
        >>> template.render([{"role": "user", "content": "Hi"}])
        '<|user|>Hi'
    """

    def __init__(
        self,
        source: str | Mapping[str, str],
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        name: str = "chat template",
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """Takes the Jinja source.

        Args:
            source: The template, or named templates. Of those ``tool_use`` renders requests with tools, ``default``
                the others.
            bos_token: Text that the template sees as ``bos_token``; None leaves it undefined.
            eos_token: The same for ``eos_token``.
            special_tokens: Further names and texts (``pad_token``, ``unk_token``, ...).
            name: What error texts call it, such as the file and key.
            clock: Time for ``strftime_now``; None is the local time.

        Raises:
            InvalidArgumentError: ``source`` is no text and no mapping of texts, or is empty.
        """
        named = {"default": source} if isinstance(source, str) else source
        if not isinstance(named, Mapping) or not named or not all(isinstance(text, str) for text in named.values()):
            raise InvalidArgumentError(f"source is {source!r:.80}; allowed: a template text or named template texts")
        stated = {"bos_token": bos_token, "eos_token": eos_token}
        self._tokens = {**(special_tokens or {}), **{key: text for key, text in stated.items() if text is not None}}
        self._clock = clock or _now
        self._templates = {
            key: _Template(text, name if key == "default" else f"{name} {key!r}", self._tokens, self._clock)
            for key, text in named.items()
        }
        self._name = name

    @property
    def source(self) -> str:
        """Jinja source of the default template (of the only one, if it has another name)."""
        return self._select(tools=False).source

    def source_for(self, *, tools: bool) -> str:
        """Jinja source of the template that renders requests with or without tools; empty if there is none."""
        try:
            return self._select(tools=tools).source
        except PackageError:
            return ""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the templates; a single one is ``default``."""
        return tuple(self._templates)

    def named(self, name: str) -> ChatTemplate:
        """The same with one of the templates, such as ``rag``, for all requests.

        Raises:
            InvalidArgumentError: No template has this name.
        """
        if name not in self._templates:
            raise InvalidArgumentError(f"the template name is {name!r}; allowed: {', '.join(self._templates)}")
        return ChatTemplate(
            self._templates[name].source,
            special_tokens=self._tokens,
            name=f"{self._name} {name!r}",
            clock=self._clock,
        )

    def render(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> str:
        """Prompt text of a conversation.

        Args:
            messages: At least one; each with ``role`` and whatever the template reads (``content`` as a text or a list
                of parts, ``tool_calls``, ``name``, ...).
            tools: Tool descriptions as the template expects them (usually OpenAI's objects).
            documents: Documents for templates that use them.
            add_generation_prompt: End with the header of the assistant's turn.
            continue_final_message: End inside the last message, so that its text is continued; no header follows, and
                ``add_generation_prompt`` is not looked at.
            **template_kwargs: Further variables of the template, such as ``enable_thinking``.

        Raises:
            InvalidArgumentError: The messages are no list of messages, or the template refuses or cannot take them.
            PackageError: The template itself is broken; names the line.
        """
        template, variables = self._prepared(
            messages, tools, documents, add_generation_prompt, continue_final_message, template_kwargs
        )
        text = template.render(variables)
        return _cut_at_mark(text) if continue_final_message else text

    def render_guarded(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        control_texts: Iterable[str],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **template_kwargs: Any,
    ) -> GuardedPrompt:
        """The same prompt, and where it holds control strings that come from messages or documents.

        With this a tokenizer can read ``<|im_start|>`` in a user's text as plain text, while those that the template
        writes stay special. Messages of the assistant are trusted, because they hold what models wrote.

        Args:
            messages: As :meth:`render`.
            control_texts: Texts of the tokenizer's special tokens.
            tools: As :meth:`render`; trusted too.
            documents: As :meth:`render`.
            add_generation_prompt: As :meth:`render`.
            continue_final_message: As :meth:`render`.
            **template_kwargs: As :meth:`render`; trusted too.

        Raises:
            InvalidArgumentError: As :meth:`render`; also if the template takes apart a text with control strings.
            PackageError: As :meth:`render`.
        """
        template, variables = self._prepared(
            messages, tools, documents, add_generation_prompt, continue_final_message, template_kwargs
        )
        text = template.render(variables)
        text = _cut_at_mark(text) if continue_final_message else text
        guard = Guard(control_texts)
        variables["messages"] = [guard.message(message) for message in variables["messages"]]
        variables["documents"] = guard.value(variables["documents"])
        if not guard.has_marked:
            return GuardedPrompt(text=text, plain=())
        marked = template.render(variables)
        prompt = guard.prompt(_cut_at_mark(marked) if continue_final_message else marked)
        if prompt.text != text:
            raise InvalidArgumentError(
                "the chat template takes apart a text that holds a control string, so the two cannot be told apart in "
                "the prompt; remove control strings such as '<|im_start|>' from the messages"
            )
        return prompt

    def generation_prompt(
        self,
        /,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> str:
        """What the template itself writes at the end of a prompt: the header of the answer, and all that it opens.

        Nothing of it comes from the messages. It is what ``add_generation_prompt`` adds; of a template that does not
        look at that, what stands behind the text of the last message. Empty if neither can be told.

        Args:
            messages: As :meth:`render`.
            tools: As :meth:`render`.
            documents: As :meth:`render`.
            **template_kwargs: As :meth:`render`.

        Raises:
            InvalidArgumentError: As :meth:`render`.
            PackageError: As :meth:`render`.
        """
        template, variables = self._prepared(messages, tools, documents, True, False, template_kwargs)
        whole = template.render(variables)
        try:
            without = template.render({**variables, "add_generation_prompt": False})
            if whole != without and whole.startswith(without):
                return whole[len(without) :]
            template, variables = self._prepared(messages, tools, documents, True, True, template_kwargs)
            behind = template.render({**variables, "add_generation_prompt": True})
        except InvalidArgumentError:
            return ""  # without the header or with a mark in its text the template refuses the conversation
        _, mark, tail = behind.rpartition(_FINAL_MARK)
        return tail if mark else ""

    def _prepared(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        template_kwargs: Mapping[str, Any],
    ) -> tuple[_Template, dict[str, Any]]:
        """The template to use, and its variables in the forms that it takes."""
        template = self._select(tools=bool(tools))
        copies = fit_content(checked_messages(messages), template.forms())
        if has_arguments(copies):
            fit_arguments(copies, template.argument_forms())
        if continue_final_message:
            _mark_end(copies[-1], len(copies) - 1)
        return template, {
            **self._tokens,
            **{key: plain_copy(value, f"template_kwargs.{key}") for key, value in template_kwargs.items()},
            "messages": copies,
            "tools": _checked_objects("tools", tools),
            "documents": _checked_objects("documents", documents),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }

    def _select(self, *, tools: bool) -> _Template:
        if tools and "tool_use" in self._templates:
            return self._templates["tool_use"]
        if "default" in self._templates:
            return self._templates["default"]
        if len(self._templates) == 1:
            return next(iter(self._templates.values()))
        raise PackageError(f"{self._name}: no template is named 'default'; there are: {', '.join(self._templates)}")


class _Template:
    """One template text with its engines, made when first needed. Making them twice in a race does no harm."""

    def __init__(self, source: str, name: str, tokens: Mapping[str, str], clock: Callable[[], datetime]) -> None:
        self.source = source
        self._name = name
        self._tokens = tokens
        self._clock = clock
        self._engines: tuple[Jinja2Engine, MinijinjaEngine | None] | None = None
        self._forms: ContentForms | None = None
        self._argument_forms: ArgumentForms | None = None

    def forms(self) -> ContentForms:
        """Found by rendering two short conversations: what is printed is taken."""
        if self._forms is None:
            text = self._prints(_TEXT_PROBE, _TEXT_PROBE)
            parts = self._prints([{"type": "text", "text": _PARTS_PROBE}], _PARTS_PROBE)
            self._forms = ContentForms(
                # A template that refuses even the simplest conversation is given texts.
                text=text or not parts,
                parts=parts,
                tests_none=_TESTS_NONE.search(self.source) is not None,
                knows_developer="developer" in self.source,
            )
        return self._forms

    def argument_forms(self) -> ArgumentForms:
        """Found by rendering a tool call in both forms."""
        if self._argument_forms is None:
            text, mapping = self._shown_call(_ARGUMENTS_TEXT), self._shown_call(_ARGUMENTS)
            self._argument_forms = ArgumentForms(
                text=_ARGUMENTS_TEXT in text,
                # An object printed as Python writes it is no JSON.
                mapping=all(word in mapping for item in _ARGUMENTS.items() for word in item)
                and str(_ARGUMENTS) not in mapping,
            )
        return self._argument_forms

    def _prints(self, content: object, probe: str) -> bool:
        text = self._probed([{"role": "user", "content": content}])
        # A list printed as Python writes it is not taken, it is a fault of the caller.
        return probe in text and f"'{probe}'" not in text and f'"{probe}"' not in text

    def _shown_call(self, arguments: object) -> str:
        # Nine letters, because some templates take no other length.
        call = {"id": "probecall", "type": "function", "function": {"name": "probe", "arguments": arguments}}
        answer = {"role": "tool", "name": "probe", "tool_call_id": "probecall", "content": _TEXT_PROBE}
        forms = self.forms()
        content: object = None if forms.tests_none else "" if forms.text else []
        return self._probed(
            [
                {"role": "user", "content": _TEXT_PROBE if forms.text else [{"type": "text", "text": _TEXT_PROBE}]},
                {"role": "assistant", "content": content, "tool_calls": [call]},
                answer,
            ]
        )

    def _probed(self, messages: list[dict[str, Any]]) -> str:
        """The prompt of a made-up conversation; empty if the template refuses it."""
        variables: dict[str, object] = {
            **self._tokens,
            "messages": messages,
            "tools": None,
            "documents": None,
            "add_generation_prompt": True,
        }
        try:
            return self.render(variables)
        except InvalidArgumentError:
            return ""

    def render(self, variables: Mapping[str, Any]) -> str:
        reference, fast = self._parse()
        if fast is not None and are_portable_values(variables.values()):
            text = fast.render(variables)
            if text is not None:
                return text
        try:
            return reference.render(variables)
        except TemplateRefusalError as error:
            raise InvalidArgumentError(
                f"the chat template refuses the messages: {_short(error)} ({self._place(error)})"
            ) from error
        except TemplateLimitError as error:
            raise InvalidArgumentError(
                f"the chat template does too much on these messages: {_short(error)} ({self._place(error)})"
            ) from error
        except SecurityError as error:
            raise PackageError(
                f"the chat template does what a template may not do: {_short(error)} ({self._place(error)})"
            ) from error
        except (RecursionError, MemoryError) as error:
            raise InvalidArgumentError(
                f"the chat template does too much on these messages: {type(error).__name__} ({self._place(error)})"
            ) from error
        # Filters and methods raise whatever Python has: TypeError, LookupError, AssertionError, StopIteration, ...
        except Exception as error:
            raise InvalidArgumentError(
                f"the chat template cannot take these messages: {_short(error) or type(error).__name__} "
                f"({self._place(error)}); check their roles and content, and the variables it expects"
            ) from error

    def _parse(self) -> tuple[Jinja2Engine, MinijinjaEngine | None]:
        if self._engines is None:
            try:
                reference = Jinja2Engine(self.source, clock=self._clock)
            except TemplateSyntaxError as error:
                raise PackageError(f"{self._name}: line {error.lineno}: {_short(error.message)}") from error
            except (RecursionError, MemoryError) as error:
                raise PackageError(f"{self._name}: is nested too deeply") from error
            except (SyntaxError, ValueError) as error:
                # Of the Python code that jinja2 makes: too many blocks in one another, a number that is too long.
                raise PackageError(f"{self._name}: {_short(error)}") from error
            tree = reference.tree
            fast = MinijinjaEngine(self.source, tree, clock=self._clock) if is_portable(self.source, tree) else None
            self._engines = (reference, fast)
        return self._engines

    def _place(self, error: BaseException) -> str:
        line = _template_line(error.__traceback__)
        return self._name if line is None else f"{self._name}, line {line}"


def _template_line(traceback: TracebackType | None) -> int | None:
    """The innermost template line of a traceback that jinja2 has rewritten."""
    line = None
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == "<template>":
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def _short(error: object) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."


def _checked_objects(name: str, value: object) -> list[Any] | None:
    if value is None:
        return None
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Sequence):
        raise InvalidArgumentError(f"{name} is a {type(value).__name__}; allowed: a list of objects")
    for index, item in enumerate(value):
        if not isinstance(item, Mapping):
            raise InvalidArgumentError(f"{name}[{index}] is a {type(item).__name__}; allowed: an object")
    copy: list[Any] = plain_copy(value, name)
    return copy


def _mark_end(message: dict[str, Any], index: int) -> None:
    """Puts the mark, and a blank that shows whether the template strips, at the end of a message's last text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = f"{content}{_FINAL_MARK} "
        return
    if isinstance(content, list) and content and content[-1]["type"] == "text":
        content[-1]["text"] = f"{content[-1]['text']}{_FINAL_MARK} "
        return
    raise InvalidArgumentError(
        f"continue_final_message needs a text to continue, but messages[{index}].content is {content!r:.80}; "
        "end with a message whose content is (or ends with) a text"
    )


def _cut_at_mark(text: str) -> str:
    place = text.rfind(_FINAL_MARK)
    if place < 0:
        raise InvalidArgumentError(
            "continue_final_message is not possible: the chat template leaves the last message out of the prompt; "
            "set continue_final_message=False"
        )
    kept = text[:place]
    stripped = not text.startswith(_FINAL_MARK + " ", place)
    return kept.rstrip() if stripped else kept
