"""A package opened in the compiled engine: :class:`ModelEngine`."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType

import numpy as np
import numpy.typing as npt

from onnx_genai import _core, graph
from onnx_genai.engine.adapters import AdapterSet, AdapterSpans
from onnx_genai.engine.async_generation import AsyncGeneration
from onnx_genai.engine.chunks import TokenTable
from onnx_genai.engine.event_reader import EventReader, Inbox, stop_readers
from onnx_genai.engine.generation import Generation
from onnx_genai.engine.grammars import GrammarCompiler, GrammarSource, llguidance_interface
from onnx_genai.engine.identity import FileStamp, KvIdentity, file_stamps, kv_identity
from onnx_genai.engine.memory import KvMemory, plan_memory
from onnx_genai.engine.memory_use import MemoryUse, measure_memory
from onnx_genai.engine.options import EngineOptions
from onnx_genai.engine.packed import packed_files
from onnx_genai.engine.params import RequestOptions, to_core_params
from onnx_genai.engine.profile import Verbosity, check_verbosity
from onnx_genai.engine.providers import ChosenProviders, load_with, usable_providers
from onnx_genai.engine.recording import MAX_EVENTS, Recording
from onnx_genai.engine.runtime import OrtLibrary, find_ort_library
from onnx_genai.engine.source import SourceText
from onnx_genai.engine.spec import to_core_spec
from onnx_genai.errors import (
    AbortedError,
    InvalidArgumentError,
    NotFoundError,
    PackageError,
)
from onnx_genai.package import ModelPackage
from onnx_genai.types import SamplingParams

__all__ = ["ModelEngine", "PromptIds", "prompt_array"]

PromptIds = Sequence[int] | npt.NDArray[np.int64] | npt.NDArray[np.int32]
"""Token ids of a prompt: a list, or a 1-D C-contiguous int64 or int32 array."""

_KV_BYTES = {
    graph.DType.FLOAT32: (4, 0),
    graph.DType.FLOAT16: (2, 0),
    graph.DType.BFLOAT16: (2, 0),
    graph.DType.INT8: (1, 8),
}
"""Bytes of an element, and of the scales of one head's key and value."""

_GRACE_SECONDS = 0.05
"""At the end of the interpreter, for threads that come back from a wait: later they could not take the GIL."""

_log = logging.getLogger("onnx_genai")

