"""Templates as a package holds them, and the prompts that they give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onnx_genai.errors import PackageError
from onnx_genai.package import read
from onnx_genai.template import ChatTemplate
from tests.package.folders import write

USER = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


def rendered(folder: Path, files: dict[str, Any], **options: Any) -> str:
    found = read(write(folder, {"model.onnx": None, **files}))
    source = found.chat_template
    texts = {**({} if source.default is None else {"default": source.default}), **source.named}
    return ChatTemplate(texts, special_tokens=found.special_tokens, name=source.source).render(USER, **options)


def test_package_given_a_config_text_shows_the_special_tokens_to_it(tmp_path: Path) -> None:
    config = {
        "bos_token": "<s>",
        "image_token": "<image>",
        "add_bos_token": True,
        "chat_template": "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ add_bos_token }}",
    }
    tokens = {"eos_token": {"content": "</s>"}, "bos_token": "no"}

    prompt = rendered(tmp_path, {"special_tokens_map.json": tokens, "tokenizer_config.json": config})

    assert prompt == "<s></s><image>"


@pytest.mark.parametrize("form", ["list", "object", "files"])
def test_package_given_named_templates_takes_them(tmp_path: Path, form: str) -> None:
    texts = {"default": "plain", "tool_use": "tools"}
    entries = [{"name": key, "template": text} for key, text in texts.items()]
    files: dict[str, Any] = {
        "list": {"tokenizer_config.json": {"chat_template": entries}},
        "object": {"tokenizer_config.json": {"chat_template": texts}},
        "files": {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools"},
    }

    assert rendered(tmp_path, files[form]) == "plain"
    assert rendered(tmp_path, files[form], tools=TOOLS) == "tools"


def test_package_given_several_places_prefers_the_jinja_file(tmp_path: Path) -> None:
    files: dict[str, Any] = {"chat_template.json": {"chat_template": "json"}}
    assert rendered(tmp_path, files) == "json"

    files["tokenizer_config.json"] = {"chat_template": {"default": "config", "tool_use": "config tools"}}
    assert rendered(tmp_path, files) == "config"
    assert rendered(tmp_path, files, tools=TOOLS) == "config tools"

    files["chat_template.jinja"] = "\ufefffile"
    assert rendered(tmp_path, files) == "file"
    assert rendered(tmp_path, files, tools=TOOLS) == "file"


def test_package_given_only_additional_templates_takes_the_default_of_the_config(tmp_path: Path) -> None:
    files = {"additional_chat_templates/rag.jinja": "R", "tokenizer_config.json": {"chat_template": "config"}}

    source = read(write(tmp_path, {"model.onnx": None, **files})).chat_template

    assert (source.default, source.named) == ("config", {"rag": "R"})
    assert source.source.endswith("tokenizer_config.json: chat_template")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template: expected text, or a list"),
        ("tokenizer_config.json", {"chat_template": []}, "chat_template: expected text, or a list"),
        ("tokenizer_config.json", {"chat_template": [{"name": "a"}]}, "chat_template: expected text, or a list"),
        ("tokenizer_config.json", {"bos_token": 5}, "bos_token is 5"),
        ("chat_template.json", "{", "chat_template.json"),
        ("chat_template.jinja", "version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        ("chat_template.jinja", b"\xff\xfe", "UTF-8"),
    ],
)
def test_package_given_a_broken_file_names_it(tmp_path: Path, name: str, value: Any, message: str) -> None:
    with pytest.raises(PackageError, match=message) as caught:
        rendered(tmp_path, {name: value})

    assert name in str(caught.value)
