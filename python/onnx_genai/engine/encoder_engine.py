"""An encoder opened in the compiled core: :class:`EncoderEngine`."""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from onnx_genai import _core
from onnx_genai.engine.providers import ChosenProviders, Provider, load_with, parse_providers, usable_providers
from onnx_genai.engine.runtime import OrtLibrary, find_ort_library
from onnx_genai.engine.spec import to_core_pair, to_core_port
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.graph.encoder import EncoderContract, EncoderTask, encoder_task, resolve_encoder
from onnx_genai.graph.encoder import describe_encoder as describe
from onnx_genai.package import ModelPackage
from onnx_genai.package.encoder import EncoderPackage, PoolingMode

__all__ = ["EncoderEngine", "EncoderOptions", "EncoderText", "StopFlag", "describe_encoder", "task_of"]

StopFlag = _core.StopFlag
"""``set()`` from any thread ends a call of ``encode`` before its next run."""

_GRACE_SECONDS = 0.05
"""At the end of the interpreter, for threads that come back from a run: later they could not take the GIL."""

_open_cores: weakref.WeakSet[_core.Encoder] = weakref.WeakSet()

MAX_THREADS = 1024
MAX_BATCH_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """How an encoder is loaded and run."""

    ep: str = "cpu"
    """Execution providers, best first; grammar: ``engine.providers``."""
    ep_options: Mapping[str, str] = field(default_factory=dict)
    """Of the first provider."""
    ep_strict: bool = True
    """A provider that cannot be used is an error; False warns and goes on without it."""
    threads: int | None = None
    """Intra-op threads; None uses the physical cores that this process may use."""
    max_batch_tokens: int = 2048
    """Tokens of one run, padding included; a longer text runs alone."""

    def __post_init__(self) -> None:
        _check_whole("max_batch_tokens", self.max_batch_tokens, MAX_BATCH_TOKENS)
        if self.threads is not None:
            _check_whole("threads", self.threads, MAX_THREADS)
        if not isinstance(self.ep, str) or not self.ep:
            raise InvalidArgumentError(f"ep is {self.ep!r}; allowed: cpu, or the name of an execution provider")
        parse_providers(self.ep, self.ep_options)

    @property
    def providers(self) -> tuple[Provider, ...]:
        """What ``ep`` lists, without ``cpu``."""
        return parse_providers(self.ep, self.ep_options)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderText:
    """One text, as token ids."""

    ids: npt.NDArray[np.int32] | Sequence[int]
    """At least one, each in the model's vocabulary."""
    types: npt.NDArray[np.int32] | Sequence[int] | None = None
    """Token types, one for each id; None: zeros. A graph that takes none is not told them."""
    num_skipped: int = 0
    """Leading tokens that means leave out."""


def describe_encoder(source: EncoderPackage) -> dict[str, object]:
    """How a package would run as an encoder, without loading it; see :func:`onnx_genai.graph.encoder.describe_encoder`.

    Raises:
        NotFoundError, PackageError, UnsupportedError: It cannot be used; the text says why.
    """
    return describe(resolve_encoder(source, prefer_tokens=not source.pools_prompt))


def task_of(package: ModelPackage) -> EncoderTask | None:
    """What the graph of a package encodes texts to; None for a model that generates text."""
    return encoder_task(package)


