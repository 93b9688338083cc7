"""A package opened in the compiled engine: :class:`ModelEngine`, and one running request: :class:`Generation`."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Protocol, cast

import numpy as np
import numpy.typing as npt

from onnx_genai import _core, graph
from onnx_genai.engine.limits import parse_memory_limit
from onnx_genai.engine.params import to_core_params
from onnx_genai.engine.runtime import OrtLibrary, find_ort_library
from onnx_genai.engine.spec import to_core_spec
from onnx_genai.errors import AbortedError, InvalidArgumentError
from onnx_genai.package import ModelPackage
from onnx_genai.types import Choice, Chunk, FinishReason, Result, SamplingParams, TokenLogprob, Usage

__all__ = ["EngineOptions", "Generation", "ModelEngine", "PromptIds", "TokenTable"]

PromptIds = Sequence[int] | npt.NDArray[np.int64] | npt.NDArray[np.int32]
"""Token ids of a prompt: a list, or a 1-D C-contiguous int64 or int32 array."""

# Ctrl-C is seen between two waits, so each is short.
_WAIT_MS = 100

MAX_THREADS = 1024
"""Far above any CPU; each thread is started when the model is loaded."""
MAX_NUM_SEQS = 2**31 - 1

_open_engines: weakref.WeakSet[ModelEngine] = weakref.WeakSet()


class TokenTable(Protocol):
    """The text of each token; ``tokenizer.TokenTableData`` is one. Semantics: ``cpp/genai/core/token_table.h``."""

    @property
    def decoding(self) -> Literal["byte_level", "byte_fallback"]: ...
    @property
    def strip_first_space(self) -> bool: ...
    @property
    def bytes(self) -> Sequence[builtins.bytes]: ...
    @property
    def kinds(self) -> Sequence[int]: ...
    @property
    def first(self) -> Mapping[int, builtins.bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a model is loaded and scheduled."""

    ep: str = "cpu"
    """Execution provider: ``cpu``, or the name of one that the installed ONNX Runtime has."""
    ep_options: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    """Intra-op threads; None uses the physical cores that this process may use."""
    max_context: int | None = None
    """Upper bound on prompt and output tokens; the model's own limit still holds."""
    kv_memory: str | int | float = "auto"
    """Bytes that KV may take, in the grammar of ``engine.limits``; auto is half of the available memory."""
    kv_memory_name: str = "host_ram_limit"
    """What the caller calls that limit, for errors."""
    max_num_seqs: int = 16
    """Sequences that run at once; more wait."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step."""
    max_prefill_tokens_while_decoding: int = 256
    """Prefill tokens in a step that also decodes."""
    max_queue: int = 4096
    """Open requests; one more is refused."""

    def __post_init__(self) -> None:
        if not isinstance(self.ep, str) or not self.ep:
            raise InvalidArgumentError(f"ep is {self.ep!r}; allowed: cpu, or the name of an execution provider")
        self._check_ep_options()
        for name in ("max_num_batched_tokens", "max_prefill_tokens_while_decoding", "max_queue"):
            _check_positive(name, getattr(self, name))
        _check_positive("max_num_seqs", self.max_num_seqs, high=MAX_NUM_SEQS)
        if self.threads is not None:
            _check_positive("threads", self.threads, high=MAX_THREADS)
        if self.max_context is not None:
            _check_positive("max_context", self.max_context)
        parse_memory_limit(self.kv_memory, name=self.kv_memory_name)

    def _check_ep_options(self) -> None:
        if not isinstance(self.ep_options, Mapping):
            raise InvalidArgumentError(f"ep_options is {self.ep_options!r}; allowed: a mapping of texts")
        for key, value in self.ep_options.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise InvalidArgumentError(f"ep_options has {key!r}: {value!r}; allowed: a text for each text")
        if self.ep == "cpu" and self.ep_options:
            raise InvalidArgumentError(f"ep_options is {dict(self.ep_options)}; the provider cpu takes none")