_open_cores: weakref.WeakSet[_core.Engine] = weakref.WeakSet()
"""Not of ModelEngines: a running stream keeps the core of one that was dropped."""


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
        contract: graph.GraphContract,
        core_table: _core.TokenTable,
        tokenize: Callable[[str], list[int]] | None,
        stamps: tuple[FileStamp, ...],
    ) -> None:
        """Use :meth:`open`."""
        self._stamps = stamps
        self._core = core
        self._table = table
        self._core_table = core_table
        self._tokenize = tokenize
        self._compiler: GrammarCompiler | None = None  # guarded by _compiler_lock
        self._compiler_lock = threading.Lock()
        self._recording: weakref.ref[Recording] | None = None  # who stops it owns it
        self._is_starting_recording = False  # guarded by _recording_lock, which is held for this alone
        self._recording_lock = threading.Lock()
        self._contract = contract
        self.adapters = self.new_adapter_set()
        """LoRA adapters that requests may run with."""
        self._reader = EventReader(core)
        self._source = None
        if package.encoder is not None:
            self._source = SourceText.of(
                contract,
                package.encoder,
                pad=package.pad_token_id,
                limit=core.context_limit,
                limit_source=core.context_source,
            )
        self.package = package
        self.ort_library = library
        self.description: Mapping[str, object] = graph.describe(contract)
        """Roles of the graph's ports, decoder and why, rewrites, notes; as ``onnx-genai show`` prints them."""
        _open_cores.add(core)

    @classmethod
    def open(
        cls,
        package: ModelPackage,
        table: TokenTable,
        options: EngineOptions | None = None,
        *,
        tokenize: Callable[[str], list[int]] | None = None,
    ) -> ModelEngine:
        """Finds the roles of the graph's ports and loads the model.

        Args:
            package: What to load.
            table: The text of each token.
            options: How it is loaded and scheduled.
            tokenize: Writes a text in the middle of a text, for what grammars force; None forces nothing ahead.

        Raises:
            PackageError, UnsupportedError, BackendError, NotFoundError: The graph or ONNX Runtime cannot be used; the
                text says what and how to fix it.
        """
        options = options or EngineOptions()
        library = find_ort_library()
        chosen = usable_providers(options.providers, library, strict=options.ep_strict)
        resolved = _resolved(package, options, chosen)
        core_table = _core.TokenTable(
            byte_fallback=table.decoding == "byte_fallback",
            strip_first_space=table.strip_first_space,
            bytes=table.bytes,
            kinds=table.kinds,
            first=table.first,
        )

        def load(providers: ChosenProviders) -> tuple[_core.Engine, graph.GraphContract, tuple[FileStamp, ...]]:
            # Another graph if providers fell away: whose kernels run is a matter of those that are in use.
            contract, stamps = resolved if providers is chosen else _resolved(package, options, providers)
            return _open_core(package, options, contract, library, providers, core_table), contract, stamps

        (core, contract, stamps), providers = load_with(chosen, load, strict=options.ep_strict)
        _log.info("%s: execution provider %s", contract.model_path.parent.name, providers.effective)
        if packed := core.info()["packed_weights"]:
            _log.debug("%s: weights %s", contract.model_path.parent.name, packed)
        return cls(core, package, table, library, contract, core_table, tokenize, stamps)

    @property
    def context_limit(self) -> int | None:
        """Tokens that prompt and output may have together, or None if nothing limits them."""
        return self._core.context_limit or None

    @property
    def is_encoder_decoder(self) -> bool:
        """A prompt is then a source that an encoder reads, and the answer stands alone."""
        return self._source is not None

    @property
    def context_source(self) -> str:
        """Where the context limit comes from."""
        return self._core.context_source

    @property
    def closed(self) -> bool:
        return self._core.closed

    def info(self) -> dict[str, object]:
        """Facts about the loaded model: decoder, backend, execution provider, threads, vocabulary, KV bytes a token."""
        compiler = self._compiler
        return {
            **self._core.info(),
            "backend": self._contract.products.backend,
            "native_products": self._contract.products.replaced,
            "ort_version": self.ort_library.version,
            "ort_path": str(self.ort_library.path),
            "context_limit": self.context_limit,
            "context_source": self.context_source,
            "llguidance": llguidance_interface() if compiler is None else compiler.interface,
        }

    def metrics(self) -> dict[str, float]:
        """Totals since the model was loaded, and gauges; names as in ``cpp/genai/engine/metrics.h``."""
        return self._core.metrics()

    def start_profile(self, verbosity: Verbosity = "full", *, max_events: int = MAX_EVENTS) -> Recording:
        """Starts to record what the engine does. At any moment; it waits for the step that runs.

        Args:
            verbosity: ``decisions`` (steps, requests, KV), ``ops`` (and operators of a part of the runs, for which
                ONNX Runtime 1.25 is needed) or ``full`` (and each token).
            max_events: That are kept, of 48 bytes; then the oldest go, some thousand at a time.

        Raises:
            InvalidArgumentError: Another recording runs; one at a time. Or: called from a logits processor.
            AbortedError: The model is closed.
        """
        check_verbosity(verbosity)
        with self._recording_lock:
            running = None if self._recording is None else self._recording()
            if self._is_starting_recording or (running is not None and running.is_running):
                raise InvalidArgumentError("a profile of this model is recorded already; stop that one first")
            self._is_starting_recording = True
        try:
            files = (self._contract.model_path, *self._contract.external_files)
            recording = Recording(self._core, verbosity=verbosity, model_files=files, max_events=max_events)
            self._recording = weakref.ref(recording)
            return recording
        finally:
            self._is_starting_recording = False

    def memory(self) -> MemoryUse:
        """What the process and the engine hold now; reads the process's map of memory, about a millisecond."""
        return measure_memory(self._core, (self._contract.model_path, *self._contract.external_files))

    @property
    def vocab_size(self) -> int:
        """Ids that the model knows; 0 if nothing says so."""
        return self._contract.vocab_size

    def submit(self, prompt: PromptIds, params: SamplingParams, options: RequestOptions | None = None) -> Generation:
        """Starts a request and returns at once.

        Raises:
            InvalidArgumentError: Empty prompt, ids out of range, parameters that do not fit the vocabulary.
            ContextOverflowError: The prompt leaves no room for an answer in the context window or the memory for KV, or
                the source of an encoder-decoder is longer than the model takes.
            QueueFullError: ``max_queue`` requests are open.
            AbortedError: The model is closed, or the process was forked.
        """
        request = self._core.submit(self._request(prompt, params, options), _core.Delivery.own)
        return Generation(self._core, request, params, self._table)

    def submit_all(
        self, requests: Sequence[tuple[PromptIds, SamplingParams, RequestOptions | None]]
    ) -> list[Generation]:
        """:meth:`submit` for several requests, all or none; they start in the same step if there is room."""
        made = [self._request(*each) for each in requests]
        numbers = self._core.submit_all(made, _core.Delivery.own)
        return [
            Generation(self._core, number, params, self._table)
            for number, (_, params, _) in zip(numbers, requests, strict=True)
        ]

    def submit_async(
        self,
        prompt: PromptIds,
        params: SamplingParams,
        options: RequestOptions | None = None,
        *,
        until_end: bool = False,
    ) -> AsyncGeneration:
        """:meth:`submit` for the running event loop; with ``until_end`` all pieces come with the last one."""
        delivery = _core.Delivery.shared_at_end if until_end else _core.Delivery.shared
        inbox = Inbox()
        made = self._request(prompt, params, options)
        request = self._reader.submit(inbox, partial(self._core.submit, made, delivery))
        return AsyncGeneration(self._reader, inbox, request, params, self._table)

    def _request(self, prompt: PromptIds, params: SamplingParams, options: RequestOptions | None) -> _core.Request:
        """Converts and checks."""
        if self._core.closed:  # told with the GIL held: a daemon thread may try again while the interpreter ends
            raise AbortedError("the engine is closed; open the model again to generate")
        began = time.perf_counter()
        options = options or RequestOptions()
        grammar = None
        if options.grammar is not None:
            grammar = self._begun_grammar(options.grammar, options.grammar_prefix)
        options = options.left(began)
        core_params = to_core_params(params, self.package.generation)
        core_params.accept_equal_logits = options.accept_equal_logits
        ids, source = prompt_array(prompt), None
        if self._source is not None:
            ids, source = self._source.prompt(options.answer_prefix), self._source.tensors(ids)
        elif len(options.answer_prefix):
            raise InvalidArgumentError("answer_prefix is for encoder-decoders; let the prompt end with these tokens")
        return _core.Request(
            prompt=ids,
            params=core_params,
            logits_processors=list(params.logits_processors),
            sampler=params.sampler,
            priority=int(options.priority),
            timeout=None if options.timeout is None else float(options.timeout),
            cache_salt=options.cache_salt,
            grammar=grammar,
            encoder_inputs=source,
            adapters=_core_spans(options.adapters),
        )

    def _begun_grammar(self, grammar: GrammarSource, written: Sequence[int]) -> _core.Grammar:
        compiled = self.compile_grammar(grammar)
        return compiled.begun([int(token) for token in written]) if len(written) else compiled

    def compile_grammar(self, grammar: GrammarSource) -> _core.Grammar:
        """Returns the grammar compiled for this vocabulary, from a cache if it was used before.

        Raises:
            InvalidArgumentError: It is wrong, too large, or uses what cannot be enforced; the text names it.
            UnsupportedError: llguidance is missing.
            PackageError: The package has no tokenizer.
        """
        with self._compiler_lock:
            if self._compiler is None:
                self._compiler = GrammarCompiler(
                    tokens=self._core_table,
                    eos_token_ids=[token for token in self.package.eos_token_ids if token < len(self._core_table)],
                    tokenize=self._tokenize,
                )
            compiler = self._compiler
        return compiler.compile(grammar)

    def new_adapter_set(self) -> AdapterSet:
        """An empty set of adapters of this model, with names of its own."""
        return AdapterSet(self._core.load_adapter)

    def preempt(self, generation: Generation | AsyncGeneration) -> bool:
        """Takes the KV of a running request back, as if memory were short; False if it does not run. For tests."""
        return self._core.preempt(generation.request_id)

    @cached_property
    def kv_identity(self) -> KvIdentity:
        """What must be the same for KV of one process to be used in another. Reads the model's files once.

        Raises:
            NotFoundError: A file of the model cannot be read any more.
            PackageError: A file of the model was changed or removed since the model was loaded.
        """
        info = self._core.info()
        try:
            if file_stamps(self._contract) != self._stamps:
                raise PackageError(
                    f"{self._contract.model_path}: the model's files were changed or removed since it was loaded, so "
                    "it cannot be told which KV fits; load the model again"
                )
            return kv_identity(self._contract, decoder=str(info["decoder"]))
        except OSError as error:
            raise NotFoundError(
                f"{error.filename}: the model's file cannot be read any more ({error.strerror}), and so it cannot be "
                "told whether saved KV fits it; put the file back, or load the model again"
            ) from error

    def export_kv(
        self, tokens: PromptIds, cache_salt: str = "", adapters: AdapterSpans = ()
    ) -> tuple[int, npt.NDArray[np.uint8]]:
        """Returns the KV of the longest cached prefix, in full blocks: how many tokens that is, and the bytes."""
        return self._core.export_kv(prompt_array(tokens), cache_salt, _core_spans(adapters))

    def import_kv(
        self,
        tokens: PromptIds,
        data: npt.NDArray[np.uint8],
        cache_salt: str = "",
        adapters: AdapterSpans = (),
    ) -> int:
        """Puts exported KV of the first tokens into the cache as far as there is room; returns the tokens it holds."""
        return self._core.import_kv(prompt_array(tokens), cache_salt, data, _core_spans(adapters))

    def clear_prefix_cache(self) -> None:
        """Drops all KV that no running request holds."""
        self._core.clear_prefix_cache()

    def close(self) -> None:
        """Aborts what runs and frees the model; a second call does nothing."""
        self._reader.stop()
        _open_cores.discard(self._core)

    def __enter__(self) -> ModelEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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


