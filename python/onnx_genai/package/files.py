"""Reading the files of a package safely: inside its folder, of a sane size, and with errors that name the file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import yaml

from onnx_genai.errors import NotFoundError, PackageError

__all__ = ["LFS_MARK", "PackageFolder", "check_payload", "parse_json", "parse_yaml"]

LFS_MARK = b"version https://git-lfs"
MAX_TEXT_BYTES = 256 * 1024 * 1024
"""Largest text file that is read; the biggest known tokenizer.json has about 40 MB."""
MAX_METADATA_BYTES = 16 * 1024 * 1024
MAX_YAML_NODES = 500_000
"""Nodes of a YAML document after its aliases are followed; stops documents that grow without bound."""


class PackageFolder:
    """The folder of a package. All reads stay inside it; thread-safe (no state)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        resolved = root.resolve()
        self._allowed = [resolved]
        # A hub cache keeps the content of models--x/snapshots/REV/FILE in models--x/blobs, reached by links.
        for parent in (resolved, *resolved.parents):
            if parent.parent.name == "snapshots":
                self._allowed.append(parent.parent.parent / "blobs")
                break

    def resolve(self, name: str, *, origin: str) -> Path:
        r"""Returns the absolute path of a file reference in the package.

        Args:
            name: Relative path as written, with ``/`` or ``\``.
            origin: File and key that hold the reference, for errors.

        Raises:
            PackageError: The reference is absolute, has ``..``, or leads out of the folder through a link.
        """
        posix = name.replace("\\", "/")
        path = PurePosixPath(posix)
        if not name or "\0" in name:
            raise PackageError(f"{origin} is {name!r}; expected the relative path of a file in the package")
        if path.is_absolute() or PureWindowsPath(name).is_absolute() or PureWindowsPath(name).drive:
            raise PackageError(
                f"{origin} is the absolute path {name!r}; expected a path relative to {self.root}. "
                "Put the file into the package folder and name it there."
            )
        if ".." in path.parts:
            raise PackageError(
                f"{origin} is {name!r}, which leaves the package folder {self.root}; expected a path without '..'. "
                "Put the file into the package folder and name it there."
            )
        target = self.root.joinpath(*path.parts)
        self.check_inside(target, origin=origin)
        return target

    def check_inside(self, path: Path, *, origin: str) -> None:
        """Raises PackageError if ``path`` is a link that leads out of the package folder."""
        try:
            real = path.resolve()
        except (OSError, RuntimeError, ValueError) as error:  # a cycle of links, or a name that no file can have
            raise PackageError(f"{origin}: {path} cannot be resolved ({error})") from error
        if not any(real == base or base in real.parents for base in self._allowed):
            raise PackageError(
                f"{origin}: {path} is a link to {real}, outside the package folder {self.root}. "
                "Copy the file into the folder instead of linking it."
            )

    def find(self, names: Iterable[str]) -> Path | None:
        """Returns the first of these files that exists, or None."""
        for name in names:
            path = self.root / name
            if path.is_file() or path.is_symlink():
                return path
        return None

    def text(self, path: Path, *, limit: int = MAX_TEXT_BYTES) -> str:
        """Returns the text of a file of the package; a byte order mark is dropped."""
        self.check_inside(path, origin=path.name)
        return read_text(path, limit=limit)

    def json(self, name: str) -> dict[str, Any] | None:
        """Returns the object in a JSON file of the package, or None if there is no such file."""
        path = self.find([name])
        return None if path is None else self.json_file(path)

    def json_file(self, path: Path) -> dict[str, Any]:
        """Returns the object in a JSON file of the package."""
        return as_object(parse_json(self.text(path), path), path)