class ModelEngine:
    """A loaded model with its own engine thread. Safe to use from many threads.

    Example:
        >>> engine = ModelEngine.open(package, tokenizer.token_table())  # doctest: +SKIP
        >>> engine.submit([1, 2, 3], SamplingParams(max_new_tokens=8)).result().token_ids  # doctest: +SKIP
    """

    def __init__(
        self,
        core: _core.Engine,
        package: ModelPackage,
        table: TokenTable,
        library: OrtLibrary,
        description: Mapping[str, object],
    ) -> None:
        """Use :meth:`open`."""
        self._core = core
        self._table = table
        self.package = package
        self.ort_library = library
        self.description = description
        """Roles of the graph's ports, decoder and why, rewrites, notes; as ``onnx-genai show`` prints them."""
        _open_engines.add(self)

    @classmethod
    def open(
        cls,
        package: ModelPackage,
        table: TokenTable,
        options: EngineOptions | None = None,
    ) -> ModelEngine:
        """Finds the roles of the graph's ports and loads the model.

        Raises:
            PackageError, UnsupportedError, BackendError, NotFoundError: The graph or ONNX Runtime cannot be used; the
                text says what and how to fix it.
        """
        options = options or EngineOptions()
        library = find_ort_library()
        contract = graph.resolve(package)
        engine_options = _core.EngineOptions()
        engine_options.max_num_seqs = options.max_num_seqs
        engine_options.max_num_batched_tokens = options.max_num_batched_tokens
        engine_options.max_prefill_tokens_while_decoding = options.max_prefill_tokens_while_decoding
        engine_options.max_queue = options.max_queue
        engine_options.eos_ids = [token for token in package.eos_token_ids if token < contract.vocab_size]
        if options.max_context is not None:
            engine_options.context_limit = options.max_context
            engine_options.context_source = "max_context"
        available = _core.available_host_memory_bytes()
        limit = parse_memory_limit(options.kv_memory, name=options.kv_memory_name)
        budget = limit.resolve(capacity_bytes=available, auto_bytes=available // 2)
        if budget < 1:
            raise InvalidArgumentError(
                f"{options.kv_memory_name} is {options.kv_memory!r}, which leaves no memory for KV; allowed: above 0 "
                "(auto is half of the available memory)"
            )
        engine_options.kv_budget_bytes = min(budget, 2**63 - 1)
        engine_options.kv_budget_source = f"{options.kv_memory_name}={options.kv_memory}"
        core_table = _core.TokenTable(
            byte_fallback=table.decoding == "byte_fallback",
            strip_first_space=table.strip_first_space,
            bytes=table.bytes,
            kinds=table.kinds,
            first=table.first,
        )
        core = _core.Engine(
            to_core_spec(contract), _runner_options(package, options, library), engine_options, core_table
        )
        return cls(core, package, table, library, graph.describe(contract))

    @property
    def context_limit(self) -> int | None:
        """Tokens that prompt and output may have together, or None if nothing limits them."""
        return self._core.context_limit or None

    @property
    def context_source(self) -> str:
        """Where the context limit comes from."""
        return self._core.context_source

    @property
    def closed(self) -> bool:
        return self._core.closed

    def info(self) -> dict[str, object]:
        """Facts about the loaded model: decoder, execution provider, threads, vocabulary, KV bytes a token."""
        return {
            **self._core.info(),
            "ort_version": self.ort_library.version,
            "ort_path": str(self.ort_library.path),
            "context_limit": self.context_limit,
            "context_source": self.context_source,
        }

    def metrics(self) -> dict[str, float]:
        """Totals since the model was loaded, and gauges; names as in ``cpp/genai/engine/metrics.h``."""
        return self._core.metrics()

    def submit(self, prompt: PromptIds, params: SamplingParams) -> Generation:
        """Starts a request and returns at once.

        Raises:
            InvalidArgumentError: Empty prompt, ids out of range, parameters that do not fit the vocabulary.
            ContextOverflowError: The prompt leaves no room for an answer.
            ResourceExhaustedError: Queue or memory budget.
            AbortedError: The model is closed, or the process was forked.
        """
        request = self._core.submit(
            prompt_array(prompt),
            to_core_params(params, self.package.generation),
            list(params.logits_processors),
            params.sampler,
        )
        return Generation(self._core, request, params, self._table)

    def close(self) -> None:
        """Aborts what runs and frees the model; a second call does nothing."""
        self._core.close()
        _open_engines.discard(self)

    def __enter__(self) -> ModelEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Generation:
    """One running request: iterate over its :class:`~onnx_genai.types.Chunk` s, or take the :meth:`result`.

    Used by one thread at a time. Leaving it (``close``, garbage collection, an exception in the loop body) aborts the
    request.
    """

    def __init__(self, core: _core.Engine, request: int, params: SamplingParams, table: TokenTable) -> None:
        self._core = core
        self._request = request
        self._params = params
        self._table = table
        self._done = False
        self._error: Exception | None = None

    def __iter__(self) -> Iterator[Chunk]:
        """Yields pieces as they come.

        Raises:
            GenAIError: The request failed; what came before is valid.
        """
        yield from self._chunks(until_end=False)

    def _chunks(self, *, until_end: bool) -> Iterator[Chunk]:
        try:
            while not self._done or self._error is not None:
                yield from self.poll(_WAIT_MS, until_end=until_end)
        finally:
            self.close()

    def poll(self, timeout_ms: int, *, until_end: bool = False) -> list[Chunk]:
        """Returns what is there, waiting up to ``timeout_ms`` for the first piece; empty means none came.

        With ``until_end`` it waits for the last piece, and the engine does not wake this thread for each token.

        A failure is raised by the call after the one that returned the last valid pieces.
        """
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        if self._done:
            return []
        chunks: list[Chunk] = []
        for event in self._core.wait(self._request, timeout_ms, until_end):
            self._done = self._done or event.last
            if event.error is not None:
                self._error = event.error
                break
            chunks.append(self._chunk(event))
        if not chunks and self._error is not None:
            return self.poll(0, until_end=until_end)
        return chunks

    @property
    def done(self) -> bool:
        """The last chunk was delivered."""
        return self._done

    def result(self) -> Result:
        """Waits for the end and returns everything that was not yet taken by iterating."""
        texts: dict[int, list[str]] = {}
        tokens: dict[int, list[int]] = {}
        logprobs: dict[int, list[TokenLogprob]] = {}
        last: dict[int, Chunk] = {}
        for chunk in self._chunks(until_end=True):
            texts.setdefault(chunk.index, []).append(chunk.text)
            tokens.setdefault(chunk.index, []).extend(chunk.token_ids)
            logprobs.setdefault(chunk.index, []).extend(chunk.logprobs or ())
            last[chunk.index] = chunk
        choices = tuple(
            Choice(
                index=index,
                text="".join(texts[index]),
                token_ids=tuple(tokens[index]),
                finish_reason=chunk.finish_reason or "abort",
                stop_reason=chunk.stop_reason,
                logprobs=tuple(logprobs[index]) if self._params.logprobs else None,
            )
            for index, chunk in sorted(last.items())
        )
        final = next((chunk for chunk in last.values() if chunk.usage is not None), None)
        if final is None or final.usage is None:
            raise AbortedError("the request was closed before it ended; submit it again")
        return Result(choices=choices, usage=final.usage, budget_cap=final.budget_cap)

    def abort(self) -> None:
        """Ends the request within one step; the last chunks (finish reason ``abort``) still come."""
        if not self._done:
            self._core.abort(self._request)

    def close(self) -> None:
        """Ends the request and forgets what was not yet taken."""
        if not self._done:
            self._done = True
            self._core.drop(self._request)

    def __del__(self) -> None:
        if not getattr(self, "_done", True):
            self.close()

    def _chunk(self, event: _core.Event) -> Chunk:
        stop_reason: str | int | None = event.stop_token
        if event.stop_index is not None:
            stop_reason = self._params.stop[event.stop_index]
        usage = None
        if event.last:
            prompt, completion, cached = event.usage
            usage = Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
        return Chunk(
            index=event.choice,
            text=event.text,
            token_ids=event.tokens,
            finish_reason=cast("FinishReason | None", event.finish),
            stop_reason=stop_reason,
            logprobs=self._logprobs(event) if self._params.logprobs else None,
            usage=usage,
            budget_cap=event.budget_cap,
        )

    def _logprobs(self, event: _core.Event) -> tuple[TokenLogprob, ...]:
        return tuple(
            self._token_logprob(token, logprob, tuple(self._token_logprob(*each) for each in top))
            for token, logprob, top in event.logprobs
        )

    def _token_logprob(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        raw = self._table.bytes[token] if token < len(self._table.bytes) else b""
        return TokenLogprob(
            token_id=token, token=raw.decode("utf-8", errors="replace"), token_bytes=raw, logprob=logprob, top=top
        )


def prompt_array(prompt: PromptIds) -> npt.NDArray[np.int64]:
    """Checks prompt ids and returns them as int64; nothing is reshaped or cast silently.

    Raises:
        InvalidArgumentError: Wrong type, dtype, number of dimensions, or an array that is not contiguous.
    """
    if isinstance(prompt, np.ndarray):
        if prompt.dtype not in (np.dtype(np.int64), np.dtype(np.int32)):
            raise InvalidArgumentError(
                f"prompt ids have dtype {prompt.dtype}; allowed: int64 or int32 (use ids.astype(numpy.int64))"
            )
        if prompt.ndim != 1:
            raise InvalidArgumentError(
                f"prompt ids have shape {prompt.shape}; allowed: one dimension (several prompts: a list of arrays)"
            )
        if not prompt.flags.c_contiguous:
            raise InvalidArgumentError(
                "prompt ids are not C-contiguous; use numpy.ascontiguousarray(ids) to pass a contiguous copy"
            )
        return prompt.astype(np.int64, copy=False)
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence):
        raise InvalidArgumentError(f"prompt ids are {type(prompt).__name__}; allowed: a list of ints or an int64 array")
    for index, token in enumerate(prompt):
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise InvalidArgumentError(f"prompt token {index} is {token!r}; allowed: an int")
        if not 0 <= token < 2**31:
            raise InvalidArgumentError(f"prompt token {index} has id {token}; allowed: ids of the vocabulary")
    return np.asarray(prompt, dtype=np.int64)


def _runner_options(package: ModelPackage, options: EngineOptions, library: OrtLibrary) -> _core.RunnerOptions:
    providers = [] if options.ep == "cpu" else [(options.ep, list(options.ep_options.items()))]
    return _core.RunnerOptions(
        ort_library=str(library.path),
        intra_op_threads=options.threads or package.session_options.intra_op_num_threads or 0,
        spinning=True,
        providers=providers,
        session_config=list(package.session_options.config_entries.items()),
    )


def _check_positive(name: str, value: object, *, high: int = 2**63 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: a whole number in 1..{high}")


@atexit.register
def _close_open_engines() -> None:
    # A native thread that takes the GIL while the interpreter goes down would end the process with an error.
    for engine in list(_open_engines):
        with contextlib.suppress(AbortedError):  # opened before a fork, in another process
            engine.close()
