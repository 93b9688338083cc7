"""Runs the code blocks of README.md and docs/.

* A ``python`` block runs as a script; ``bash`` runs under ``bash -euo pipefail``; in ``console`` the lines after ``$ ``
  run and the others must be in the output, in that order.
* Each block runs alone in an empty folder. ``<!-- continues -->`` in the line before a block adds it to the block of
  the same language before it.
* ``<!-- real_model -->`` marks blocks that need the model behind the alias smollm2, ``<!-- real_model: minilm -->``
  those that need another one.
* ``<!-- norun: reason -->`` leaves a block out.
* Blocks of other languages, or of none, are text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = ("python", "bash", "console")
FENCE = re.compile(r"^(`{3,})(\w*)\s*$")
COMMENT = re.compile(r"^<!--\s*(continues|real_model(?:: minilm)?|norun:\s*(\S.*?))\s*-->$")


@dataclass(frozen=True)
class Block:
    place: str
    language: str
    text: str
    real_model: str = ""
    """The alias of the model that it needs."""


def read_blocks(page: Path, name: str) -> list[Block]:
    """The blocks of a page that are to be run."""
    blocks: list[Block] = []
    marks: list[str] = []
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        fence = FENCE.match(line)
        if fence is None:
            comment = COMMENT.match(line.strip())
            marks = [*marks, comment.group(1)] if comment else []
            continue
        body = []
        for _, inner in lines:
            if inner.rstrip() == fence.group(1):
                break
            body.append(inner)
        language, text = fence.group(2), "\n".join(body)
        if language in LANGUAGES and not any(mark.startswith("norun") for mark in marks):
            if "continues" in marks:
                before = next(block for block in reversed(blocks) if block.language == language)
                text = f"{before.text}\n{text}"
            models = [mark for mark in marks if mark.startswith("real_model")]
            model = (models[0].partition(": ")[2] or "smollm2") if models else ""
            blocks.append(Block(f"{name}:{number}", language, text, model))
        marks = []
    return blocks


def all_blocks() -> list[pytest.param]:
    return [
        pytest.param(block, id=block.place, marks=[pytest.mark.real_model] if block.real_model else [])
        for page in PAGES
        if page.exists()
        for block in read_blocks(page, page.relative_to(ROOT).as_posix())
    ]


def run_block(block: Block, folder: Path) -> None:
    """Runs a block in `folder`; fails with its output."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if block.language == "python":
        command = [sys.executable, "-W", "error", "-c", block.text]
    else:
        command = ["bash", "-euo", "pipefail", "-c", _commands(block)]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"{block.place}\n{block.text}\n--\n{done.stdout}\n{done.stderr}"
    rest = done.stdout
    for line in _expected(block):
        assert line in rest, f"{block.place}: {line!r} is not in the output, or not in this order:\n{done.stdout}"
        rest = rest.split(line, 1)[1]


def _commands(block: Block) -> str:
    if block.language == "bash":
        return block.text
    return "\n".join(line[2:] for line in block.text.splitlines() if line.startswith("$ "))


def _expected(block: Block) -> list[str]:
    if block.language != "console":
        return []
    return [line for line in block.text.splitlines() if not line.startswith("$ ") and line.strip() not in {"", "..."}]


@pytest.mark.slow
@pytest.mark.parametrize("block", all_blocks())
def test_block_of_a_page_runs(block: Block, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if block.real_model:
        request.getfixturevalue(block.real_model)

    run_block(block, tmp_path)


def test_readme_has_blocks_to_run() -> None:
    assert read_blocks(ROOT / "README.md", "README.md")


PAGE = """# Title
```python
x = 1
```
<!-- continues -->
```python
print(x)
```
<!-- norun: needs a network -->
```bash
exit 1
```
<!-- real_model -->
```console
$ echo one; echo two
one
...
two
```
```text
not code
```
"""


def test_read_blocks_joins_and_leaves_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")

    blocks = read_blocks(page, "page.md")

    assert blocks == [
        Block("page.md:2", "python", "x = 1"),
        Block("page.md:6", "python", "x = 1\nprint(x)"),
        Block("page.md:14", "console", "$ echo one; echo two\none\n...\ntwo", real_model="smollm2"),
    ]


def test_run_block_passes_what_is_right(tmp_path: Path) -> None:
    run_block(Block("p:1", "console", "$ echo one; echo two\none\ntwo"), tmp_path)
    run_block(Block("p:1", "python", "import onnx_genai"), tmp_path)
    run_block(Block("p:1", "bash", "true | cat"), tmp_path)


@pytest.mark.parametrize(
    "block",
    [
        Block("p:1", "console", "$ echo one; echo two\ntwo\none"),
        Block("p:1", "console", "$ false"),
        Block("p:1", "python", "raise SystemExit(3)"),
        Block("p:1", "bash", "false | true"),
    ],
)
def test_run_block_fails_what_is_wrong(tmp_path: Path, block: Block) -> None:
    with pytest.raises(AssertionError, match="p:1"):
        run_block(block, tmp_path)
