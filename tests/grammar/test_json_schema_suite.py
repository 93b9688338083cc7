"""The JSON Schema Test Suite, draft 2020-12, required keywords: a schema is enforced as a whole or refused by name.

Every answer validates, also one that was cut.

The suite is part of the source distribution of the package jsonschema, which is fetched from the package index once.
``ONNX_GENAI_JSON_SCHEMA_SUITE`` names a folder that has it already (the one with ``additionalProperties.json``).
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from jsonschema import Draft202012Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

from onnx_genai import LLM, SamplingParams, errors, grammar

pytestmark = pytest.mark.slow

RUNS_A_SCHEMA = 8
MAX_NEW_TOKENS = 150
MAX_SECONDS_A_SCHEMA = 60.0


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


@pytest.fixture(
    scope="module",
    params=[pytest.param(3.0, id="ends", marks=pytest.mark.boundary), pytest.param(-6.0, id="rambles")],
)
def llm(request: pytest.FixtureRequest, noise_package: Callable[..., Path]) -> Iterator[LLM]:
    """Models that end what they have begun now and then, or hardly ever."""
    with LLM(noise_package(11, closing=request.param), threads=1) as model:
        yield model


def keys_of(schema: Any) -> set[str]:
    """All keys of a schema and of what is in it."""
    if isinstance(schema, Mapping):
        return set(schema).union(*(keys_of(value) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(keys_of(value) for value in schema))
    return set()


def values_of(schema: Any, key: str) -> list[Any]:
    """What stands under a key, anywhere in a schema."""
    if isinstance(schema, list):
        return [value for each in schema for value in values_of(each, key)]
    if not isinstance(schema, Mapping):
        return []
    return [value for name, each in schema.items() for value in ([each] if name == key else []) + values_of(each, key)]


def is_named(error: errors.InvalidArgumentError, schema: Any) -> bool:
    """Whether the error names what it refuses: keywords of the schema, a format, a reference; or that it is false."""
    text, keys = str(error), keys_of(schema)
    if found := re.search(r"Unimplemented keys: (\[.*?\])", text):
        names = json.loads(found[1])
        uses_metaschema = any("json-schema.org" in str(each) for each in values_of(schema, "$ref"))
        return bool(names) and (keys.issuperset(names) or uses_metaschema)
    if found := re.search(r"Unknown format: (\S+)", text):
        return found[1] in values_of(schema, "format")
    if found := re.search(r"Resource '(\S+)' is not present", text):
        file = found[1].rsplit("/", 1)[-1].removesuffix("#")
        return any(file in str(each) for key in ("$ref", "$schema") for each in values_of(schema, key))
    if "patternProperty" in text:
        return "patternProperties" in keys
    if "schema is false" in text or "the JSON schema is False" in text:
        return "False" in str(schema)
    return any(re.search(rf"\b{re.escape(key)}\b", text) for key in keys & set(Draft202012Validator.VALIDATORS))


def test_every_schema_is_enforced_or_refused_by_name(request: pytest.FixtureRequest, llm: LLM, suite: Path) -> None:
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
                counts[result.finish_reason] += 1
                problem = _problem(check, result.text)
                if problem is not None:
                    case = f"{path.stem}: {group['description']}: {json.dumps(schema)}"
                    wrong.append(f"{case}: {result.text!r} ({result.finish_reason}): {problem}")
    print(dict(counts), "refused:", dict(refused))
    assert not wrong, "\n".join(wrong)
    assert counts["runs"] >= 1000
    if request.node.callspec.params["llm"] > 0:
        assert counts["stop"] >= 800
    assert counts["stop"] + counts["length"] == counts["runs"]
    assert counts["enforced"] >= 120


def _retrieve(uri: str) -> Resource[Any]:
    return Resource.from_contents({}, default_specification=DRAFT202012)


def _problem(check: Draft202012Validator, text: str) -> str | None:
    """Why an answer is wrong; numbers are taken as floats and, as remainders of those are not exact, as decimals."""
    exact = json.loads(json.dumps(check.schema), parse_float=Decimal)
    try:
        try:
            check.validate(json.loads(text))
        except jsonschema.ValidationError as error:
            if error.validator != "multipleOf":
                raise
            check.evolve(schema=exact).validate(json.loads(text, parse_float=Decimal))
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).splitlines()[0]
    return None
