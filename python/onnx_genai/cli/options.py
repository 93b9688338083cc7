"""Options that several commands share, and the plain objects that they fill."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from onnx_genai.cli import console
from onnx_genai.cli.limits import checked_limit
from onnx_genai.cli.settings import setting, source_rank
from onnx_genai.errors import InvalidArgumentError
from onnx_genai.types import Backend, Decoder, KvDtype, SamplingParams
from onnx_genai.words import counted

if TYPE_CHECKING:
    from onnx_genai.pipelines import LLM

__all__ = [
    "ModelOptions",
    "SamplingOptions",
    "checked_backend",
    "encoder_options",
    "model_options",
    "sampling_options",
    "take",
    "take_sampling",
]

Command = TypeVar("Command", bound=Callable[..., Any])
Options = TypeVar("Options", "ModelOptions", "SamplingOptions")

BACKENDS = ("auto", "ort", "native")
DECODERS = ("auto", "paged", "slot", "copy")
KV_DTYPES = ("auto", "float32", "float16", "bfloat16", "int8")


def checked_backend(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """``value`` if it is a backend; else wrong usage."""
    if value not in BACKENDS:
        raise click.BadParameter(f"{value!r} is no backend; choose auto, ort, or native", context, parameter)
    return value


def _checked_ep(context: click.Context, parameter: click.Parameter, value: str) -> str:
    if value.strip().lower() in ("", "cpu"):
        return "cpu"
    from onnx_genai.pipelines import parse_providers  # takes time to import

    try:
        parse_providers(value)
    except InvalidArgumentError as error:
        raise click.BadParameter(str(error), context, parameter) from error
    return value


_MODEL_OPTIONS = {
    "ep": setting(
        "--ep",
        callback=_checked_ep,
        default="cpu",
        show_default=True,
        metavar="LIST",
        help="Execution providers, best first: cpu, cuda, ..., plugin:LIBRARY.",
    ),
    "ep_strict": setting(
        "--ep-strict", is_flag=True, help="A provider that cannot be used is an error, not a warning."
    ),
    "backend": setting(
        "--backend",
        callback=checked_backend,
        default="auto",
        show_default=True,
        shell_complete=lambda _context, _parameter, typed: [
            n for n in ("auto", "ort", "native") if n.startswith(typed)
        ],
        help="auto, ort, or native.",
    ),
    "variant": setting("--variant", help="Which of several graphs to take: q4, fp16, ..."),
    "max_context": setting(
        "--max-context", type=click.IntRange(1), metavar="TOKENS", help="Bound on prompt and answer."
    ),
    "vram_limit": setting(
        "--vram-limit", callback=checked_limit, default="auto", help="Memory on the device: auto, 8GiB, 0.9, bytes."
    ),
    "host_ram_limit": setting(
        "--host-ram-limit", callback=checked_limit, default="auto", help="Memory on the host, in the same words."
    ),
    "disk_limit": setting(
        "--disk-limit", callback=checked_limit, help="Disk for KV, in the same words; default: none."
    ),
    "disk_folder": setting(
        "--disk-folder", type=click.Path(path_type=Path), help="Where KV lies on disk; default: a private one."
    ),
    "packed_cache": setting(
        "--packed-cache",
        callback=checked_limit,
        default="auto",
        help="Disk for packed weights, which processes share, in the same words; 0: none, auto: 16GiB.",
    ),
    "kv_dtype": setting(
        "--kv-dtype", type=click.Choice(KV_DTYPES), default="auto", show_default=True, help="Element type of KV."
    ),
    "no_prefix_cache": setting(
        "--no-prefix-cache", is_flag=True, help="Do not keep KV for later prompts that begin alike."
    ),
    "decoder": setting(
        "--decoder", type=click.Choice(DECODERS), default="auto", show_default=True, help="How the graph is run."
    ),
    "threads": setting(
        "--cpu-cores",
        "--threads",
        "threads",
        type=click.IntRange(1, 1024),
        metavar="N",
        envvar="ONNX_GENAI_CPU_DECODE_THREADS",
        help="Threads that compute; default: the physical cores that this process may use.",
    ),
    "offline": setting("--offline", is_flag=True, help="Never use the network."),
}
_SAMPLING_OPTIONS = (
    click.option("--max-new-tokens", type=click.IntRange(min=1), metavar="N", help="Default: fill the context."),
    click.option("--temperature", type=float, help="Above 0 samples; 0 is greedy."),
    click.option("--top-p", type=float, help="Sample from the smallest set with this probability; 1 is off."),
    click.option("--top-k", type=int, help="Sample from the k most likely tokens; 0 is off."),
    click.option(
        "--min-p", type=float, help="Sample from tokens with this share of the best one's probability; 0 is off."
    ),
    click.option("--greedy", is_flag=True, help="Always take the most likely token (the default)."),
    click.option("--no-greedy", is_flag=True, help="Sample, with the package's defaults."),
    click.option("--seed", type=int, help="The same seed gives the same answer."),
    click.option("--repetition-penalty", type=float, help="Above 1 makes seen tokens less likely."),
    click.option("--frequency-penalty", type=float, help="In -2..2, for each time a token was generated."),
    click.option("--presence-penalty", type=float, help="In -2..2, for tokens that were generated."),
    click.option("--stop", multiple=True, metavar="TEXT", help="Text that ends the answer; may be given again."),
    click.option("--n", type=click.IntRange(min=1), default=1, show_default=True, help="Number of answers."),
    click.option("--logprobs", type=int, metavar="N", help="Log-probabilities, with the N most likely alternatives."),
)


def model_options(command: Command) -> Command:
    """Adds the options of :class:`ModelOptions` to a command."""
    return _with(tuple(_MODEL_OPTIONS.values()), command)


def encoder_options(command: Command) -> Command:
    """Adds those options of :func:`model_options` that an encoder has: it knows no KV and no context."""
    return _with(tuple(_MODEL_OPTIONS[name] for name in ("ep", "ep_strict", "variant", "threads", "offline")), command)


def sampling_options(command: Command) -> Command:
    """Adds the options of :class:`SamplingOptions` to a command."""
    return _with(_SAMPLING_OPTIONS, command)


def take(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """The object of this kind that the values of the command line fill."""
    return kind(**{field.name: values[field.name] for field in fields(kind)})


SAMPLED = ("temperature", "top_p", "top_k", "min_p")
"""Options of :class:`SamplingOptions` that say how tokens are drawn, where ``greedy`` says that they are not."""


def take_sampling(context: click.Context, values: Mapping[str, Any]) -> SamplingOptions:
    """:func:`take`, where what asks for greedy answers (``greedy``, a temperature of 0) and ``no_greedy`` give way to
    what a stronger source says about sampling.
    """
    names = ("greedy", "no_greedy", *SAMPLED)
    strongest = max((source_rank(context, name) for name in names if values[name] not in (None, False)), default=0)
    weak: dict[str, Any] = {name: False for name in ("greedy", "no_greedy") if source_rank(context, name) < strongest}
    if values["temperature"] == 0 and source_rank(context, "temperature") < strongest:
        weak["temperature"] = None
    return take(SamplingOptions, {**values, **weak})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """How a model is found and loaded."""

    ep: str
    ep_strict: bool
    backend: Backend
    variant: str | None
    max_context: int | None
    vram_limit: str
    host_ram_limit: str
    disk_limit: str | None
    disk_folder: Path | None
    packed_cache: str
    kv_dtype: KvDtype
    no_prefix_cache: bool
    decoder: Decoder
    threads: int | None
    offline: bool

    def __post_init__(self) -> None:
        if self.disk_folder is not None and self.disk_limit is None:
            raise click.UsageError("--disk-folder needs --disk-limit, which says how much may lie there")

    def open(self, path: Path, **more: Any) -> LLM:
        """Loads the model in ``path``; ``more`` are further arguments of ``LLM``."""
        from onnx_genai.pipelines import LLM

        return LLM(path, **self.arguments(), **more)

    def arguments(self) -> dict[str, Any]:
        """The keyword arguments of ``LLM`` and ``AsyncLLM`` that these are; warns of more threads than cores."""
        if self.threads is not None:
            from onnx_genai.pipelines import system_facts  # takes time to import

            cores = system_facts().cores
            if self.threads > cores:
                console.warn(
                    f"--cpu-cores {self.threads} is more than the {counted(cores, 'physical core')} that this process "
                    "may use; that is slower than leaving it out"
                )
        return {
            "ep": self.ep,
            "ep_strict": self.ep_strict,
            "backend": self.backend,
            "variant": self.variant,
            "vram_limit": self.vram_limit,
            "host_ram_limit": self.host_ram_limit,
            "disk_limit": self.disk_limit,
            "disk_folder": self.disk_folder,
            "packed_cache": self.packed_cache,
            "kv_dtype": self.kv_dtype,
            "prefix_cache": not self.no_prefix_cache,
            "decoder": self.decoder,
            "max_context": self.max_context,
            "threads": self.threads,
        }

    def encoder_arguments(self) -> dict[str, Any]:
        """Those of ``Embedder`` and ``AsyncEmbedder``, which know no KV and no context."""
        known = ("ep", "ep_strict", "variant", "threads")
        return {name: value for name, value in self.arguments().items() if name in known}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How an answer is sampled, as written on the command line; None where nothing was said."""

    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    greedy: bool
    no_greedy: bool
    seed: int | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    stop: tuple[str, ...]
    n: int
    logprobs: int | None

    @property
    def is_greedy(self) -> bool:
        """The last rule that applies wins: greedy; a sampling option; --no-greedy; --greedy; temperature 0."""
        mode = not (
            (self.temperature is not None and self.temperature > 0)
            or self.top_p is not None
            or (self.top_k is not None and self.top_k > 0)
            or (self.min_p is not None and self.min_p > 0)
        )
        if self.no_greedy:
            mode = False
        if self.greedy:
            mode = True
        return mode or self.temperature == 0

    def params(self, *, package_temperature: float | None = None) -> SamplingParams:
        """The parameters for a package whose default temperature is ``package_temperature``.

        Raises:
            click.UsageError: A value is out of range, or two options exclude each other.
        """
        if self.greedy and self.no_greedy:
            raise click.UsageError("--greedy and --no-greedy exclude each other; give one of them")
        temperature = self.temperature
        if self.is_greedy:
            temperature = 0.0 if temperature is None or temperature > 0 else temperature
        elif temperature is None and not package_temperature:
            # The package says greedy or nothing, but sampling was asked for.
            temperature = 1.0
        try:
            return SamplingParams(
                max_new_tokens=self.max_new_tokens,
                temperature=temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                seed=self.seed,
                repetition_penalty=self.repetition_penalty,
                frequency_penalty=0.0 if self.frequency_penalty is None else self.frequency_penalty,
                presence_penalty=0.0 if self.presence_penalty is None else self.presence_penalty,
                stop=self.stop,
                n=self.n,
                logprobs=self.logprobs is not None,
                top_logprobs=0 if self.logprobs is None else self.logprobs,
            )
        except InvalidArgumentError as error:
            raise click.UsageError(str(error)) from error


def _with(options: tuple[Callable[[Any], Any], ...], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
