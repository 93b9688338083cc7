"""What programs do with the official clients: each flow for a client and a model, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnx_genai import AsyncEmbedder, AsyncLLM
from onnx_genai.server import ModelSpec
from tests.models.dialogue import write_dialogue_package
from tests.models.encoder import write_encoder_package
from tests.server.hesitant import Hesitant
from tests.server.running import RunningServer

HI = [{"role": "user", "content": "Hi"}]
ASK = "What time is it in Zürich, and how warm?"
SAID = "It is noon, and 21 degrees."
CALLS = (
    'I look. <tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Zürich", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS: list[dict[str, Any]] = [
    {"name": "weather", "description": "Tells how warm it is in a city.", "parameters": CITY},
    {"name": "clock", "description": "Tells the time."},
]
CHAT_TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
RESPONSE_TOOLS = [{"type": "function", "parameters": None, "strict": None, **function} for function in FUNCTIONS]
MESSAGE_TOOLS = [
    {
        "name": function["name"],
        "description": function["description"],
        "input_schema": function.get("parameters", {"type": "object"}),
    }
    for function in FUNCTIONS
]

Called = list[tuple[str, dict[str, Any]]]


def run_tool(name: str, arguments: dict[str, Any]) -> str:
    """What the program of the user does."""
    return {"weather": lambda: f"21 degrees in {arguments['city']}", "clock": lambda: "12:00"}[name]()


@contextmanager
def flow_server(folder: Path) -> Iterator[RunningServer]:
    """A server whose model ``agent`` calls both tools and then speaks; ``person`` says JSON, ``two`` two texts.

    ``vectors`` makes vectors of words.
    """

    def spec(name: str, *answers: str) -> ModelSpec:
        package = write_dialogue_package(folder / name, answers)
        return ModelSpec(name=name, load=lambda: AsyncLLM(package, threads=1))

    specs = [spec("agent", CALLS, SAID), spec("person", '{"name": "Ada", "age": 36}'), spec("two", "Hello.", "Again.")]
    encoder = write_encoder_package(folder / "vectors")
    specs.append(ModelSpec(name="vectors", load=lambda: AsyncEmbedder(encoder, threads=1), kind="embedding"))
    with RunningServer(specs) as server:
        yield server.wait_ready()


def chat_with_tools(client: Any, model: str, *, stream: bool, first_choice: str = "auto", **more: Any) -> Any:
    """The calls of a conversation over ``/v1/chat/completions``, and the last text."""
    messages: list[Any] = [{"role": "user", "content": ASK}]
    called: Called = []
    for turn in range(4):
        fields: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "tools": CHAT_TOOLS,
            "tool_choice": "auto" if turn else first_choice,
            **more,
        }
        if stream:
            with client.chat.completions.stream(**fields) as events:
                for _ in events:
                    pass
                choice = events.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(**fields).choices[0]
        calls = choice.message.tool_calls or []
        assert (choice.finish_reason == "tool_calls") == bool(calls) or choice.finish_reason == "length"
        if not calls:
            return called, choice.message.content
        assert len({call.id for call in calls}) == len(calls)
        # As programs do: the message goes back as the client gives it.
        messages.append(choice.message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in calls:
            arguments = json.loads(call.function.arguments)
            called.append((call.function.name, arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": run_tool(*called[-1])})
    return called, None


def response_with_tools(client: Any, model: str, *, stream: bool, first_choice: str = "auto", **more: Any) -> Any:
    """The same over ``/v1/responses``, where each turn goes on from the one before."""
    given: Any = ASK
    before: str | None = None
    called: Called = []
    for turn in range(4):
        fields: dict[str, Any] = {
            "model": model,
            "input": given,
            "tools": RESPONSE_TOOLS,
            "tool_choice": "auto" if turn else first_choice,
            **more,
        }
        if before is not None:
            fields["previous_response_id"] = before
        if stream:
            with client.responses.stream(**fields) as events:
                for _ in events:
                    pass
                response = events.get_final_response()
        else:
            response = client.responses.create(**fields)
        calls = [item for item in response.output if item.type == "function_call"]
        if not calls:
            return called, response.output_text
        given, before = [], response.id
        for call in calls:
            called.append((call.name, json.loads(call.arguments)))
            given.append({"type": "function_call_output", "call_id": call.call_id, "output": run_tool(*called[-1])})
    return called, None


def messages_with_tools(client: Any, model: str, *, stream: bool, first_choice: str = "auto", **more: Any) -> Any:
    """The same over ``/v1/messages``."""
    messages: list[Any] = [{"role": "user", "content": ASK}]
    called: Called = []
    for turn in range(4):
        fields: dict[str, Any] = {
            "model": model,
            "max_tokens": 400,
            "messages": messages,
            "tools": MESSAGE_TOOLS,
            "tool_choice": {"type": "auto" if turn else first_choice},
            **more,
        }
        if stream:
            with client.messages.stream(**fields) as events:
                message = events.get_final_message()
        else:
            message = client.messages.create(**fields)
        calls = [block for block in message.content if block.type == "tool_use"]
        assert (message.stop_reason == "tool_use") == bool(calls) or message.stop_reason == "max_tokens"
        if not calls:
            return called, "".join(block.text for block in message.content if block.type == "text")
        messages.append(
            {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]}
        )
        results = []
        for call in calls:
            called.append((call.name, dict(call.input)))
            results.append({"type": "tool_result", "tool_use_id": call.id, "content": run_tool(*called[-1])})
        messages.append({"role": "user", "content": results})
    return called, None


TOOL_FLOWS: Sequence[tuple[str, Callable[..., Any]]] = (
    ("openai", chat_with_tools),
    ("openai", response_with_tools),
    ("anthropic", messages_with_tools),
)


@contextmanager
def official_client(kind: str, server: RunningServer | Hesitant, **more: Any) -> Iterator[Any]:
    """A client of OpenAI's or Anthropic's package; the test is skipped where that is absent."""
    import pytest

    package = pytest.importorskip(kind)
    fields = {"api_key": "any", "max_retries": 0, "timeout": 300.0, **more}
    with (
        package.OpenAI(base_url=f"{server.url}/v1", **fields)
        if kind == "openai"
        else package.Anthropic(base_url=server.url, **fields)
    ) as client:
        yield client
