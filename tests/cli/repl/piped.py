"""A session of ``run`` that gets its lines from a pipe."""

from __future__ import annotations

from collections.abc import Callable

from tests.cli.conftest import Ran

__all__ = ["ANSWER", "Chat", "answers"]

Chat = Callable[..., Ran]

ANSWER = "Hello wörld 😀"
"""What the model says unless a test wants something else."""


def answers(ran: Ran) -> list[str]:
    """What stands behind each prompt."""
    return [part.removesuffix("\n") for part in ran.out.split(">>> ")[1:]]