def is_file(path: Path) -> bool:
    """True for an existing file; False also for names that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def read_bytes_head(path: Path, count: int = 128) -> bytes:
    """Returns the first bytes of a file; errors are typed."""
    try:
        with path.open("rb") as file:
            return file.read(count)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such file") from error
    except OSError as error:
        raise PackageError(f"{path}: cannot be read ({error.strerror or error})") from error


def check_payload(path: Path) -> None:
    """Raises PackageError if the file is empty or a Git LFS pointer instead of its content."""
    head = read_bytes_head(path)
    if head.startswith(LFS_MARK):
        raise PackageError(
            f"{path}: this is a Git LFS pointer, not the file itself. "
            "Run 'git lfs pull' in the folder, or download the file again."
        )
    if not head:
        raise PackageError(f"{path}: the file is empty. Download it again.")


def read_text(path: Path, *, limit: int) -> str:
    check_payload(path)
    try:
        size = path.stat().st_size
        if size > limit:
            raise PackageError(f"{path}: has {size} bytes; the limit for such a file is {limit}")
        data = path.read_bytes()
    except OSError as error:
        raise PackageError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PackageError(
            f"{path}: is not UTF-8 text (byte {error.start}). Save it as UTF-8, or download it again."
        ) from error


def as_object(value: Any, path: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise PackageError(f"{path}: holds {type_name(value)} at the top; expected an object with named keys")
    for key in value:
        if not isinstance(key, str):
            raise PackageError(f"{path}: key {key!r} is {type_name(key)}; expected text")
    return value


_TYPE_NAMES: dict[type, str] = {
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
}


def type_name(value: object) -> str:
    """How a JSON or YAML value is called in errors."""
    if value is None:
        return "null"
    return _TYPE_NAMES.get(type(value), type(value).__name__)


def parse_json(text: str, path: Path) -> Any:
    """Returns the value of a JSON text.

    Raises:
        PackageError: The text is not JSON; names file, line and column.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise PackageError(
            f"{path}: is not valid JSON ({error.msg} at line {error.lineno}, column {error.colno}). "
            "The file may be cut off; download it again."
        ) from error
    except RecursionError as error:
        raise PackageError(f"{path}: is nested too deeply") from error
    except ValueError as error:  # a number with thousands of digits
        raise PackageError(f"{path}: holds a value that cannot be read ({error})") from error


def parse_yaml(text: str, path: Path) -> Any:
    """Returns the value of a YAML text with plain scalars, lists and maps only.

    Raises:
        PackageError: Not YAML, a key given twice, a cyclic alias, or more than MAX_YAML_NODES nodes.
    """
    loader: Any = None
    try:
        loader = yaml.SafeLoader(text) if not hasattr(yaml, "CSafeLoader") else yaml.CSafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return {}
        _check_nodes(node, path)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise PackageError(f"{path}: is not valid YAML ({error.problem or error.context}{where})") from error
    except yaml.YAMLError as error:
        raise PackageError(f"{path}: is not valid YAML ({error})") from error
    except RecursionError as error:
        raise PackageError(f"{path}: is nested too deeply") from error
    except (ValueError, TypeError, OverflowError) as error:  # bad dates, huge numbers, keys that cannot be hashed
        raise PackageError(f"{path}: holds a value that cannot be read ({error})") from error
    finally:
        if loader is not None:
            loader.dispose()


def _check_nodes(root: yaml.Node, path: Path) -> None:
    """Counts nodes with aliases followed, and refuses cycles and double keys."""
    count = 0
    open_nodes: set[int] = set()
    stack: list[tuple[yaml.Node, bool]] = [(root, False)]
    while stack:
        node, leaving = stack.pop()
        if leaving:
            open_nodes.discard(id(node))
            continue
        count += 1
        if count > MAX_YAML_NODES:
            raise PackageError(f"{path}: has more than {MAX_YAML_NODES} values once its aliases are followed")
        if isinstance(node, yaml.ScalarNode):
            continue
        if id(node) in open_nodes:
            raise PackageError(f"{path}: line {node.start_mark.line + 1} holds itself through an alias")
        open_nodes.add(id(node))
        stack.append((node, True))
        if isinstance(node, yaml.MappingNode):
            _check_double_keys(node, path)
            for key, value in node.value:
                stack.extend(((key, False), (value, False)))
        else:
            stack.extend((child, False) for child in node.value)


def _check_double_keys(node: yaml.MappingNode, path: Path) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue
        if key.value in seen:
            raise PackageError(f"{path}: line {key.start_mark.line + 1} gives the key {key.value!r} a second time")
        seen.add(key.value)


def require_file(path: Path, *, origin: str, root: Path) -> None:
    """Raises PackageError unless ``path`` is a readable file that is neither empty nor an LFS pointer."""
    if not is_file(path):
        present = sorted(p.name for p in path.parent.glob("*.onnx")) if path.parent.is_dir() else []
        listing = f" The folder has: {', '.join(present[:8])}." if present else ""
        what = "does not exist"
        raise PackageError(f"{origin} names {path}, which {what}.{listing} Download the missing file into {root}.")
    check_payload(path)
