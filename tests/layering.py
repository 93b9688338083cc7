"""Reads the floors of docs/design/structure.md and finds `#include` and `import` lines that break them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

__all__ = ["Floors", "cpp_violations", "python_violations", "read_floors"]

PACKAGE = "onnx_genai"

# Path patterns below are relative to the repository root. An include that matches a pattern on the left may stand only
# in files that match one on the right.
CPP_SOLE_USERS: dict[str, tuple[str, ...]] = {
    "onnxruntime*": ("cpp/genai/ort/*", "cpp/tests/ort_abi_check.cc"),
    "pybind11*": ("cpp/bindings/*",),
    "Python.h": ("cpp/bindings/*",),
    "llguidance*": ("cpp/genai/grammar/*",),
    "*intrin.h": ("cpp/genai/kernels/*", "cpp/genai/sampling/kernels.cc"),
    "arm_*.h": ("cpp/genai/kernels/*", "cpp/genai/sampling/kernels.cc"),
    "doctest*": ("cpp/genai/*_test.cc", "cpp/genai/*/test_*.h", "cpp/bindings/*_test.cc", "cpp/tests/*"),
}

# Foreign Python module -> the places in the package that may import it. "none": nobody.
PYTHON_SOLE_USERS: dict[str, tuple[str, ...]] = {
    "onnxruntime": (),
    "minijinja": ("template",),
    "jinja2": ("template",),
    "tokenizers": ("tokenizer",),
    "onnx": ("graph", "convert"),
    "onnx_ir": ("graph", "convert"),
    "gguf": ("convert",),
    "huggingface_hub": ("package/hub.py",),
    "starlette": ("server",),
    "uvicorn": ("server",),
    "pydantic": ("server", "grammar/schema.py"),
    "llguidance": ("engine/python_llguidance.py",),
    "prometheus_client": ("server",),
    "opentelemetry": ("server",),
    "click": ("cli",),
    "rich": ("cli",),
    "prompt_toolkit": ("cli",),
}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
FLOOR = re.compile(r"^(\w+):\s*([\w ]*)$")


@dataclass(frozen=True)
class Floors:
    """Floor -> floors it may use, for both languages."""

    cpp: dict[str, frozenset[str]]
    python: dict[str, frozenset[str]]


def read_floors(page: Path) -> Floors:
    """Reads the fenced block whose first line begins with "# cpp:"."""
    block = re.search(r"^```\n(# cpp:.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    if block is None:
        raise ValueError(f"{page} has no fenced block that begins with '# cpp:'")
    tables: dict[str, dict[str, frozenset[str]]] = {}
    current: dict[str, frozenset[str]] = {}
    for line in block.group(1).splitlines():
        if heading := re.match(r"# (\w+):", line):
            current = tables.setdefault(heading.group(1), {})
        elif floor := FLOOR.match(line):
            current[floor.group(1)] = frozenset(floor.group(2).split())
        elif line.strip():
            raise ValueError(f"{page}: cannot read the floor {line!r}")
    return Floors(cpp=tables["cpp"], python=tables["python"])


def cpp_violations(root: Path, floors: Floors) -> list[str]:
    """One "file:line: what is wrong" for each wrong include under root/cpp."""
    found = []
    for path in sorted((root / "cpp").rglob("*")):
        if path.suffix not in {".h", ".cc"}:
            continue
        name = path.relative_to(root).as_posix()
        floor = _cpp_floor(name)
        if floor is not None and floor not in floors.cpp:
            found.append(f"{name}: the folder {floor} is no floor")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            match = INCLUDE.match(line)
            if match:
                reason = _include_fault(name, floor, match.group(1), match.group(2), floors.cpp)
                if reason:
                    found.append(f"{name}:{number}: {reason}")
    return found


def _cpp_floor(name: str) -> str | None:
    """The floor of a file, None for the test main and other files of no floor."""
    parts = name.split("/")
    if parts[:2] == ["cpp", "genai"]:
        return parts[2] if len(parts) > 3 else ""
    return "bindings" if parts[:2] == ["cpp", "bindings"] else None


def _include_fault(
    name: str, floor: str | None, quote: str, target: str, floors: dict[str, frozenset[str]]
) -> str | None:
    for pattern, users in CPP_SOLE_USERS.items():
        if fnmatch(target, pattern) and not any(fnmatch(name, user) for user in users):
            return f"{target} may be included only in {', '.join(users)}"
    if target.startswith("genai/"):
        other = target.split("/")[1]
        if quote == "<":
            return f'write "{target}", not <{target}>'
        if other not in floors:
            return f"{target} belongs to no floor"
        if floor is not None and other != floor and other not in floors[floor]:
            return f"{floor} may not use {other} ({target})"
    elif quote == '"' and target.startswith("."):
        return f"{target} is relative; the include root is cpp/"
    elif quote == '"' and "/" not in target and floor != "bindings":  # bindings may name the file beside it
        return f'{target} is relative; write "genai/<floor>/{target}"'
    return None


def python_violations(root: Path, floors: Floors) -> list[str]:
    """One "file:line: what is wrong" for each wrong import in root/python/onnx_genai."""
    package = root / "python" / PACKAGE
    found = []
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.pyi")]):
        inside = path.relative_to(package)
        module = inside.parts[0].split(".")[0]
        if module == "_core":
            continue
        name = path.relative_to(root).as_posix()
        if module not in floors.python:
            found.append(f"{name}: the module {module} is no floor")
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=name)
        for line, target in _imports(tree, inside):
            reason = _import_fault(inside, module, target, floors.python)
            if reason:
                found.append(f"{name}:{line}: {reason}")
    return found


def _imports(tree: ast.Module, inside: Path) -> Iterator[tuple[int, str]]:
    """All imported dotted names, at any depth of the file; relative ones are made absolute.

    `from a.b import c` gives "a.b.c", because c may be a module.
    """
    folder = [PACKAGE, *inside.parent.parts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = folder[: len(folder) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and _is_dynamic_import(node.func) and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def _is_dynamic_import(function: ast.expr) -> bool:
    return (isinstance(function, ast.Name) and function.id in {"__import__", "import_module"}) or (
        isinstance(function, ast.Attribute) and function.attr == "import_module"
    )


def _import_fault(inside: Path, module: str, target: str, floors: dict[str, frozenset[str]]) -> str | None:
    parts = target.split(".")
    if parts[0] == PACKAGE:
        other = parts[1] if len(parts) > 1 else ""
        if other == module or other in floors[module]:
            return None
        if other in floors or other == "_core":
            return f"{module} may not import {other}"
        return f"import from the module that defines it, not from {PACKAGE} itself ({target})"
    users = PYTHON_SOLE_USERS.get(parts[0])
    if users is None or module in users or inside.as_posix() in users:
        return None
    return f"{parts[0]} may be imported only in {', '.join(users) or 'no module'}"
