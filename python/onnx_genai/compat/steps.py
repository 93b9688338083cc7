"""Requests to the engine on behalf of a generator: :class:`Steps`."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnx_genai.compat.guidance import Answers, Guidance, constrained
from onnx_genai.compat.hooks import Capture, CountSteps, Replace
from onnx_genai.compat.model import Model
from onnx_genai.compat.rows import Rows
from onnx_genai.compat.search import SearchOptions
from onnx_genai.engine import AdapterSpans, Generation, LoadedAdapter, RequestOptions
from onnx_genai.errors import InternalError, InvalidArgumentError, UnsupportedError
from onnx_genai.types import Result, SamplingParams

__all__ = ["Context", "Steps"]

_WINDOWS = (1, 64)
"""Tokens of the first window, and of the longest."""
_WINDOWS_WITHOUT_SHARING = (32, 512)
"""Where each window computes the whole context anew."""
_PLAIN = RequestOptions(accept_equal_logits=True)
"""Scripts expect the first of equal tokens where a model is a stub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a model has before its next token."""

    prompt: Sequence[int]
    answer: Sequence[int] = ()
    """Of an encoder-decoder: what its decoder has written. Else it is a part of the prompt."""
    adapters: AdapterSpans = ()
    """From which token of the sequence on it runs with what."""

    def then(self, tokens: Sequence[int], *, apart: bool) -> Context:
        """With more tokens; ``apart`` as part of the answer."""
        if apart:
            return dataclasses.replace(self, answer=(*self.answer, *tokens))
        return dataclasses.replace(self, prompt=(*self.prompt, *tokens))


class Steps:
    """Next tokens, logits and beams of rows. One thread at a time.

    Tokens are asked for in windows that double: the engine computes a window while the caller looks at the token
    before, and what is computed beyond the last token that the caller takes is at most as much again, or the first
    window.

    Args:
        model: What computes.
        options: How tokens are chosen.
        ends: Ids that end a row.
        guidance: What the answers of rows are constrained to. A window then reaches to the end.
    """

    def __init__(
        self, model: Model, options: SearchOptions, ends: frozenset[int], guidance: Guidance | None = None
    ) -> None:
        self._engine = model.engine
        self.source_width: int | None = 0 if model.engine.is_encoder_decoder else None
        """Of an encoder-decoder: the columns of the source; what follows them is written by the decoder."""
        self._options = options
        self._ends = ends
        self._guidance = guidance
        self._answers = None if guidance is None else Answers(guidance, self._engine)
        self._seed = secrets.randbits(63) if options.random_seed < 0 else options.random_seed
        shares = bool(self._engine.info().get("shares_blocks"))
        self._first_window, self._longest_window = _WINDOWS if shares else _WINDOWS_WITHOUT_SHARING
        self._window = self._first_window
        self._running: list[_Row | None] = []
        self._adapters: list[tuple[int, LoadedAdapter]] = []
        """From which column on rows run with what, in order."""

    def next_tokens(self, rows: Rows) -> list[int | None]:
        """The next token of each row; None for rows that have ended. After an error the rows can be tried again."""
        try:
            if all(row is None or row.empty for row in self._running):
                self._start(rows)
            return [
                None if running is None or rows.has_ended(row) else running.take()
                for row, running in enumerate(self._running)
            ]
        except BaseException:  # also Ctrl-C: some rows would be a token ahead
            self.forget()
            raise

    def forget(self) -> None:
        """Ends what runs: the rows are about to change otherwise than by the tokens that were taken."""
        for row in self._running:
            if row is not None:
                row.close()
        self._running = []
        self._window = self._first_window

    def append(self, rows: Rows) -> None:
        """The caller is about to append tokens to the rows."""
        self.forget()
        if self._answers is not None:
            self._answers.end(rows)

    def cut(self, width: int) -> None:
        """The caller drops the columns from ``width`` on."""
        self.forget()
        if self._answers is not None:
            self._answers.cut(width)
        if self._adapters:
            self.use_adapter(self._adapters[-1][1], width)

    def use_adapter(self, adapter: LoadedAdapter, column: int) -> None:
        """Runs columns from this one on with an adapter, or with the one that is in use there already."""
        self._adapters = [(first, each) for first, each in self._adapters if first < column]
        if not self._adapters or self._adapters[-1][1] is not adapter:
            self._adapters.append((column, adapter))

    def context(self, rows: Rows, row: int, width: int | None = None) -> Context:
        """What the model has before the next token of a row, of its first ``width`` columns; None is all."""
        ids = rows.real(row, width)
        adapters = self._spans(rows, row)
        if self.source_width is None:
            return Context(prompt=ids, adapters=adapters)
        source = rows.real(row, self.source_width if width is None else min(width, self.source_width))
        return Context(prompt=source, answer=ids[len(source) :], adapters=adapters)

    def _spans(self, rows: Rows, row: int) -> AdapterSpans:
        """The adapters of a row by the places of its tokens in what the decoder runs."""
        places: dict[int, LoadedAdapter] = {}
        for column, adapter in self._adapters:
            place = len(rows.real(row, column))
            if self.source_width is not None:  # its decoder begins with a token of its own
                place = min(column, 1) + max(0, place - len(rows.real(row, self.source_width)))
            places[place] = adapter
        return tuple(sorted(places.items(), key=lambda item: item[0]))

    def logits(self, contexts: Sequence[Context]) -> list[npt.NDArray[np.float32]]:
        """The model's own logits after each context: float32 ``[vocab]`` each."""
        hooks = [Capture() for _ in contexts]
        self._finish([(context, _capturing(hook)) for context, hook in zip(contexts, hooks, strict=True)])
        found = [hook.logits for hook in hooks if hook.logits is not None]
        if len(found) != len(hooks):
            raise InternalError("a step ended without logits")
        return found

    def choose(self, rows: Rows, logits: npt.NDArray[np.float32]) -> list[int | None]:
        """The next token of each row if the model's logits were ``logits``: float32 ``[rows, vocab]``."""
        if self._guidance is not None:
            raise UnsupportedError("set_logits with set_guidance is not available; use one of them")
        live = [row for row in range(rows.count) if not rows.has_ended(row)]
        tokens: list[int | None] = [None] * rows.count
        requests = []
        for row in live:
            hook = Replace(logits[row], self._options, rows.width, self._ends)
            if not self._options.draws:
                tokens[row] = _most_likely(hook.row(np.asarray(rows.real(row), dtype=np.int32)), row)
                continue
            params = self._options.params(total=rows.width, new=1, seed=self._seed_of(row, rows.width))
            params = dataclasses.replace(
                params,
                min_new_tokens=0,
                repetition_penalty=1.0,
                no_repeat_ngram_size=0,
                ignore_eos=True,
                logits_processors=(hook,),
            )
            requests.append((self.context(rows, row), params))
        if not requests:
            return tokens
        for row, result in zip(live, self._finish(requests), strict=True):
            tokens[row] = result.token_ids[0]
        return tokens

    def beams(self, rows: Rows) -> tuple[list[list[list[int]]], int]:
        """For each row its returned beams, best first, as generated ids; and how many steps the search takes."""
        params = self._options.params(total=rows.width, new=self._options.max_length - rows.width, seed=0)
        counts = [CountSteps() for _ in range(rows.count)]
        found = self._beams(rows, [dataclasses.replace(params, logits_processors=(count,)) for count in counts])
        return found, max(count.steps for count in counts)

    def beams_after(self, rows: Rows, steps: int) -> list[list[list[int]]]:
        """For each row all of its beams after so many steps of the search, best first, as generated ids."""
        params = self._options.params(total=rows.width, new=steps, seed=0)
        return self._beams(rows, [dataclasses.replace(params, n=self._options.num_beams)] * rows.count)

    def _beams(self, rows: Rows, params: Sequence[SamplingParams]) -> list[list[list[int]]]:
        results = self._finish([(self.context(rows, row), own) for row, own in enumerate(params)])
        return [[list(choice.token_ids) for choice in result.choices] for result in results]

    def without_end(self, ids: Sequence[int]) -> list[int]:
        """The ids without the end token, if they have one."""
        return list(ids[:-1]) if ids and ids[-1] in self._ends else list(ids)

    def _start(self, rows: Rows) -> None:
        rest = self._options.max_length - rows.width
        new = rest if self._guidance is not None else min(self._window, rest)
        self._window = min(self._window * 2, self._longest_window)
        self._running = [None] * rows.count
        requests: dict[int, tuple[Context, SamplingParams, RequestOptions]] = {}
        # A grammar may end a row where the model wrote no end.
        end = None if self._guidance is None else min(self._ends, default=None)
        for row in range(rows.count):
            if rows.has_ended(row):
                continue
            options: RequestOptions | None = _PLAIN
            if self._guidance is not None and self._answers is not None:
                written, is_whole = self._answers.go_on(rows, row)
                options = None if is_whole else constrained(self._guidance, written)
            if options is None:
                self._running[row] = _Row(None, end=end)
                continue
            params = self._options.params(total=rows.width, new=new, seed=self._seed_of(row, rows.width))
            requests[row] = (self.context(rows, row), params, options)
        for row, generation in zip(requests, self._submit(list(requests.values())), strict=True):
            self._running[row] = _Row(generation, end=end)

    def _submit(self, requests: Sequence[tuple[Context, SamplingParams, RequestOptions]]) -> list[Generation]:
        """Starts requests together, so that their rows go through the graph side by side."""
        return self._engine.submit_all(
            [
                (
                    context.prompt,
                    params,
                    dataclasses.replace(options, answer_prefix=context.answer, adapters=context.adapters),
                )
                for context, params, options in requests
            ]
        )

    def _finish(self, requests: Sequence[tuple[Context, SamplingParams]]) -> list[Result]:
        """Runs requests together."""
        started = self._submit([(context, params, _PLAIN) for context, params in requests])
        try:
            return [generation.result() for generation in started]
        finally:
            for generation in started:
                generation.close()

    def _seed_of(self, row: int, width: int) -> int:
        """Another one for each row and place, so that no two draws use the same random number."""
        text = f"{self._seed} {row} {width}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


