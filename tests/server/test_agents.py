"""Agents of the package ``openai-agents`` do their work by tools; skipped where it is absent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_genai import AsyncLLM
from onnx_genai.server import ModelSpec
from tests.models.dialogue import write_dialogue_package
from tests.server.running import RunningServer

agents = pytest.importorskip("agents")
openai = pytest.importorskip("openai")

NOTES = "milk\neggs — zwölf\n"
LIST = '# Shopping\n- milk\n- eggs — zwölf "organic"\n'
REPORT = "The list is in list.md."


def call(tool: str, **arguments: str) -> str:
    """A tool call as the model writes it."""
    body = json.dumps({"name": tool, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{body}\n</tool_call>"


ANSWERS = (
    f"I look at what there is. {call('read_file', name='notes.txt')}\n{call('read_file', name='none.txt')}",
    f"Now I write it. {call('write_file', name='list.md', text=LIST)}",
    REPORT,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = write_dialogue_package(tmp_path_factory.mktemp("agent") / "agent", ANSWERS)
    with RunningServer([ModelSpec(name="agent", load=lambda: AsyncLLM(folder, threads=1))]) as server:
        yield server.wait_ready()


class Desk:
    """A folder with two tools that work in it, and what was asked of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls: list[tuple[str, str]] = []
        (folder / "notes.txt").write_text(NOTES, encoding="utf-8")

    def tools(self) -> list[Any]:
        def read_file(name: str) -> str:
            """Reads a file."""
            self.calls.append(("read_file", name))
            path = self.folder / name
            return path.read_text(encoding="utf-8") if path.is_file() else f"there is no file {name}"

        def write_file(name: str, text: str) -> str:
            """Writes a text to a file."""
            self.calls.append(("write_file", name))
            (self.folder / name).write_text(text, encoding="utf-8")
            return "written"

        return [agents.function_tool(read_file), agents.function_tool(write_file)]


def agent_of(desk: Desk, client: Any, model: str, interface: str, **settings: Any) -> Any:
    kind = {"chat": agents.OpenAIChatCompletionsModel, "responses": agents.OpenAIResponsesModel}[interface]
    return agents.Agent(
        name="clerk",
        instructions="Turn the notes into a list.",
        model=kind(model, openai_client=client),
        model_settings=agents.ModelSettings(**settings),
        tools=desk.tools(),
    )


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("interface", ["chat", "responses"])
def test_an_agent_reads_and_writes_files_until_its_task_is_done(
    server: RunningServer, tmp_path: Path, interface: str, is_streamed: bool
) -> None:
    desk = Desk(tmp_path)

    async def run() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:
            agent = agent_of(desk, client, "agent", interface)
            quiet = agents.RunConfig(tracing_disabled=True)
            if not is_streamed:
                return await agents.Runner.run(agent, "Please tidy up notes.txt.", run_config=quiet)
            result = agents.Runner.run_streamed(agent, "Please tidy up notes.txt.", run_config=quiet)
            async for _ in result.stream_events():
                pass
            return result

    result = asyncio.run(run())

    assert result.final_output == REPORT
    assert sorted(desk.calls[:2]) == [("read_file", "none.txt"), ("read_file", "notes.txt")]
    assert desk.calls[2:] == [("write_file", "list.md")]
    assert (tmp_path / "list.md").read_text(encoding="utf-8") == LIST
    outputs = [item.output for item in result.new_items if item.type == "tool_call_output_item"]
    assert outputs == [NOTES, "there is no file none.txt", "written"]
    server.wait_idle()
