"""How a model is loaded and scheduled: :class:`EngineOptions`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast, get_args

from onnx_genai.engine.limits import MemoryLimit, parse_memory_limit
from onnx_genai.engine.providers import Provider, parse_providers
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import Backend, Decoder, KvDtype, MemorySize

__all__ = ["EngineOptions"]

BACKEND_VARIABLE = "ONNX_GENAI_BACKEND"
PACKED_VARIABLE = "ONNX_GENAI_PACKED_CACHE"
MAX_THREADS = 1024
"""Far above any CPU; each thread is started when the model is loaded."""
MAX_NUM_SEQS = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """How a model is loaded and scheduled."""

    ep: str = "cpu"
    """Execution providers, best first; grammar: ``engine.providers``."""
    ep_options: Mapping[str, str] = field(default_factory=dict)
    """Of the first provider."""
    ep_strict: bool = True
    """A provider that cannot be used is an error; False warns and goes on without it."""
    backend: Backend = "auto"
    """Whose kernels compute quantized matrix products: ``native`` ours, or an error if there are none that they can;
    ``ort`` those of ONNX Runtime; ``auto`` what ``ONNX_GENAI_BACKEND`` says, else ours where they are faster."""
    threads: int | None = None
    """Intra-op threads; None uses the physical cores that this process may use."""
    max_context: int | None = None
    """Upper bound on prompt and output tokens; the model's own limit still holds."""
    decoder: Decoder = "auto"
    """``auto`` takes the first of paged, slot and copy that can run the graph; a name forces that one or fails."""
    kv_dtype: KvDtype = "auto"
    """Element type of KV in the paged decoder; ``auto`` is that of the graph."""
    prefix_cache: bool = True
    """Keep the KV of finished requests and find it again by the prefix of later ones."""
    vram_limit: MemorySize = "auto"
    """Bytes of the hot tier; see ``engine.memory``."""
    host_ram_limit: MemorySize = "auto"
    """On a CPU provider bytes of the hot and warm tiers together, else of the warm tier."""
    disk_limit: MemorySize | None = None
    """Bytes of the cold tier; None or 0 is off, a fraction refers to the free space of ``disk_folder``."""
    disk_folder: str | Path | None = None
    """Where the cold tier's file lies; None is a folder of this user below the system's folder for temporary files."""
    packed_cache: MemorySize = "auto"
    """Bytes that files of packed weights may have in the cache folder, which later loads and other processes map; 0
    makes none, a fraction refers to the free space; ``auto`` is what ``ONNX_GENAI_PACKED_CACHE`` says, else 16 GiB."""
    max_num_seqs: int = 64
    """Sequences that run at once; more wait."""
    max_num_batched_tokens: int = 2048
    """Token budget of a step."""
    max_prefill_tokens_while_decoding: int = 256
    """Prefill tokens in a step that also decodes."""
    max_queue: int = 4096
    """Open requests; one more is refused."""

    def __post_init__(self) -> None:
        if not isinstance(self.ep, str) or not self.ep or not _is_utf8(self.ep):
            raise InvalidArgumentError(f"ep is {self.ep!r}; allowed: cpu, or the name of an execution provider")
        self._check_ep_options()
        self._check_backend()
        _check_name("decoder", self.decoder, get_args(Decoder))
        _check_name("kv_dtype", self.kv_dtype, get_args(KvDtype))
        if not isinstance(self.prefix_cache, bool):
            raise InvalidArgumentError(f"prefix_cache is {self.prefix_cache!r}; allowed: True or False")
        if not isinstance(self.ep_strict, bool):
            raise InvalidArgumentError(f"ep_strict is {self.ep_strict!r}; allowed: True or False")
        for name in ("max_num_batched_tokens", "max_prefill_tokens_while_decoding", "max_queue"):
            _check_positive(name, getattr(self, name))
        _check_positive("max_num_seqs", self.max_num_seqs, high=MAX_NUM_SEQS)
        if self.threads is not None:
            _check_positive("threads", self.threads, high=MAX_THREADS)
        if self.max_context is not None:
            _check_positive("max_context", self.max_context)
        # The limit that is not used on this provider must be right as well.
        parse_memory_limit(self.vram_limit, name="vram_limit")
        parse_memory_limit(self.host_ram_limit, name="host_ram_limit")
        _ = self.packed_limit
        self._check_disk()

    @property
    def on_cpu(self) -> bool:
        """KV lies in host memory if every provider that is asked for can be used."""
        return all(provider.on_cpu for provider in self.providers)

    @property
    def providers(self) -> tuple[Provider, ...]:
        """What ``ep`` lists, without ``cpu``."""
        return parse_providers(self.ep, self.ep_options)

    @property
    def packed_limit(self) -> MemoryLimit:
        """``packed_cache`` with the environment taken into account."""
        limit = parse_memory_limit(self.packed_cache, name="packed_cache")
        if limit != MemoryLimit():
            return limit
        return parse_memory_limit(os.environ.get(PACKED_VARIABLE) or "auto", name=PACKED_VARIABLE)

    def graph_backend(self, *, on_cpu: bool) -> Backend:
        """``backend`` with the environment taken into account, where the model runs on the CPU or elsewhere.

        Args:
            on_cpu: All providers that are in use compute in host memory, where our kernels run.

        Raises:
            InvalidArgumentError: Our kernels are asked for, and the model does not run on the CPU.
        """
        name, wanted = self._wanted_backend
        if wanted == "native" and not on_cpu:
            raise InvalidArgumentError(
                f"{name} is 'native' and ep is {self.ep!r}; allowed: ep 'cpu', on which our kernels run, or backend "
                "'auto' or 'ort'"
            )
        return "ort" if wanted == "auto" and not on_cpu else wanted

    @property
    def _wanted_backend(self) -> tuple[str, Backend]:
        """What says it, and what it says."""
        if self.backend != "auto":
            return "backend", self.backend
        return BACKEND_VARIABLE, cast("Backend", os.environ.get(BACKEND_VARIABLE) or "auto")

    def _check_backend(self) -> None:
        _check_name("backend", self.backend, get_args(Backend))
        _check_name(*self._wanted_backend, get_args(Backend))
        if self.ep_strict:  # else it is seen when the model is loaded whether the provider can be used
            self.graph_backend(on_cpu=self.on_cpu)

    def _check_ep_options(self) -> None:
        if not isinstance(self.ep_options, Mapping):
            raise InvalidArgumentError(f"ep_options is {self.ep_options!r}; allowed: a mapping of texts")
        for key, value in self.ep_options.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise InvalidArgumentError(f"ep_options has {key!r}: {value!r}; allowed: a text for each text")
        parse_providers(self.ep, self.ep_options)

    def _check_disk(self) -> None:
        if self.disk_limit is not None:
            parse_memory_limit(self.disk_limit, name="disk_limit")
        if self.disk_folder is None:
            return
        if not isinstance(self.disk_folder, (str, Path)) or not str(self.disk_folder) or not _is_utf8(self.disk_folder):
            raise InvalidArgumentError(f"disk_folder is {self.disk_folder!r}; allowed: a folder, or None")
        if self.disk_limit is None:
            raise InvalidArgumentError(
                f"disk_folder is {str(self.disk_folder)!r} but disk_limit is None, so no file would be made; set "
                "disk_limit as well, or leave disk_folder out"
            )


def _check_name(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: {', '.join(allowed)}")


def _is_utf8(text: str | Path) -> bool:
    """UTF-8 can hold it, without NUL."""
    try:
        return b"\0" not in str(text).encode("utf-8")
    except UnicodeEncodeError:
        return False


def _check_positive(name: str, value: object, *, high: int = 2**63 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
        raise InvalidArgumentError(f"{name} is {value!r}; allowed: a whole number in 1..{high}")
