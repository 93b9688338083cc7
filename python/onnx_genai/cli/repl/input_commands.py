"""Slash commands about what goes into a message and what must come out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx_genai.cli.repl.command import Command
from onnx_genai.errors import InvalidArgumentError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    from onnx_genai.cli.repl.loop import Repl

__all__ = ["INPUT_COMMANDS", "refuse_attachment"]


def _image(repl: Repl, argument: str) -> None:
    _attach(repl, "image", argument)


def _audio(repl: Repl, argument: str) -> None:
    _attach(repl, "audio", argument)


def _attach(repl: Repl, kind: str, argument: str) -> None:
    if not argument:
        raise InvalidArgumentError(f"the file is missing: /{kind} PATH [TEXT]")
    refuse_attachment(repl, kind)


def refuse_attachment(repl: Repl, kind: str) -> None:
    """Says what the model accepts; told before the disk is looked at.

    Raises:
        UnsupportedError: The model takes nothing of this kind.
    """
    if kind not in repl.host.modalities:
        raise UnsupportedError(
            f"{repl.host.label} takes no {kind}; it accepts {repl.host.accepts}. Images and sound need a model and a "
            "version of onnx-genai that take them; /model loads another"
        )


def _tools(repl: Repl, argument: str) -> None:
    word, _, rest = argument.partition(" ")
    if not argument:
        if not repl.tools:
            repl.screen.say("no tools; /tools FILE loads them (a JSON list of functions, as in OpenAI's chat API)")
            return
        described = [tool.get("function", tool) for tool in repl.tools]
        repl.screen.table("tools", [(each["name"], str(each.get("description", ""))) for each in described])
    elif word == "off" and not rest:
        repl.tools = ()
        repl.screen.say("tools off")
    elif word == "result":
        if not rest.strip():
            raise InvalidArgumentError("the result is missing: /tools result TEXT")
        before = repl.conversation.snapshot()
        repl.conversation.tool_result(rest.strip())
        waiting = repl.conversation.open_calls
        if waiting:
            repl.screen.note(f"{waiting[0]['function']['name']} waits for its result, too")
        else:
            repl.answer(before)
    else:
        from onnx_genai.pipelines.chat import ChatRequest

        value = _json_file(argument)
        tools = value if isinstance(value, list) else [value]
        repl.tools = ChatRequest(tools=tuple(tools)).tools  # checks them
        repl.screen.say(f"tools: {', '.join(tool.get('function', tool)['name'] for tool in tools)}")


def _tool_words(_repl: Repl) -> Iterable[tuple[str, str]]:
    return (("off", "offer none"), ("result", "answer a call of the model"))


def _json(repl: Repl, argument: str) -> None:
    word = argument.lower()
    if word == "off" or (not word and repl.response_format is not None):
        repl.response_format, repl.json_name = None, "off"
        repl.screen.say("json off: answers are free")
    elif word in ("", "on"):
        from onnx_genai.cli.repl.loop import ANY_OBJECT

        repl.response_format, repl.json_name = ANY_OBJECT, "on"
        repl.screen.say("json on: each answer is one JSON object")
    else:
        from onnx_genai.pipelines.chat import ChatRequest

        schema = _json_file(argument)
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        ChatRequest(response_format=form)  # checks it
        repl.response_format, repl.json_name = form, Path(argument).name
        repl.screen.say(f"json on: each answer fits {Path(argument).name}")
    if repl.is_raw and repl.response_format is not None:
        repl.screen.note("Raw mode is on, where this has no effect; /raw switches it off.")


def _json_words(_repl: Repl) -> Iterable[tuple[str, str]]:
    return (("on", "any JSON object"), ("off", "free answers"))


def _json_file(text: str) -> Any:
    from onnx_genai.cli.repl.loop import user_path

    path = user_path(text)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFoundError(f"{path} does not exist; name a JSON file") from error
    except OSError as error:
        raise NotFoundError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{path} is no JSON text in UTF-8: {error}") from error


INPUT_COMMANDS = (
    Command(
        name="/image",
        arguments="PATH [TEXT]",
        summary="send an image, where the model takes images",
        category="input",
        run=_image,
        takes_path=True,
    ),
    Command(
        name="/audio",
        arguments="PATH [TEXT]",
        summary="send sound, where the model takes sound",
        category="input",
        run=_audio,
        takes_path=True,
    ),
    Command(
        name="/tools",
        arguments="[FILE|off|result TEXT]",
        summary="offer functions to the model, and answer its calls",
        category="input",
        run=_tools,
        choices=_tool_words,
        takes_path=True,
    ),
    Command(
        name="/json",
        arguments="[SCHEMA_FILE|on|off]",
        summary="answers are JSON, of a schema or any; without arguments: switch",
        category="input",
        run=_json,
        choices=_json_words,
        takes_path=True,
    ),
)