def _core_spans(adapters: AdapterSpans) -> list[tuple[int, _core.Adapter]]:
    return [(first, adapter.core) for first, adapter in adapters]


def _resolved(
    package: ModelPackage, options: EngineOptions, providers: ChosenProviders
) -> tuple[graph.GraphContract, tuple[FileStamp, ...]]:
    """The graph as these providers run it, and how its files look."""
    contract = graph.resolve(
        package,
        decoder=options.decoder,
        kv_dtype=options.kv_dtype,
        backend=options.graph_backend(on_cpu=providers.on_cpu),
    )
    return contract, file_stamps(contract)


def _kv_bytes_per_token(contract: graph.GraphContract) -> int:
    """Of a paged graph; int8 KV has a float32 scale for each head's key and value."""
    total = 0
    for layer in contract.paged_layers:
        item, scales = _KV_BYTES[layer.dtype]
        total += layer.kv_heads * ((layer.head_dim + layer.value_dim) * item + scales)
    return total


def _engine_options(
    package: ModelPackage, options: EngineOptions, contract: graph.GraphContract, memory: KvMemory
) -> _core.EngineOptions:
    core = _core.EngineOptions()
    core.max_num_seqs = options.max_num_seqs
    core.max_num_batched_tokens = options.max_num_batched_tokens
    core.max_prefill_tokens_while_decoding = options.max_prefill_tokens_while_decoding
    core.max_queue = options.max_queue
    core.prefix_cache = options.prefix_cache
    core.kv_budget_source = memory.source
    core.eos_ids = [token for token in package.eos_token_ids if token < contract.vocab_size]
    if options.max_context is not None:
        core.context_limit = options.max_context
        core.context_source = "max_context"
    return core


