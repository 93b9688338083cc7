"""Profiling on every command: the options, :class:`Profiler`, and what ``/profile`` does in ``run``."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onnx_genai.cli import console
from onnx_genai.cli.profile_report import AnswerTimes, Report
from onnx_genai.cli.repl import terminal
from onnx_genai.cli.settings import Setting, environment_names, setting
from onnx_genai.errors import InvalidArgumentError

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM, AsyncLLM, Profile, Recording, Verbosity

__all__ = ["PROFILE_NAMES", "AnswerTimes", "ProfileOptions", "Profiler", "profile_options"]

Command = TypeVar("Command", bound=Callable[..., Any])

SESSION_TRACE = Path("onnx-genai-session.perfetto.json")
"""Where ``/profile on`` writes a trace when no place was given."""

VERBOSITIES: tuple[Verbosity, ...] = ("decisions", "ops", "full")
_SYNONYMS: Mapping[str, Verbosity] = {"detail": "full"}

PROFILE_NAMES = ("profile", "profile_json", "profile_trace", "profile_verbosity")
"""The options of :func:`profile_options`, by their names in Python."""
VARIABLE = "ONNX_GENAI_PROFILE"
_SWITCHED_ON = ("1", "true", "yes")


class _ProfileSetting(Setting):
    """``--profile``, whose variable for all commands is on for three words exactly, and off for any other."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        for name in environment_names(self, ctx):
            value = os.environ.get(name)
            if value:
                return value if name != VARIABLE else "1" if value in _SWITCHED_ON else "0"
        return None


_OPTIONS = (
    setting(
        "--profile",
        cls=_ProfileSetting,
        is_flag=True,
        help="Print where time and memory went, on stderr, after the run.",
    ),
    setting("--profile-json", metavar="PATH", help="Write the same as one JSON object; - is stdout."),
    setting(
        "--profile-trace",
        type=click.Path(path_type=Path),
        envvar="ONNX_GENAI_TRACE",
        metavar="PATH",
        help="Write a timeline for ui.perfetto.dev or chrome://tracing.",
    ),
    setting(
        "--profile-verbosity",
        type=click.Choice((*VERBOSITIES, *_SYNONYMS), case_sensitive=False),
        envvar="ONNX_GENAI_TRACE_VERBOSITY",
        default="full",
        show_default=True,
        help="How much is recorded: steps; and operators; and every token.",
    ),
)


