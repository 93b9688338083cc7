"""What /set changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnx_genai.cli.options import SamplingOptions
from onnx_genai.cli.repl.settings import SETTINGS, Settings
from onnx_genai.errors import InvalidArgumentError


def settings(**given: Any) -> Settings:
    off: dict[str, Any] = {field.name: None for field in dataclasses.fields(SamplingOptions)}
    off |= {"greedy": False, "no_greedy": False, "stop": (), "n": 1}
    return Settings(sampling=SamplingOptions(**(off | given)))


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", "0.7", 0.7),
        ("top-p", "0.9", 0.9),
        ("TOP_K", "40", 40),
        ("seed", "7", 7),
        ("max_new_tokens", "16", 16),
        ("stop", "END", ("END",)),
        ("stop", r"\n\n", ("\n\n",)),
        ("stop", '["a", "b"]', ("a", "b")),
        ("greedy", "on", True),
        ("greedy", "off", False),
        ("markdown", "off", False),
        ("thinking", "no", False),
        ("reasoning", "on", True),
    ],
)
def test_with_value_sets_it_and_default_takes_it_back(name: str, text: str, value: object) -> None:
    key = name.lower().replace("-", "_")

    changed = settings().with_value(name, text)

    assert changed.value(key) == value
    assert changed.with_value(name, "default") == settings()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("temperature", "hot", "allowed: number, or default"),
        ("temperature", "-1", "temperature"),
        ("top_p", "2", "top_p"),
        ("seed", "1.5", "allowed: whole number"),
        ("markdown", "maybe", "allowed: on or off"),
        ("stop", "[1]", "allowed: text, or a JSON list"),
        ("stop", "[", "allowed: text, or a JSON list"),
        ("tempature", "1", "there are temperature, top_p"),
    ],
)
def test_with_value_given_nonsense_says_what_is_allowed(name: str, text: str, told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=told):
        settings().with_value(name, text)


def test_temperature_samples_and_zero_is_greedy() -> None:
    assert settings().describe() == "greedy"
    assert settings().with_value("temperature", "0.8").describe() == "sampling, temperature=0.8"
    assert settings(top_p=0.5).with_value("temperature", "0").params(package_temperature=None).temperature == 0


def test_thinking_reaches_the_template() -> None:
    assert settings().template_kwargs is None
    assert settings().with_value("thinking", "off").template_kwargs == {"enable_thinking": False}


def test_as_dict_and_with_values_give_the_same() -> None:
    changed = settings()
    for name, text in (("temperature", "0.5"), ("stop", '["x"]'), ("greedy", "off"), ("seed", "3"), ("markdown", "no")):
        changed = changed.with_value(name, text)

    assert settings(top_k=5).with_values(changed.as_dict()) == changed
    assert settings().as_dict() == {"markdown": True}


def test_with_values_given_an_unknown_name_refuses() -> None:
    with pytest.raises(InvalidArgumentError, match="no setting colour"):
        settings().with_values({"colour": 1})


def test_each_setting_has_a_help_line() -> None:
    assert all(setting.help and setting.kind for setting in SETTINGS.values())
