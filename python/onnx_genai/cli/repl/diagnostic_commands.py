"""Slash commands that measure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from onnx_genai.cli.repl.command import Command
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.cli.repl.loop import Repl

__all__ = ["DIAGNOSTIC_COMMANDS"]

CELLS = 32
HELD, KEPT, FREE = "█", "▒", "·"


def _stats(repl: Repl, argument: str) -> None:
    if argument.lower() not in ("", "on", "off"):
        raise InvalidArgumentError(f"stats is {argument!r}; allowed: on, off, or nothing, which switches")
    repl.shows_stats = argument.lower() == "on" if argument else not repl.shows_stats
    repl.screen.say("stats enabled" if repl.shows_stats else "stats disabled")


def _profile(repl: Repl, argument: str) -> None:
    repl.screen.say(repl.profiler.command(argument))


def _profile_words(_repl: Repl) -> Iterable[tuple[str, str]]:
    return (
        ("on", "a report after each turn, and a timeline"),
        ("off", "no report"),
        ("trace", "write a timeline to a file; trace off stops"),
        ("verbosity", "decisions, ops or full"),
    )


def _pages(repl: Repl, _argument: str) -> None:
    info, now = repl.host.llm.info(), repl.host.llm.metrics()
    total, block = int(now.get("kv_hot_blocks", 0)), int(str(info.get("block_size", 0) or 0))
    if not info.get("shares_blocks") or not total:
        repl.screen.say(f"the KV cache of this model is not paged ({repl.host.decoder} decoder)")
        return
    held, kept = int(now["kv_hot_used_blocks"]), int(now["kv_hot_cached_blocks"])
    repl.screen.table(
        f"KV pages {_bar(held, kept, total)} {100 * (held + kept) / total:.0f} %",
        [
            ("held by running requests", f"{_part(held, total, 'page')} of {counted(block, 'token')}"),
            ("kept for later turns", f"{counted(kept, 'page')}, {counted(kept * block, 'token')}"),
            ("free", counted(total - held - kept, "page")),
            ("token slots in use", _part((held + kept) * block, total * block, "token")),
            ("live sequences", f"{int(now['num_running'])} running, {int(now['num_waiting'])} waiting"),
            *(
                (f"{tier} tier", _part(now[f"kv_{tier}_used_blocks"], now[f"kv_{tier}_blocks"], "page"))
                for tier in ("warm", "cold")
                if now[f"kv_{tier}_blocks"]
            ),
            ("evicted so far", counted(int(now["kv_evicted_blocks"]), "page")),
            ("reused so far", _part(now["prefix_hit_tokens"], now["prefix_queried_tokens"], "prompt token")),
        ],
    )


def _part(part: float, whole: float, noun: str) -> str:
    return f"{int(part)} of {counted(int(whole), noun)}"


def _bar(held: int, kept: int, total: int) -> str:
    """Cells in proportion; what is there has one at least."""
    first = -(-held * CELLS // total)
    second = min(-(-kept * CELLS // total), CELLS - first)
    return HELD * first + KEPT * second + FREE * (CELLS - first - second)


def _on_off(_repl: Repl) -> Iterable[tuple[str, str]]:
    return (("on", ""), ("off", ""))


DIAGNOSTIC_COMMANDS = (
    Command(
        name="/stats",
        arguments="[on|off]",
        summary="numbers after each answer",
        category="diagnostics",
        run=_stats,
        choices=_on_off,
    ),
    Command(name="/pages", summary="how full the KV cache is", category="diagnostics", run=_pages),
    Command(
        name="/profile",
        arguments="[on|off|trace PATH|verbosity LEVEL]",
        summary="a report after each turn, and a timeline in a file (trace off stops it)",
        category="diagnostics",
        run=_profile,
        choices=_profile_words,
        takes_path=True,
    ),
)
