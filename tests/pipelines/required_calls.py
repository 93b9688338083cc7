"""How often a model that must call a tool makes a call that validates.

    python -m tests.pipelines.required_calls FOLDER TOOLS [--prompts 50] [--new 256] [--temperature 0]

FOLDER is a package, TOOLS a folder of JSON files, each a list of tools. Five sets are made of them: each file, all
files together, and one tool alone. One call each. A call counts although its answer
was cut: a small model often does not find the end of a text, and is then led to it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from onnx_genai import AsyncLLM, Result, SamplingParams

GREEDY = SamplingParams(max_new_tokens=256, temperature=0)
CITIES = ("Paris", "Oslo", "New York", "東京", "São Paulo", "Cairo", "Sydney", "Łódź", "Quito", "Ulaanbaatar")
FILES = (
    "/tmp/a.txt", "notes.md", "C:\\data\\report.csv", "/home/user/my file.txt", "../up/one.json", "scan.png",
    "https://example.com/page.jpg", "/etc/hosts", "src/main.c", "it's \"quoted\".txt",
)  # fmt: skip
PLAIN = (
    "Hello!", "What can you do?", "Tell me a joke.", "1 + 1 = ?", "Schreibe mir ein Gedicht.", "{}", "</tool_call>",
    '{"name": "none", "arguments": 3}', "Why is the sky blue?", "Do not call any function.",
)  # fmt: skip
PROMPTS = (
    *(f"What is the weather in {city}?" for city in CITIES),
    *(f"How many people live in {city}, and what else is known of it?" for city in CITIES),
    *(f"Read the file {name} and tell me what is in it." for name in FILES),
    *(f"Change the word cat to dog in {name}." for name in FILES),
    *PLAIN,
)


def tool_sets(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Sets of tools by name."""
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    everything = [tool for tools in files.values() for tool in tools]
    return {**files, "all": everything, "one": everything[:1]}


def problem(result: Result, tools: Sequence[Mapping[str, Any]]) -> str | None:
    """Why an answer is not one call that validates; None if it is."""
    if len(result.tool_calls) != 1 or result.text:
        return f"{len(result.tool_calls)} calls ({result.finish_reason}) and the text {result.text[:200]!r}"
    call = result.tool_calls[0]
    schemas = {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}
    if call.name not in schemas:
        return f"there is no tool {call.name!r}"
    errors = [
        error.message for error in Draft202012Validator(schemas[call.name]).iter_errors(json.loads(call.arguments))
    ]
    return "; ".join(errors) or None


async def run(
    model: AsyncLLM, tools: Sequence[Mapping[str, Any]], prompts: Sequence[str], params: SamplingParams
) -> list[tuple[str | None, str]]:
    """The problem of each prompt's answer, and why the answer ended."""
    results = await asyncio.gather(
        *(
            model.chat(
                [{"role": "user", "content": prompt}],
                params,
                tools=tools,
                tool_choice="required",
                parallel_tool_calls=False,
            )
            for prompt in prompts
        )
    )
    return [(problem(result, tools), result.finish_reason) for result in results]


async def count(
    folder: Path,
    sets: Mapping[str, Sequence[Mapping[str, Any]]],
    num_prompts: int,
    params: SamplingParams = GREEDY,
) -> dict[str, int]:
    """Right calls by set; prints what went wrong, and how many answers were cut."""
    right: dict[str, int] = {}
    async with AsyncLLM(folder) as model:
        for name, tools in sets.items():
            answers = await run(model, tools, PROMPTS[:: len(PROMPTS) // num_prompts], params)
            problems = [problem for problem, _ in answers]
            cut = sum(reason == "length" for _, reason in answers)
            right[name] = problems.count(None)
            print(
                f"{name}: {right[name]} of {len(problems)}, {cut} cut", *filter(None, problems), sep="\n  ", flush=True
            )
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tools", type=Path)
    parser.add_argument("--prompts", type=int, default=len(PROMPTS))
    parser.add_argument("--new", type=int, default=GREEDY.max_new_tokens)
    parser.add_argument("--temperature", type=float, default=0.0)
    options = parser.parse_args()
    params = SamplingParams(max_new_tokens=options.new, temperature=options.temperature, seed=1)
    asyncio.run(count(options.folder, tool_sets(options.tools), options.prompts, params))


if __name__ == "__main__":
    main()
