"""Finding the template of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onnx_genai.errors import PackageError
from onnx_genai.template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]


def write(folder: Path, name: str, value: Any) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")


def rendered(folder: Path, **options: Any) -> str:
    template = ChatTemplate.from_package(folder)
    assert template is not None
    return template.render(USER, **options)


def test_from_package_given_no_template_is_none(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "chat_template": None})

    assert ChatTemplate.from_package(tmp_path) is None


def test_from_package_given_a_config_text_sees_the_special_tokens(tmp_path: Path) -> None:
    write(tmp_path, "special_tokens_map.json", {"eos_token": {"content": "</s>"}, "bos_token": "no"})
    write(tmp_path, "tokenizer_config.json", {"bos_token": "<s>", "chat_template": "{{ bos_token }}{{ eos_token }}"})

    assert rendered(tmp_path) == "<s></s>"


@pytest.mark.parametrize("named", [True, False])
def test_from_package_given_named_templates_takes_them(tmp_path: Path, named: bool) -> None:
    texts = {"default": "plain", "tool_use": "tools"}
    entries = [{"name": key, "template": text} for key, text in texts.items()]
    write(tmp_path, "tokenizer_config.json", {"chat_template": entries if named else texts})

    assert rendered(tmp_path) == "plain"
    assert rendered(tmp_path, tools=[{"type": "function"}]) == "tools"


def test_from_package_given_several_places_prefers_the_jinja_file(tmp_path: Path) -> None:
    write(tmp_path, "chat_template.json", {"chat_template": "json"})
    assert rendered(tmp_path) == "json"

    write(tmp_path, "tokenizer_config.json", {"chat_template": "config"})
    assert rendered(tmp_path) == "config"

    write(tmp_path, "chat_template.jinja", "\ufefffile")
    write(tmp_path, "additional_chat_templates/tool_use.jinja", "extra")
    assert rendered(tmp_path) == "file"
    assert rendered(tmp_path, tools=[{"type": "function"}]) == "extra"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("tokenizer_config.json", {"chat_template": 5}, "chat_template is a int"),
        ("tokenizer_config.json", {"chat_template": []}, "chat_template is a list"),
        ("tokenizer_config.json", {"chat_template": [{"name": "a"}]}, r"chat_template\[0\] needs"),
        ("tokenizer_config.json", "[1]", "top level is a list"),
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("chat_template.json", "{", "not valid JSON"),
        ("chat_template.jinja", "version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    ],
)
def test_from_package_given_a_broken_file_names_it(tmp_path: Path, name: str, value: Any, message: str) -> None:
    write(tmp_path, name, value)

    with pytest.raises(PackageError, match=message) as caught:
        ChatTemplate.from_package(tmp_path)

    assert str(tmp_path / name) in str(caught.value)


def test_from_package_given_bytes_that_are_no_text_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")

    with pytest.raises(PackageError, match="not UTF-8 at byte 0"):
        ChatTemplate.from_package(tmp_path)