class EncoderEngine:
    """A loaded encoder. Safe to use from many threads: runs go one after the other, callers take turns."""

    def __init__(
        self, core: _core.Encoder, contract: EncoderContract, library: OrtLibrary, pooling: Sequence[str], ep: str
    ) -> None:
        """Use :meth:`open`."""
        self._core = core
        self._contract = contract
        self._library = library
        self._ep = ep
        self.pooling = tuple(pooling)
        """Empty if the graph pools."""
        _open_cores.add(core)

    @classmethod
    def open(
        cls,
        source: EncoderPackage,
        options: EncoderOptions | None = None,
        *,
        pooling: tuple[PoolingMode, ...] = ("mean",),
        prefer_tokens: bool = False,
        pad_id: int = 0,
    ) -> EncoderEngine:
        """Finds the roles of the graph's ports and loads the model.

        Args:
            source: What to load.
            options: How it is loaded and run.
            pooling: How vectors of tokens become one, if the graph has no output that is pooled.
            prefer_tokens: Pool here even if the graph has such an output.
            pad_id: What fills up the shorter rows of a run.

        Raises:
            PackageError, UnsupportedError, BackendError, NotFoundError: It cannot be used; the text says why.
        """
        options = options or EncoderOptions()
        contract = resolve_encoder(source, prefer_tokens=prefer_tokens)
        library = find_ort_library()
        modes = () if contract.is_pooled else pooling
        spec = _core_spec(contract, modes, pad_id=pad_id, vocab_size=source.package.vocab_size or 0)
        core, providers = load_with(
            usable_providers(options.providers, library, strict=options.ep_strict),
            lambda chosen: _open_core(spec, source.package, options, library, chosen),
            strict=options.ep_strict,
        )
        return cls(core, contract, library, modes, providers.effective)

    @property
    def task(self) -> EncoderTask:
        return self._contract.task

    @property
    def takes_types(self) -> bool:
        """The graph is told which of two texts a token belongs to."""
        return self._contract.token_types is not None

    @property
    def width(self) -> int:
        """Values of a vector."""
        return self._core.width

    @property
    def closed(self) -> bool:
        return self._core.closed

    def info(self) -> dict[str, object]:
        """Facts about the loaded model."""
        return {
            "output": self._contract.output,
            "execution_provider": self._ep,
            "intra_op_threads": self._core.intra_op_threads,
            "ort_version": self._library.version,
            "ort_path": str(self._library.path),
        }

    def metrics(self) -> dict[str, float]:
        """Totals since the model was loaded; names as in ``cpp/genai/embed/encoder.h``."""
        return self._core.metrics()

    def encode(self, texts: Sequence[EncoderText], *, stop: StopFlag | None = None) -> npt.NDArray[np.float32]:
        """One vector for each text, [texts, width], in their order. Ctrl-C and ``stop`` end it between two runs.

        Raises:
            InvalidArgumentError: A text without tokens, or an id that the model does not have.
            BackendError: A run failed, or its result is not finite.
            AbortedError: ``stop`` was set, the model is closed, or the process was forked.
        """
        sizes = [len(text.ids) for text in texts]
        ids = np.empty(sum(sizes), np.int32)
        types = np.zeros(len(ids) if self.takes_types else 0, np.int32)
        start = 0
        for text, size in zip(texts, sizes, strict=True):
            ids[start : start + size] = text.ids
            if self.takes_types and text.types is not None:
                types[start : start + size] = text.types
            start += size
        return self._core.encode(
            ids=ids,
            types=types,
            ends=np.cumsum(sizes, dtype=np.int64),
            num_skipped=np.array([text.num_skipped for text in texts], np.int64),
            stop=StopFlag() if stop is None else stop,
            check_signals=threading.current_thread() is threading.main_thread(),
        )

    def close(self) -> None:
        """Fails the calls that wait, and frees the model when the run that goes on has ended; twice is once."""
        _open_cores.discard(self._core)
        self._core.close()


def _core_spec(
    contract: EncoderContract, pooling: Sequence[PoolingMode], *, pad_id: int, vocab_size: int
) -> _core.EncoderSpec:
    spec = _core.EncoderSpec()
    spec.model_path = str(contract.model_path)
    for name in ("input_ids", "attention_mask", "token_types", "position_ids"):
        port = getattr(contract, name)
        setattr(spec, name, None if port is None else to_core_port(port))
    spec.pasts = [to_core_pair(pair) for pair in contract.pasts]
    spec.output = contract.output
    spec.output_dtype = _core.DType[contract.output_dtype.value]
    spec.is_pooled = contract.is_pooled
    spec.pooling = [_core.Pooling[mode] for mode in pooling]
    spec.width = contract.width
    spec.pad_id = pad_id
    spec.vocab_size = vocab_size
    spec.max_batch = contract.max_batch
    return spec


def _open_core(
    spec: _core.EncoderSpec,
    package: ModelPackage,
    options: EncoderOptions,
    library: OrtLibrary,
    providers: ChosenProviders,
) -> _core.Encoder:
    runner = _core.RunnerOptions(
        ort_library=str(library.path),
        intra_op_threads=options.threads or package.session_options.intra_op_num_threads or 0,
        spinning=True,
        providers=[provider.to_core() for provider in providers.providers],
        session_config=list(package.session_options.config_entries.items()),
    )
    return _core.Encoder(spec, runner, options.max_batch_tokens)


def _check_whole(name: str, value: object, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: a whole number in 1..{high}")


@atexit.register
def _close_open_cores() -> None:
    # A native thread that takes the GIL while the interpreter goes down would end the process with an error.
    cores = list(_open_cores)
    for core in cores:
        core.close()
    if cores:
        time.sleep(_GRACE_SECONDS)