class _Row:
    """A window of one row that runs in the engine."""

    def __init__(self, generation: Generation | None, *, end: int | None = None) -> None:
        """``end`` is the token to give when the generation is over; None makes that an error. Without a generation it
        is over.
        """
        self._generation = generation
        self._end = end
        self._chunks = iter(()) if generation is None else iter(generation)
        self._tokens: deque[int] = deque()

    @property
    def empty(self) -> bool:
        """No token is left, nor will come."""
        over = self._generation is None or self._generation.done
        return not self._tokens and over and self._end is None

    def take(self) -> int:
        """The next token; waits for it."""
        while not self._tokens:
            chunk = next(self._chunks, None)
            if chunk is None and self._end is not None:
                return self._end
            if chunk is None:
                raise InternalError("a step ended without a token")
            self._tokens.extend(chunk.token_ids)
        return self._tokens.popleft()

    def close(self) -> None:
        if self._generation is not None:
            self._generation.close()


def _most_likely(logits: npt.NDArray[np.float32], row: int) -> int:
    """The id with the highest logit, of equal ones the lowest."""
    if np.isnan(logits).any() or not np.isfinite(logits.max()):
        raise InvalidArgumentError(f"the logits that were set for row {row} have NaN or inf, or forbid every token")
    return int(logits.argmax())


def _capturing(hook: Capture) -> SamplingParams:
    """A request for one step that nothing but the model decides."""
    return SamplingParams(
        max_new_tokens=1,
        temperature=0.0,
        top_k=0,
        top_p=1.0,
        min_p=0.0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        ignore_eos=True,
        logits_processors=(hook,),
    )
