"""``onnx-genai show --config``: the value of each option of a command, and where it comes from.

One rule: command line, then environment, then config file, then package, then default.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from onnx_genai.cli.settings import Config, config_path, described

if TYPE_CHECKING:
    from onnx_genai.package import ModelPackage

__all__ = ["config_facts", "config_lines"]

# Options whose default a package may know; of the same names in its generation defaults.
_PACKAGE_OPTIONS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def config_facts(
    command: click.Command, root: click.Context, config: Config, package: ModelPackage | None
) -> dict[str, Any]:
    """Options of a command, in values that JSON can hold.

    Args:
        command: Whose options.
        root: The context of the command group.
        config: What was read from the config file.
        package: Adds what it says; None leaves it out.
    """
    name = command.name or ""
    context = click.Context(command, info_name=name, parent=root)
    context.default_map = dict(config.values.get(name, {}))
    options = []
    for option, value, where in described(context, config):
        said = _package_value(option.name or "", package) if where == "default" and package is not None else None
        options.append(
            {
                "option": option.opts[-1] if option.name == "threads" else _long_name(option),
                "value": _plain(value if said is None else said[0]),
                "source": where if said is None else said[1],
            }
        )
    return {
        "command": name,
        "config_file": None if config.path is None else str(config.path),
        "precedence": ["command line", "environment", "config file", "package", "default"],
        "options": options,
    }


def config_lines(facts: dict[str, Any]) -> Iterable[str]:
    """The same as a table."""
    yield f"config file: {facts['config_file'] or f'(none; it would be {config_path()})'}"
    yield f"the first that says something wins: {', '.join(facts['precedence'])}"
    yield f"{facts['command']}:"
    rows = [(row["option"], _text(row["value"]), row["source"]) for row in facts["options"]]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for option, value, source in rows:
        yield f"  {option:<{widths[0]}}  {value:<{widths[1]}}  {source}"


def _long_name(option: click.Option) -> str:
    return next((name for name in option.opts if name.startswith("--")), option.opts[0])


def _package_value(name: str, package: ModelPackage) -> tuple[Any, str] | None:
    if name in _PACKAGE_OPTIONS:
        value = getattr(package.generation, name)
        return None if value is None else (value, f"package, {package.generation.source}")
    if name == "threads":
        threads = package.session_options.intra_op_num_threads
        return None if not threads else (threads, "package, session options")
    return None


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _text(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
