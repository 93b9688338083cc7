"""Where the value of an option comes from: command line, environment, config file, default.

The first of them that has a value wins. What a package says stands between config file and default, for the options
that a package knows; see :mod:`onnx_genai.cli.show_config`.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from onnx_genai.errors import InvalidArgumentError, NotFoundError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = [
    "COMMAND_LINE",
    "CONFIG_VARIABLE",
    "ENVIRONMENT_RANK",
    "Config",
    "Setting",
    "config_path",
    "described",
    "environment_names",
    "load_config",
    "name_variables",
    "setting",
    "source_rank",
]

CONFIG_VARIABLE = "ONNX_GENAI_CONFIG"
COMMAND_LINE = 3
"""The rank of what was typed."""
_RANKS = {
    click.core.ParameterSource.DEFAULT: 0,
    click.core.ParameterSource.DEFAULT_MAP: 1,
    click.core.ParameterSource.ENVIRONMENT: 2,
    click.core.ParameterSource.COMMANDLINE: COMMAND_LINE,
    click.core.ParameterSource.PROMPT: COMMAND_LINE,
}
ENVIRONMENT_RANK = _RANKS[click.core.ParameterSource.ENVIRONMENT]
"""Of :func:`source_rank`: from here on somebody wanted it for this start of the program."""


class Setting(click.Option):
    """An option of several commands: ``ONNX_GENAI_GENERATE_EP`` beats ``ONNX_GENAI_EP``."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        name = self._variable_in_use(ctx)
        return None if name is None else os.environ[name]

    def process_value(self, ctx: click.Context, value: Any) -> Any:
        try:
            return super().process_value(ctx, value)
        except click.BadParameter as error:
            name = self._variable_in_use(ctx)
            if name is None or source_rank(ctx, self.name or "") != ENVIRONMENT_RANK:
                raise
            text = f"{error.message} (from the variable {name})"
            raise click.BadParameter(text, ctx=error.ctx, param=error.param) from error

    def _variable_in_use(self, ctx: click.Context) -> str | None:
        return next((name for name in environment_names(self, ctx) if os.environ.get(name)), None)


def setting(*names: str, cls: type[Setting] = Setting, **attributes: Any) -> Callable[[Any], Any]:
    """``click.option`` for an option that several commands share; its variables are ``envvar`` and that of its name."""
    given = attributes.pop("envvar", ())
    own = [_variable("ONNX_GENAI", name) for name in names if name.startswith("--")]
    variables = list(dict.fromkeys([*([given] if isinstance(given, str) else given), *own]))
    return click.option(*names, cls=cls, envvar=variables, **attributes)


def environment_names(option: click.Parameter, context: click.Context) -> list[str]:
    """The variables that an option is read from, the strongest first."""
    names: list[str] = []
    if isinstance(option, click.Option) and option.allow_from_autoenv and context.auto_envvar_prefix and option.name:
        names = [_variable(context.auto_envvar_prefix, name) for name in option.opts if name.startswith("--")]
    given = option.envvar
    return list(dict.fromkeys([*names, *([given] if isinstance(given, str) else given or ())]))


def name_variables(commands: Mapping[str, click.Command], prefix: str) -> None:
    """Gives options that are no :class:`Setting` their variables: ``ONNX_GENAI_SHOW_JSON`` for ``show --json``."""
    for name, command in commands.items():
        for option in command.params:
            if isinstance(option, click.Option) and option.envvar is None and option.allow_from_autoenv:
                own = _variable(prefix, name)
                option.envvar = [_variable(own, text) for text in option.opts if text.startswith("--")] or None


def _variable(prefix: str, name: str) -> str:
    return re.sub(r"[- ]", "_", f"{prefix}_{name.lstrip('-')}").upper()


def source_rank(context: click.Context, name: str) -> int:
    """How strong the source of an option's value is: 0 is the default, 3 the command line."""
    source = context.get_parameter_source(name)
    return 0 if source is None else _RANKS[source]


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A config file that was read and checked."""

    path: Path | None = None
    """None if there is none."""
    values: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By command and the option's name in Python; as click takes it for a default map."""
    places: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Where a value stands: ``[generate] temperature``, or ``temperature`` for a key of all commands."""


def config_path() -> Path:
    """The file that is read when none is named: in the platform's folder for settings of programs."""
    home = Path.home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA", home / "AppData" / "Roaming"))
    else:
        given = os.environ.get("XDG_CONFIG_HOME", "")
        folder = Path(given) if given.startswith("/") else home / ".config"
    return folder / "onnx-genai" / "config.toml"


