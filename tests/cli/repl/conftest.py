"""Fixtures of the tests of ``run``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Ran, Run
from tests.cli.repl.piped import ANSWER, Chat


@pytest.fixture
def chat(run: Run, scripted_package: Callable[..., Path]) -> Chat:
    """``chat(*lines, options=(), says=ANSWER, **package)``: a session in which these lines are piped in."""

    def go(*lines: str, options: tuple[object, ...] = (), says: str = ANSWER, **package: object) -> Ran:
        stdin = "".join(f"{line}\n" for line in lines).encode()
        return run("run", scripted_package(says, **package), *options, stdin=stdin)

    return go
