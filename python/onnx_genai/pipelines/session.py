"""A text that grows turn by turn: :class:`Session`."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from onnx_genai.engine import AdapterSpans, Generation, KvIdentity, RequestOptions, prompt_array
from onnx_genai.errors import AbortedError, ContextOverflowError, InvalidArgumentError, PackageError
from onnx_genai.pipelines.session_file import read_session, write_session
from onnx_genai.pipelines.text_model import Prompt, TextModel
from onnx_genai.types import Chunk, Result, SamplingParams

__all__ = ["Session", "SessionStream", "SessionTokens"]


class SessionTokens:
    """What :class:`Session` and :class:`AsyncSession` share: the tokens. Safe to use from many threads."""

    def __init__(self, model: TextModel, *, cache_salt: str = "", adapters: AdapterSpans = ()) -> None:
        """Use ``llm.session()``."""
        RequestOptions(cache_salt=cache_salt)  # checks it
        model.refuse_encoder_decoder("a session")
        self._model = model
        self._cache_salt = cache_salt
        self._adapters = adapters
        self._lock = threading.Lock()
        self._tokens: list[int] = []  # guarded by _lock
        self._is_busy = False  # guarded by _lock
        self._is_closed = False  # guarded by _lock

    @property
    def tokens(self) -> tuple[int, ...]:
        """All ids: what was appended and what was generated."""
        with self._lock:
            return tuple(self._tokens)

    @property
    def num_tokens(self) -> int:
        """How many they are."""
        with self._lock:
            return len(self._tokens)

    @property
    def cache_salt(self) -> str:
        """KV is shared with requests and sessions of the same salt."""
        return self._cache_salt

    @property
    def adapter(self) -> str | None:
        """Name of the LoRA adapter that all turns run with, also when it has been unloaded since; None without one."""
        return self._adapters[0][1].name if self._adapters else None

    def append(self, text: Prompt) -> int:
        """Adds text or token ids at the end; they are computed with the next turn.

        Args:
            text: Text, or ids. Special tokens that the tokenizer puts before a text (BOS) come before the first only.

        Returns:
            The number of tokens added.

        Raises:
            InvalidArgumentError: Not text or ids, an unknown id, or a turn is running.
            ContextOverflowError: The context window would be exceeded; the session is as before.
        """
        if isinstance(text, str):
            self._model.check_room(text)
            ids = self._model.tokenizer.encode(text, add_special_tokens=not self.num_tokens) if text else []
        else:
            ids = [int(token) for token in prompt_array(text)]
        vocab = self._model.engine.vocab_size
        for token in ids:
            if token < 0 or (vocab and token >= vocab):
                raise InvalidArgumentError(f"token id {token} is not in the vocabulary; allowed: 0..{vocab - 1}")
        with self._lock:
            self._check_idle("append")
            self._check_context(len(self._tokens) + len(ids))
            self._tokens.extend(ids)
        return len(ids)

    def rewind(self, n_tokens: int) -> None:
        """Keeps the first ``n_tokens`` tokens and forgets the others.

        Raises:
            InvalidArgumentError: Not in 0..num_tokens, or a turn is running.
        """
        with self._lock:
            self._check_idle("rewind")
            if isinstance(n_tokens, bool) or not isinstance(n_tokens, (int, np.integer)):
                raise InvalidArgumentError(f"n_tokens is {n_tokens!r}; allowed: the number of tokens to keep")
            if not 0 <= n_tokens <= len(self._tokens):
                raise InvalidArgumentError(
                    f"n_tokens is {n_tokens}; allowed: 0..{len(self._tokens)}, the number of tokens to keep"
                )
            del self._tokens[int(n_tokens) :]

    def close(self) -> None:
        """Forgets the tokens; a second call does nothing. A turn that is running still ends, and changes nothing."""
        with self._lock:
            self._is_closed = True
            self._tokens = []

    def restore(self, path: str | Path, *, allow_recompute: bool = False) -> None:
        """Takes the tokens of a saved session in place of the own ones; see ``llm.load_session``."""
        if not isinstance(path, (str, Path)) or not str(path):
            raise InvalidArgumentError(f"path is {path!r}; allowed: the file to read")
        engine = self._model.engine
        saved = read_session(Path(path))
        own = self._identity()
        different = own.differences(saved.identity)
        if different and not allow_recompute:
            raise PackageError(
                f"{path}: was made with another model or other options "
                f"({_compared(own, saved.identity, different)}). Load it with the model that it was made with; "
                "load_session(..., allow_recompute=True) takes its tokens and computes their KV anew"
            )
        if saved.damage and not allow_recompute:
            raise PackageError(
                f"{path}: is damaged: {saved.damage}. Copy the file again; load_session(..., "
                "allow_recompute=True) takes its tokens, which are sound, and computes their KV anew"
            )
        vocab = engine.vocab_size
        if vocab and saved.tokens and max(saved.tokens) >= vocab:
            raise PackageError(
                f"{path}: has the token id {max(saved.tokens)}, but this model knows 0..{vocab - 1}; load it with the "
                "model that it was made with"
            )
        with self._lock:
            self._check_idle("load")
            self._check_context(len(saved.tokens))
            self._tokens = list(saved.tokens)
        if saved.kv_tokens and not different:
            engine.import_kv(saved.tokens[: saved.kv_tokens], saved.kv, self._cache_salt, self._adapters)

    def _save(self, path: str | Path) -> None:
        if not isinstance(path, (str, Path)) or not str(path):
            raise InvalidArgumentError(f"path is {path!r}; allowed: the file to write")
        with self._lock:
            self._check_idle("save")
            tokens = list(self._tokens)
        engine = self._model.engine
        identity = self._identity()
        kv_tokens, kv = 0, np.empty(0, dtype=np.uint8)
        if tokens:
            kv_tokens, kv = engine.export_kv(tokens, self._cache_salt, self._adapters)
        write_session(
            Path(path),
            identity=identity.as_dict(),
            tokens=tokens,
            kv_tokens=kv_tokens,
            block_size=identity.block_size,
            kv=kv,
        )

    def _identity(self) -> KvIdentity:
        """What makes the KV of this session fit another one."""
        identity = self._model.engine.kv_identity
        return dataclasses.replace(identity, adapter=self._adapters[0][1].content) if self._adapters else identity

    def _take(self, other: SessionTokens) -> None:
        """Becomes a copy of an open session."""
        with other._lock:
            if other._is_closed:
                raise _closed()
            self._tokens = list(other._tokens)

    def _begin(
        self, params: SamplingParams | None, priority: int, timeout: float | None
    ) -> tuple[npt.NDArray[np.int64], SamplingParams, RequestOptions]:
        """Starts a turn; :meth:`_end` must follow."""
        options = RequestOptions(
            priority=priority, timeout=timeout, cache_salt=self._cache_salt, adapters=self._adapters
        )
        with self._lock:
            self._check_idle("generate")
            if not self._tokens:
                raise InvalidArgumentError("the session is empty; append a text or token ids first")
            ids = np.array(self._tokens, dtype=np.int64)
            _, own = self._model.prepared(ids, params)
            if own.n != 1:
                raise InvalidArgumentError(
                    f"n is {own.n}; a session goes on with one answer, so fork() it once for each further answer"
                )
            self._is_busy = True
        return ids, own, options

    def _end(self, new_tokens: list[int] | tuple[int, ...] = ()) -> None:
        """Ends a turn; without tokens the session is as before it."""
        with self._lock:
            self._is_busy = False
            if not self._is_closed:
                self._tokens.extend(new_tokens)

    def _check_idle(self, call: str) -> None:
        if self._is_closed:
            raise _closed()
        if self._is_busy:
            raise InvalidArgumentError(
                f"{call}() was called while a turn of this session runs; wait for its end, close its stream, or use a "
                "fork()"
            )

    def _check_context(self, num_tokens: int) -> None:
        limit = self._model.context_limit
        if limit is not None and num_tokens > limit:
            raise ContextOverflowError(
                f"the session would have {num_tokens} tokens ({num_tokens}/{limit}); the limit is {limit} tokens, from "
                f"{self._model.context_source}. Append less, rewind() first, or use a larger context window."
            )


class Session(SessionTokens):
    """A text that grows turn by turn; made by :meth:`LLM.session <onnx_genai.LLM.session>`.

    A session is its tokens. Their KV lies in the model's prefix cache, in whatever tier, and what is not there any
    more is computed again; so sessions cost next to nothing, and any number may be open.

    Example:
        >>> session = llm.session()  # doctest: +SKIP
        ... session.append("Once upon a time")
        ... print(session.generate(SamplingParams(max_new_tokens=20)).text)
    """

    def generate(
        self, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None
    ) -> Result:
        """Generates an answer and appends its ids, those of EOS and of a stop string included.

        Args:
            params: ``n`` must be 1.
            priority: As in :meth:`LLM.generate <onnx_genai.LLM.generate>`.
            timeout: As there.

        Raises:
            InvalidArgumentError: The session is empty, a parameter is refused, or another turn is running.
            ContextOverflowError: There is no room for an answer.
            GenAIError: The turn failed; the session is as before it.
        """
        ids, own, options = self._begin(params, priority, timeout)
        new: tuple[int, ...] = ()
        try:
            result = self._model.engine.submit(ids, own, options).result()
            if result.finish_reason != "abort":
                new = result.token_ids
        finally:
            self._end(new)
        return dataclasses.replace(result, prompt_token_ids=tuple(ids.tolist()))

    def stream(
        self, params: SamplingParams | None = None, *, priority: int = 0, timeout: float | None = None
    ) -> SessionStream:
        """:meth:`generate` piece by piece. The ids are appended when the last piece is delivered.

        Leaving the iterator earlier, or an error, aborts the turn and leaves the session as before it.
        """
        ids, own, options = self._begin(params, priority, timeout)
        try:
            return SessionStream(self, self._model.engine.submit(ids, own, options))
        except BaseException:
            self._end()
            raise

    def fork(self) -> Session:
        """Returns a second session with the same tokens. Copies a list of ids; KV is shared."""
        child = Session(self._model, cache_salt=self._cache_salt, adapters=self._adapters)
        child._take(self)
        return child

    def save(self, path: str | Path) -> None:
        """Writes tokens and what KV is still cached into a file, for ``llm.load_session``.

        The file is as large as the KV (``llm.info()["kv_bytes_per_token"]`` bytes a token). It is written as a whole or
        not at all.

        Raises:
            InvalidArgumentError: The path cannot be written, or a turn is running.
            ResourceExhaustedError: The disk is full.
        """
        self._save(path)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class SessionStream(Iterator[Chunk]):
    """Pieces of one turn of a session. Used by one thread."""

    def __init__(self, session: SessionTokens, generation: Generation) -> None:
        self._session = session
        self._generation = generation
        self._chunks = iter(generation)
        self._tokens: list[int] = []
        self._is_open = True

    def __iter__(self) -> SessionStream:
        return self

    def __next__(self) -> Chunk:
        try:
            chunk = next(self._chunks)
        except BaseException:
            self.close()
            raise
        self._tokens.extend(chunk.token_ids)
        if chunk.usage is not None:
            self._finish(self._tokens if chunk.finish_reason != "abort" else [])
        return chunk

    def close(self) -> None:
        """Ends the turn; before its last piece that leaves the session as it was."""
        self._generation.close()
        self._finish([])

    def _finish(self, tokens: list[int]) -> None:
        if self._is_open:
            self._is_open = False
            self._session._end(tokens)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self.close()


def _closed() -> AbortedError:
    return AbortedError("the session is closed; make a new one with llm.session()")


def _compared(identity: KvIdentity, found: Any, names: tuple[str, ...]) -> str:
    own = identity.as_dict()
    return ", ".join(f"{name} is {_short(found.get(name))}, here {_short(own.get(name))}" for name in names)


def _short(value: object) -> str:
    text = str(value).encode("utf-8", "backslashreplace").decode("utf-8")
    return text if len(text) <= 16 else f"{text[:12]}…"
