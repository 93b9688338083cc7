import builtins
from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import numpy as np
import numpy.typing as npt

class DType(Enum):
    float32 = ...
    float16 = ...
    bfloat16 = ...
    int64 = ...
    int32 = ...
    int8 = ...
    uint8 = ...
    bool = ...

class EarlyStopping(Enum):
    heuristic = ...
    first = ...
    never = ...

class CacheStyle(Enum):
    slot_gqa = ...
    slot_static = ...
    copy = ...
    none = ...
    paged = ...

class InputPort:
    def __init__(self, name: str, dtype: DType, rank: int) -> None: ...

class KvPair:
    def __init__(
        self,
        *,
        past: str,
        present: str,
        dtype: DType,
        dims: Sequence[int],
        batch_axis: int,
        sequence_axis: int,
    ) -> None: ...

class PagedLayer:
    def __init__(
        self,
        *,
        key_cache: str,
        value_cache: str,
        key_scale: str,
        value_scale: str,
        dtype: DType,
        kv_heads: int,
        head_dim: int,
        value_dim: int,
    ) -> None: ...

class ConstantInput:
    def __init__(self, *, port: InputPort, like_ids: bool, dims: Sequence[int], value: int) -> None: ...

class ModelSpec:
    model_path: str
    model_bytes: bytes
    external_folder: str
    cache: CacheStyle
    input_ids: InputPort
    attention_mask: InputPort | None
    position_ids: InputPort | None
    seqlens_k: InputPort | None
    total_sequence_length: InputPort | None
    past_sequence_length: InputPort | None
    cache_position: InputPort | None
    use_cache_branch: InputPort | None
    write_indices: InputPort | None
    nonpad_kv_seqlen: InputPort | None
    constants: list[ConstantInput]
    kv: list[KvPair]
    cumulative_sequence_length: InputPort | None
    past_seqlens: InputPort | None
    block_table: InputPort | None
    logits_indices: InputPort | None
    prompt_rows: InputPort | None
    paged_layers: list[PagedLayer]
    block_size: int
    logits: str
    logits_dtype: DType
    last_logits_only: bool
    vocab_size: int
    context_limit: int
    context_source: str
    max_batch: int
    def __init__(self) -> None: ...

class SamplingParams:
    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_a: float
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    xtc_probability: float
    xtc_threshold: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_sequence_breakers: list[int]
    no_repeat_ngram_size: int
    logit_bias: list[tuple[int, float]]
    bad_words: list[list[int]]
    suppress_tokens: list[int]
    begin_suppress_tokens: list[int]
    forced_tokens: list[tuple[int, int]]
    stop: list[str]
    stop_token_ids: list[int]
    include_stop: bool
    ignore_eos: bool
    skip_special_tokens: bool
    visible_special_tokens: list[int]
    seed: int | None
    n: int
    num_beams: int
    length_penalty: float
    early_stopping: EarlyStopping
    logprobs: bool
    top_logprobs: int
    def __init__(self) -> None: ...

class TokenTable:
    def __init__(
        self,
        *,
        byte_fallback: builtins.bool,
        strip_first_space: builtins.bool,
        bytes: Sequence[builtins.bytes],
        kinds: Sequence[int],
        first: Mapping[int, builtins.bytes],
    ) -> None: ...
    def __len__(self) -> int: ...

class Grammar:
    def matcher(self) -> Matcher: ...
    def begun(self, written: Sequence[int]) -> Grammar: ...
    @property
    def vocab_size(self) -> int: ...

class Matcher:
    def bitmask(self) -> npt.NDArray[np.uint32]: ...
    def accept(self, tokens: Sequence[int]) -> None: ...
    def rollback(self, count: int) -> None: ...
    def forced_tokens(self) -> list[int]: ...
    @property
    def can_end(self) -> builtins.bool: ...
    @property
    def must_end(self) -> builtins.bool: ...

class GrammarCompiler:
    def __init__(
        self,
        *,
        library: str,
        tokens: TokenTable,
        eos_ids: Sequence[int],
        tokenize: Callable[[str], list[int]] | None,
        max_grammars: int,
    ) -> None: ...
    def compile(self, kind: str, source: str) -> Grammar: ...
    @property
    def num_cached(self) -> int: ...

class Event:
    @property
    def choice(self) -> int: ...
    @property
    def tokens(self) -> tuple[int, ...]: ...
    @property
    def text(self) -> str: ...
    @property
    def logprobs(self) -> list[tuple[int, float, list[tuple[int, float]]]]: ...
    @property
    def finish(self) -> str | None: ...
    @property
    def stop_index(self) -> int | None: ...
    @property
    def stop_token(self) -> int | None: ...
    @property
    def error(self) -> Exception | None: ...
    @property
    def last(self) -> bool: ...
    @property
    def usage(self) -> tuple[int, int, int]: ...
    @property
    def times(self) -> tuple[float, float] | None: ...
    @property
    def budget_cap(self) -> tuple[int, int] | None: ...
    @property
    def score(self) -> float | None: ...