def load_config(given: str | None, commands: Callable[[], Mapping[str, click.Command]]) -> Config:
    """Reads and checks the config file.

    No file of the working folder is ever read by itself: a foreign folder could name a library to load.

    Args:
        given: The file; None takes the one of :func:`config_path` if it is there, and an empty text none.
        commands: Whose options may be set; asked only if there is a file.

    Raises:
        NotFoundError: ``given`` is no file.
        InvalidArgumentError: No TOML, an unknown table or key, or a value that the option does not take.
    """
    if given == "":
        return Config()
    path = config_path() if given is None else Path(given).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError) as error:
        if given is None:
            return Config()
        raise NotFoundError(f"there is no config file {path}; check --config and {CONFIG_VARIABLE}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: is not UTF-8 (byte {error.start})") from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"{path}: is no TOML: {error}") from error
    return _checked(path, content, commands())


def _checked(path: Path, content: Mapping[str, Any], commands: Mapping[str, click.Command]) -> Config:
    values: dict[str, dict[str, Any]] = {name: {} for name in commands}
    places: dict[tuple[str, str], str] = {}
    everywhere = sorted({key for command in commands.values() for key in _options(command)})
    tables = _tables(content, commands)
    for key, value in content.items():
        if isinstance(value, Mapping):
            continue
        name = _known(path, key, everywhere, "", tables=list(commands))
        for command_name, command in commands.items():
            option = _options(command).get(name)
            if option is not None:
                values[command_name][option.name or name] = _value(path, key, value, option, command)
                places[command_name, option.name or name] = key
    for table, entries in tables.items():
        if table not in commands:
            raise InvalidArgumentError(
                f"{path}: has the table [{table}]{_suggestion(table, list(commands))}; allowed: the commands "
                f"{', '.join(commands)}"
            )
        options, dotted = _options(commands[table]), table.replace(" ", ".")
        for key, value in entries.items():
            option = options[_known(path, key, sorted(options), f"[{dotted}] ")]
            place = f"[{dotted}] {key}"
            values[table][option.name or key] = _value(path, place, value, option, commands[table])
            places[table, option.name or key] = place
    return Config(path=path, values=values, places=places)


def _tables(content: Mapping[str, Any], commands: Mapping[str, click.Command]) -> dict[str, Mapping[str, Any]]:
    """Tables by the command that they are for; ``[bench.serve]`` is for the command of two words."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, table in content.items():
        if isinstance(table, Mapping):
            inner = {key for key, value in table.items() if isinstance(value, Mapping) and f"{name} {key}" in commands}
            found.update({f"{name} {key}": table[key] for key in inner})
            found[name] = {key: value for key, value in table.items() if key not in inner}
    return found


def _options(command: click.Command) -> dict[str, click.Option]:
    """Options by the names that a config file may use: long, without the dashes in front."""
    found: dict[str, click.Option] = {}
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden and option.name not in ("help", "config"):
            found.update({name[2:]: option for name in option.opts if name.startswith("--")})
    return found


def _known(path: Path, key: str, known: list[str], place: str, tables: list[str] | None = None) -> str:
    name = key.replace("_", "-")
    if name in known:
        return name
    if tables and key in tables:
        raise InvalidArgumentError(f"{path}: {key} is a command; write a table, [{key}]")
    raise InvalidArgumentError(
        f"{path}: has the unknown key {place}{key}{_suggestion(name, known)}; the keys are the long options of the "
        "commands, without the dashes in front"
    )


def _suggestion(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f", did you mean {near[0]}?" if near else ""


def _value(path: Path, place: str, value: Any, option: click.Option, command: click.Command) -> Any:
    """The value as click takes it for this option."""
    if option.multiple and not isinstance(value, list):
        value = [value]
    flat = value if isinstance(value, list) else [value]
    right = option.multiple == isinstance(value, list) and all(_fits(each, option) for each in flat)
    if right:
        try:
            option.type_cast_value(click.Context(command), value)
        except click.BadParameter as error:
            raise InvalidArgumentError(f"{path}: {place} is {value!r}: {error.message}") from error
        return value
    raise InvalidArgumentError(f"{path}: {place} is {value!r}; allowed: {_kind(option)}")


def _fits(value: Any, option: click.Option) -> bool:
    if option.is_flag:
        return isinstance(value, bool)
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _kind(option: click.Option) -> str:
    if option.is_flag:
        return "true or false"
    return "a list of texts" if option.multiple else "a text or a number"


def described(context: click.Context, config: Config) -> Iterator[tuple[click.Option, Any, str]]:
    """Options of a command, their values, and their sources: ``environment NAME``, ``config file, KEY``, or default."""
    for option in context.command.params:
        if not isinstance(option, click.Option) or option.hidden or option.name in (None, "help", "show_config"):
            continue
        option.handle_parse_result(context, {}, [])
        value, source = context.params[option.name], context.get_parameter_source(option.name)
        value = None if value is getattr(click.core, "UNSET", None) else value
        where = "default"
        if source is click.core.ParameterSource.ENVIRONMENT:
            where = f"environment {next((n for n in environment_names(option, context) if os.environ.get(n)), '')}"
        elif source is click.core.ParameterSource.DEFAULT_MAP:
            where = f"config file, {config.places.get((context.command.name or '', option.name), option.name)}"
        yield option, value, where
