"""The page of faults names, for each kind, a test that exists or a reason."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "design" / "server-faults.md"
NUM_WIRE, NUM_FAULTS = 60, 178
NO_REASON = "Does not apply: "


@cache
def rows() -> dict[str, str]:
    """Number -> what the last column says."""
    found: dict[str, str] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.fullmatch(r"[WF]\d+", cells[0]):
            assert len(cells) == 3, line
            assert cells[1], line
            assert cells[0] not in found, f"{cells[0]} is there twice"
            found[cells[0]] = cells[2]
    return found


@cache
def known_tests() -> frozenset[str]:
    """Names of all tests, in Python and C++."""
    names: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        names.update(re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))
    for path in (ROOT / "cpp").rglob("*_test.cc"):
        names.update(re.findall(r'TEST_CASE\(\s*"(\w+)"', path.read_text(encoding="utf-8")))
    return frozenset(names)


def test_every_kind_has_its_line() -> None:
    wanted = [f"W{number}" for number in range(1, NUM_WIRE + 1)] + [f"F{number}" for number in range(1, NUM_FAULTS + 1)]

    assert [number for number in wanted if number not in rows()] == []


def test_every_test_that_is_named_is_there() -> None:
    for number, text in rows().items():
        named = [name for name in re.findall(r"`(\w+)`", text) if re.match(r"test_|[A-Z]\w+_", name)]
        assert named or text.startswith(NO_REASON), f"{number} has neither a test nor a reason"
        assert set(named) <= known_tests(), f"{number} names what is not there: {sorted(set(named) - known_tests())}"
        if text.startswith(NO_REASON):
            assert len(text) > len(NO_REASON) + 5, f"{number} gives no reason"


def test_every_file_that_is_named_is_there() -> None:
    for path in re.findall(r"`((?:benchmarks|tests)/[\w/.]+)`", PAGE.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), path
