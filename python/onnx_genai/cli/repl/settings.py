"""What `/set` changes: :class:`Settings`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import click

from onnx_genai.cli.options import SamplingOptions
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import SamplingParams

__all__ = ["SETTINGS", "Setting", "Settings"]

DEFAULT = "default"
_ON = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One name that `/set` knows."""

    kind: str
    """How a value is written."""
    help: str
    read: Callable[[str], Any]
    """The value of a text; ValueError if it is none."""


def _switch(text: str) -> bool:
    if text.lower() not in _ON:
        raise ValueError(text)
    return _ON[text.lower()]


def _texts(text: str) -> tuple[str, ...]:
    """One text, or a JSON list of texts."""
    if not text.startswith("["):
        return (text.encode("latin-1", "backslashreplace").decode("unicode_escape") if "\\" in text else text,)
    values = json.loads(text)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(text)
    return tuple(values)


def _number(help_: str) -> Setting:
    return Setting(kind="number", help=help_, read=float)


def _whole(help_: str) -> Setting:
    return Setting(kind="whole number", help=help_, read=int)


def _on_off(help_: str) -> Setting:
    return Setting(kind="on or off", help=help_, read=_switch)


SETTINGS: dict[str, Setting] = {
    "temperature": _number("above 0 samples, 0 is greedy"),
    "top_p": _number("sample from the smallest set of tokens with this probability"),
    "top_k": _whole("sample from the k most likely tokens; 0 is off"),
    "min_p": _number("drop tokens below this share of the best one's probability"),
    "greedy": _on_off("always take the most likely token"),
    "seed": _whole("the same seed gives the same answer"),
    "max_new_tokens": _whole("longest answer; by default it may fill the context"),
    "repetition_penalty": _number("above 1 makes seen tokens less likely"),
    "frequency_penalty": _number("-2..2, for each time a token was generated"),
    "presence_penalty": _number("-2..2, for tokens that were generated"),
    "stop": Setting(kind="text, or a JSON list of texts", help="ends the answer", read=_texts),
    "thinking": _on_off("ask the chat template for reasoning or for none (models that can do both)"),
    "reasoning": _on_off("show the model's reasoning"),
    "markdown": _on_off("render Markdown on a terminal"),
}
"""In the order of `/set` without arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How answers are made and shown. Never changed: :meth:`with_value` gives another one."""

    sampling: SamplingOptions
    thinking: bool | None = None
    """The template's variable ``enable_thinking``; None leaves it out."""
    reasoning: bool | None = None
    """None: shown on a terminal, left out elsewhere."""
    markdown: bool = True

    def params(self, *, package_temperature: float | None) -> SamplingParams:
        """The parameters for a package whose default temperature is ``package_temperature``."""
        return self.sampling.params(package_temperature=package_temperature)

    @property
    def template_kwargs(self) -> dict[str, Any] | None:
        return None if self.thinking is None else {"enable_thinking": self.thinking}

    def with_value(self, name: str, text: str) -> Settings:
        """These settings with one changed; the text ``default`` takes it back.

        Raises:
            InvalidArgumentError: No such setting, or no such value.
        """
        name = name.lower().replace("-", "_")
        setting = SETTINGS.get(name)
        if setting is None:
            raise InvalidArgumentError(f"there is no setting {name}; there are {', '.join(SETTINGS)}")
        value = None
        if text.lower() != DEFAULT:
            try:
                value = setting.read(text)
            except (ValueError, TypeError) as error:
                raise InvalidArgumentError(f"{name} is {text!r}; allowed: {setting.kind}, or default") from error
        return self._with(name, value)

    def _with(self, name: str, value: Any) -> Settings:
        if name in ("thinking", "reasoning"):
            return dataclasses.replace(self, **{name: value})
        if name == "markdown":
            return dataclasses.replace(self, markdown=value is not False)
        changes: dict[str, Any] = {name: value}
        if name == "greedy":
            changes = {"greedy": value is True, "no_greedy": value is False}
        elif name == "stop":
            changes = {"stop": value or ()}
        changed = dataclasses.replace(self, sampling=dataclasses.replace(self.sampling, **changes))
        try:
            changed.params(package_temperature=None)
        except click.UsageError as error:
            raise InvalidArgumentError(error.format_message()) from error
        return changed

    def value(self, name: str) -> Any:
        """The value that was set, or None."""
        if name == "greedy":
            return True if self.sampling.greedy else False if self.sampling.no_greedy else None
        if name in ("thinking", "reasoning", "markdown"):
            return getattr(self, name)
        return getattr(self.sampling, name) or None if name == "stop" else getattr(self.sampling, name)

    def describe(self) -> str:
        """The sampling that is set, in a line: ``greedy`` or ``sampling``, and the values given."""
        given = [f"{name}={self.value(name)}" for name in SETTINGS if self._is_sampling(name)]
        return ", ".join(["greedy" if self.sampling.is_greedy else "sampling", *given])

    def _is_sampling(self, name: str) -> bool:
        return name not in ("greedy", "thinking", "reasoning", "markdown") and self.value(name) is not None

    def as_dict(self) -> dict[str, Any]:
        """Values that were set, for a file."""
        values = {name: self.value(name) for name in SETTINGS}
        return {name: list(value) if name == "stop" else value for name, value in values.items() if value is not None}

    def with_values(self, values: Mapping[str, Any]) -> Settings:
        """These settings with exactly the values of :meth:`as_dict`.

        Raises:
            InvalidArgumentError: As :meth:`with_value`.
        """
        unknown = values.keys() - SETTINGS.keys()
        if unknown:
            raise InvalidArgumentError(f"there is no setting {min(unknown)}; there are {', '.join(SETTINGS)}")
        changed = self
        for name in SETTINGS:
            value = values.get(name)
            text = DEFAULT if value is None else value if isinstance(value, str) else json.dumps(value)
            if isinstance(value, bool):
                text = "on" if value else "off"
            changed = changed.with_value(name, text)
        return changed