def profile_options(command: Command) -> Command:
    """Adds the options of :class:`ProfileOptions` to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def parse_verbosity(text: str) -> Verbosity:
    """``decisions``, ``ops`` or ``full`` in any case; ``detail`` is ``full``.

    Raises:
        InvalidArgumentError: It is another word; the text lists the words.
    """
    word = text.strip().lower()
    for known in VERBOSITIES:
        if word == known or _SYNONYMS.get(word) == known:
            return known
    raise InvalidArgumentError(f"verbosity is {text.strip()!r}; allowed: {', '.join(VERBOSITIES)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """What the command line asks for."""

    profile: bool = False
    profile_json: str | None = None
    profile_trace: Path | None = None
    profile_verbosity: str = "full"

    def __post_init__(self) -> None:
        # Found now, and not after the answer that took minutes.
        for name, path in (("--profile-json", self._json_path), ("--profile-trace", self.profile_trace)):
            if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
                raise click.UsageError(f"{name} is {str(path)!r}; name a file in a folder that exists")
        if self.profile_trace == Path("-"):
            raise click.UsageError("--profile-trace is '-'; a timeline is written to a file: name one")
        if self.profile_trace is not None and self.profile_trace == self._json_path:
            raise click.UsageError("--profile-json and --profile-trace name the same file; name two")

    @classmethod
    def take(cls, values: Mapping[str, Any]) -> ProfileOptions:
        """The object that the values of the command line fill."""
        return cls(
            profile=values["profile"],
            profile_json=values["profile_json"],
            profile_trace=values["profile_trace"],
            profile_verbosity=values["profile_verbosity"],
        )

    @property
    def _json_path(self) -> Path | None:
        return None if self.profile_json in (None, "-") else Path(str(self.profile_json))


class Profiler:
    """Profiles one command. Does nothing where nothing was asked for. One thread.

    Example:
        >>> profiler = Profiler(ProfileOptions.take(values))  # doctest: +SKIP
        >>> with profiler.phase("model load"):  # doctest: +SKIP
        ...     llm = loading.open(path)
        >>> profiler.begin(llm)  # doctest: +SKIP
        >>> answer = AnswerTimes()  # doctest: +SKIP
        >>> for chunk in llm.stream("Hello"):  # doctest: +SKIP
        ...     answer.add(chunk)
        >>> profiler.end(answer)  # doctest: +SKIP

    With several turns, ``begin`` and ``end`` stand around each; the files are written anew after each, the timeline
    with all turns so far. ``close`` ends the recording; a model that is loaded anew ends it as well.
    """

    def __init__(self, options: ProfileOptions) -> None:
        self.reports = options.profile
        """Print the report after each turn."""
        self.trace_path = options.profile_trace
        self.verbosity = parse_verbosity(options.profile_verbosity)
        self._json = options.profile_json
        self._phases: list[tuple[str, float]] = []
        self._counters: list[tuple[str, float, str]] = []
        self._spans: list[tuple[str, int, int]] = []
        self._earlier: list[dict[str, Any]] = []
        """Events of recordings that have ended, for the timeline."""
        self._num_ended = 0
        self._llm: LLM | AsyncLLM | None = None
        self._recording: Recording | None = None
        self._metrics: Mapping[str, float] = {}
        self._begun = 0.0

    @property
    def wanted(self) -> bool:
        """Something is to be measured."""
        return self.reports or self._json is not None or self.trace_path is not None

    @property
    def shows_report(self) -> bool:
        """The report is printed, and the line of numbers is not needed."""
        return self.reports

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measures a part of the command: ``model load``, ``render``, ``transcription``."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self._phases.append((name, (end - start) / 1e9))
            self._spans.append((name, start, end))

    def counter(self, name: str, value: float, unit: str) -> None:
        """A figure of the command's own for the next report, such as ``("requests", 20, "")``."""
        self._counters.append((name, value, unit))

    def begin(self, llm: LLM | AsyncLLM) -> None:
        """A turn begins: what comes now until :meth:`end` is measured."""
        if not self.wanted:
            return
        if self._llm is not llm:
            self._stop()
            self._llm = llm
        if self._recording is not None and self._recording.verbosity != self.verbosity:
            self._stop()
        if self._recording is None:
            self._recording = llm.engine.start_profile(self.verbosity)
        self._recording.mark()
        self._metrics = llm.metrics()
        self._begun = time.perf_counter()

    def end(self, answer: AnswerTimes | None = None) -> None:
        """The turn has ended: prints the report and writes the files.

        Args:
            answer: The one answer of the turn; None where there were several or none: then the engine's own record of
                its requests is reported.
        """
        if not self.wanted or self._llm is None or self._recording is None:
            return
        finished = time.perf_counter()
        self._spans.append(("turn", int(self._begun * 1e9), int(finished * 1e9)))
        profile = self._recording.snapshot()
        report = Report.of(
            self._llm,
            profile,
            metrics_before=self._metrics,
            phases=self._phases,
            counters=self._counters,
            answer=answer if answer is not None else AnswerTimes.of_requests(profile, self._begun, finished),
            finished=finished,
        )
        self._counters = []
        if self.reports:
            width = terminal.size()[0] - 1 if sys.stderr.isatty() else None
            console.note("\n" + "\n".join(report.lines(width)))
        if self._json is not None:
            self._write_json(report)
        if self.trace_path is not None:
            self._write_trace(profile)

    def close(self) -> None:
        """Ends the recording; a second call does nothing."""
        self._stop()
        self._llm = None

    def command(self, argument: str) -> str:
        """Obeys ``/profile ARGUMENT`` and returns what to print.

        Raises:
            InvalidArgumentError: The argument is none of ``on``, ``off``, ``trace PATH``, ``trace off``, ``verbosity
                LEVEL``; the text lists them.
        """
        word, _, rest = argument.strip().partition(" ")
        rest = rest.strip()
        word = word.lower()
        if not word:
            return self._state()
        if word == "on" and not rest:
            self.reports = True
            if self.trace_path is None:
                self.trace_path = SESSION_TRACE
            return self._state()
        if word == "off" and not rest:
            self.reports = False
            self._stop_if_unwanted()
            return self._state()
        if word == "trace" and rest:
            self._set_trace(rest)
            return self._state()
        if word == "verbosity" and rest:
            self.verbosity = parse_verbosity(rest)
            cost = "; costs about 4 % of the speed" if self.verbosity == "full" else ""
            return f"profile verbosity {self.verbosity}{cost}"
        raise InvalidArgumentError(
            f"/profile {argument.strip()!r} is not known; use /profile on, /profile off, /profile trace PATH, "
            f"/profile trace off, or /profile verbosity {'|'.join(VERBOSITIES)}"
        )

    def _set_trace(self, text: str) -> None:
        from onnx_genai.cli.repl.loop import user_path  # which imports this module

        if text.lower() == "off":
            if not self.reports and self._json is None:
                self.close()
            self.trace_path = None
            return
        path = user_path(text)
        if path.is_dir() or not path.absolute().parent.is_dir():
            raise InvalidArgumentError(f"the trace's path is {text!r}; name a file in a folder that exists")
        self.trace_path = path

    def _state(self) -> str:
        report = "on" if self.reports else "off"
        trace = "off" if self.trace_path is None else f"{self.trace_path} ({self.verbosity})"
        return f"profile report {report}, timeline {trace}"

    def _stop_if_unwanted(self) -> None:
        if not self.wanted:
            self.close()

    def _stop(self) -> None:
        if self._recording is not None:
            ended = self._recording.stop()
            self._recording = None
            if self.trace_path is not None:
                self._num_ended += 1
                self._earlier += [_numbered(event, self._num_ended << 32) for event in ended.trace_events()]

    def _write_json(self, report: Report) -> None:
        text = report.json_line()
        if self._json == "-":
            console.write(text)
        else:
            Path(str(self._json)).write_text(text, encoding="utf-8")

    def _write_trace(self, profile: Profile) -> None:
        path = self.trace_path
        if path is None:
            return
        profile.write_trace(path, host_spans=self._spans, earlier=self._earlier)
        console.note(f"[profile] wrote {path}; open it at https://ui.perfetto.dev (or chrome://tracing)")


def _numbered(event: dict[str, Any], more: int) -> dict[str, Any]:
    """The event with another id: an engine that is made anew counts its requests anew."""
    given = event.get("id")
    if given is None:
        return event
    return {**event, "id": given + more if isinstance(given, int) else hex(int(given, 16) + more)}