class Delivery(Enum):
    own = ...
    shared = ...
    shared_at_end = ...

class KvMemory:
    hot_bytes: int
    warm_bytes: int
    cold_bytes: int
    cold_folder: str
    def __init__(
        self, *, hot_bytes: int = 0, warm_bytes: int = 0, cold_bytes: int = 0, cold_folder: str = ""
    ) -> None: ...

class ProviderOption:
    def __init__(self, *, name: str, plugin_path: str, device: str, options: Sequence[tuple[str, str]]) -> None: ...

class RunnerOptions:
    def __init__(
        self,
        *,
        ort_library: str,
        intra_op_threads: int,
        spinning: bool,
        providers: Sequence[ProviderOption],
        session_config: Sequence[tuple[str, str]],
        kv: KvMemory = ...,
    ) -> None: ...

class Pooling(Enum):
    mean = ...
    cls = ...
    max = ...
    last = ...
    weighted_mean = ...
    mean_sqrt = ...

class EncoderSpec:
    model_path: str
    input_ids: InputPort
    attention_mask: InputPort | None
    token_types: InputPort | None
    position_ids: InputPort | None
    pasts: Sequence[KvPair]
    output: str
    output_dtype: DType
    is_pooled: bool
    pooling: Sequence[Pooling]
    width: int
    pad_id: int
    vocab_size: int
    max_batch: int
    def __init__(self) -> None: ...

class StopFlag:
    def __init__(self) -> None: ...
    def set(self) -> None: ...
    @property
    def is_set(self) -> bool: ...

class Encoder:
    def __init__(self, spec: EncoderSpec, runner_options: RunnerOptions, max_batch_tokens: int) -> None: ...
    def encode(
        self,
        *,
        ids: npt.NDArray[np.int32],
        types: npt.NDArray[np.int32],
        ends: npt.NDArray[np.int64],
        num_skipped: npt.NDArray[np.int64],
        stop: StopFlag,
        check_signals: bool,
    ) -> npt.NDArray[np.float32]: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def width(self) -> int: ...
    @property
    def intra_op_threads(self) -> int: ...
    def metrics(self) -> dict[str, float]: ...

class EngineOptions:
    max_num_seqs: int
    max_num_batched_tokens: int
    max_prefill_tokens_while_decoding: int
    priority_ageing_seconds: float
    max_queue: int
    prefix_cache: bool
    kv_budget_source: str
    context_limit: int
    context_source: str
    eos_ids: list[int]
    def __init__(self) -> None: ...

class Engine:
    def __init__(
        self, spec: ModelSpec, runner_options: RunnerOptions, engine_options: EngineOptions, tokens: TokenTable
    ) -> None: ...
    def submit(
        self,
        prompt: npt.NDArray[np.int64],
        params: SamplingParams,
        logits_processors: Sequence[object],
        sampler: object | None,
        priority: int = 0,
        timeout: float | None = None,
        cache_salt: str = "",
        delivery: Delivery = ...,
        grammar: Grammar | None = None,
    ) -> int: ...
    def wait(self, request_id: int, timeout_ms: int, until_end: bool) -> list[Event]: ...
    def wait_any(self, timeout_ms: int) -> list[tuple[int, list[Event]]]: ...
    def abort(self, request_id: int) -> None: ...
    def drop(self, request_id: int) -> None: ...
    def preempt(self, request_id: int) -> bool: ...
    def export_kv(self, tokens: npt.NDArray[np.int64], salt: str = "") -> tuple[int, npt.NDArray[np.uint8]]: ...
    def import_kv(self, tokens: npt.NDArray[np.int64], salt: str, data: npt.NDArray[np.uint8]) -> int: ...
    def clear_prefix_cache(self) -> None: ...
    def close(self) -> None: ...
    @property
    def closed(self) -> bool: ...
    def metrics(self) -> dict[str, float]: ...
    def info(self) -> dict[str, object]: ...
    @property
    def context_limit(self) -> int: ...
    @property
    def context_source(self) -> str: ...

def start_trace(engine: Engine, *, level: int, max_events: int, ops_folder: str) -> None: ...
def stop_trace(engine: Engine) -> None: ...
def drop_trace(engine: Engine) -> None: ...
def take_trace(engine: Engine) -> tuple[npt.NDArray[np.uint8], int]: ...
def trace_names() -> list[str]: ...
def runtime_info(library: str) -> tuple[str, int, list[str]]: ...
def check_provider(library: str, provider: ProviderOption) -> str: ...
def kernel_isas() -> tuple[str, list[str]]: ...
def available_host_memory_bytes() -> int: ...
def resident_set_bytes() -> int: ...
def usable_physical_cores() -> int: ...
