"""The JSON Schema Test Suite, draft 2020-12, required keywords: a schema is enforced as a whole or refused by name.

The suite is part of the source distribution of the package jsonschema, which is fetched from the package index once.
``ONNX_GENAI_JSON_SCHEMA_SUITE`` names a folder that has it already (the one with ``additionalProperties.json``).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from onnx_genai import LLM, SamplingParams, errors, grammar

pytestmark = [pytest.mark.slow, pytest.mark.boundary]

RUNS_A_SCHEMA = 8
MAX_NEW_TOKENS = 150
MAX_SECONDS_A_SCHEMA = 60.0
REASONS = ("Unsatisfiable schema", "Unimplemented keys", "Resource 'http")


@pytest.fixture(scope="module")
def suite(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the draft's files."""
    given = os.environ.get("ONNX_GENAI_JSON_SCHEMA_SUITE")
    if given:
        return Path(given)
    cache = getattr(request.config, "cache", None)
    folder = Path(cache.mkdir("json-schema-suite")) if cache is not None else tmp_path_factory.mktemp("suite")
    version = metadata.version("jsonschema")
    found = folder / f"jsonschema-{version}" / "json" / "tests" / "draft2020-12"
    if not found.is_dir():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
        done = subprocess.run(
            [*command, f"jsonschema=={version}"], capture_output=True, text=True, timeout=300, check=False
        )
        archive = folder / f"jsonschema-{version}.tar.gz"
        if not archive.is_file():
            pytest.skip(f"the test suite cannot be fetched here: {done.stderr.strip()[-300:]}")
        with tarfile.open(archive) as source:
            source.extractall(folder, filter="data")
    return found


@pytest.fixture(scope="module")
def llm(noise_package: Callable[..., Path]) -> Iterator[LLM]:
    with LLM(noise_package(11), threads=1) as model:
        yield model


def is_named(error: errors.InvalidArgumentError, schema: Any) -> bool:
    """Whether the error says what it is about: a word of the schema, or what the schema amounts to."""
    text = str(error)
    return any(reason in text for reason in REASONS) or any(word in text for word in words_of(schema) if word)


def words_of(schema: Any) -> set[str]:
    """All keys and texts of a schema, and the word false."""
    if isinstance(schema, dict):
        return {str(key) for key in schema}.union(*(words_of(value) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(words_of(value) for value in schema))
    return {schema} if isinstance(schema, str) else {str(schema)}


def test_every_schema_is_enforced_or_refused_by_name(llm: LLM, suite: Path) -> None:
    counts: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    wrong: list[str] = []
    for path in sorted(suite.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            schema = group["schema"]
            start = time.monotonic()
            try:
                spec = grammar.json_schema(schema)
                results = llm.generate(
                    ["x"] * RUNS_A_SCHEMA,
                    [
                        SamplingParams(max_new_tokens=MAX_NEW_TOKENS, temperature=1.0, seed=seed)
                        for seed in range(RUNS_A_SCHEMA)
                    ],
                    grammar=spec,
                )
            except errors.InvalidArgumentError as error:
                counts["refused"] += 1
                refused[path.stem] += 1
                if not is_named(error, schema):
                    wrong.append(f"{path.stem}: {group['description']}: refused without a name: {error}")
                continue
            assert time.monotonic() - start < MAX_SECONDS_A_SCHEMA, (path.stem, group["description"])
            counts["enforced"] += 1
            check = Draft202012Validator(schema, registry=Registry(retrieve=_retrieve))
            for result in results:
                counts["runs"] += 1
                if result.finish_reason != "stop":
                    counts["cut"] += 1
                    continue
                counts["ended"] += 1
                problem = _problem(check, result.text)
                if problem is not None:
                    wrong.append(
                        f"{path.stem}: {group['description']}: {json.dumps(schema)}: {result.text!r}: {problem}"
                    )
    print(dict(counts), "refused:", dict(refused))
    assert not wrong, "\n".join(wrong)
    assert counts["runs"] >= 1000
    assert counts["ended"] >= 800
    assert counts["enforced"] >= 120


def _retrieve(uri: str) -> Resource[Any]:
    return Resource.from_contents({}, default_specification=DRAFT202012)


def _problem(check: Draft202012Validator, text: str) -> str | None:
    try:
        check.validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None