def _open_core(
    package: ModelPackage,
    options: EngineOptions,
    contract: graph.GraphContract,
    library: OrtLibrary,
    providers: ChosenProviders,
    table: _core.TokenTable,
) -> _core.Engine:
    memory = plan_memory(
        dataclasses.replace(options, ep="cpu", ep_options={}) if providers.on_cpu else options,
        block_bytes=_kv_bytes_per_token(contract) * contract.block_size,
        context_bytes=_kv_bytes_per_token(contract) * contract.context_limit,
        available_bytes=_core.available_host_memory_bytes(),
    )
    packed_folder, packed_bytes = packed_files(options.packed_limit)
    runner = _core.RunnerOptions(
        ort_library=str(library.path),
        intra_op_threads=options.threads or package.session_options.intra_op_num_threads or 0,
        spinning=True,
        providers=[provider.to_core() for provider in providers.providers],
        session_config=list(package.session_options.config_entries.items()),
        kv=_core.KvMemory(
            hot_bytes=memory.hot_bytes,
            warm_bytes=memory.warm_bytes,
            cold_bytes=memory.cold_bytes,
            cold_folder="" if memory.cold_folder is None else str(memory.cold_folder),
        ),
        packed_folder="" if packed_folder is None else str(packed_folder),
        packed_bytes=packed_bytes,
    )
    return _core.Engine(to_core_spec(contract), runner, _engine_options(package, options, contract, memory), table)


@atexit.register
def _close_open_cores() -> None:
    # A native thread that takes the GIL while the interpreter goes down would end the process with an error.
    for core in list(_open_cores):
        with contextlib.suppress(AbortedError):  # opened before a fork, in another process
            core.close()
    stop_readers()
    if _open_cores:
        time.sleep(_GRACE_SECONDS)
