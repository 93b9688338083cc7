"""A stand-in for ``LLM`` that says a script, so that the command line is tested without an engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from onnx_genai.types import Chunk, FinishReason, SamplingParams, TokenLogprob, Usage

__all__ = ["FakeLLM", "Script"]


@dataclass
class Script:
    """What the model says, and what the command line did with it."""

    pieces: Sequence[str] = ("Hel", "lo")
    finish_reason: FinishReason = "stop"
    context_limit: int | None = 100
    has_template: bool = True
    render_error: Exception | None = None
    load_error: BaseException | None = None
    stream_error: BaseException | None = None
    package_temperature: float | None = None
    budget_cap: tuple[int, int] | None = None
    logprobs: bool = False
    provider: str = "cpu"

    # Filled by the run.
    path: Path | None = None
    options: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] | None = None
    prompts: list[str] = field(default_factory=list)
    special: list[bool] = field(default_factory=list)
    params: SamplingParams | None = None
    closed: bool = False


class FakeLLM:
    """One token a character of the prompt; one a piece of the answer."""

    script: Script

    def __init__(self, model: str | Path, **options: Any) -> None:
        if self.script.load_error is not None:
            raise self.script.load_error
        self.script.path, self.script.options = Path(model), options
        self.template = object() if self.script.has_template else None
        self.tokenizer = SimpleNamespace(encode=self._encode)
        self.package = SimpleNamespace(
            generation=SimpleNamespace(temperature=self.script.package_temperature), root=Path(model)
        )
        self.abilities = SimpleNamespace(reasoning=None, special_tokens={})
        self.context_limit = self.script.context_limit
        self.context_source = "config.json max_position_embeddings"

    def _encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        self.script.prompts.append(text)
        self.script.special.append(add_special_tokens)
        return [ord(character) % 100 for character in text]

    def render(self, messages: list[dict[str, Any]]) -> str:
        if self.script.render_error is not None:
            raise self.script.render_error
        self.script.messages = messages
        return "".join(f"<{message['role']}>{message['content']}" for message in messages)

    def info(self) -> dict[str, object]:
        return {"decoder": "slot", "execution_provider": self.script.provider}

    def stream(self, prompt: list[int], params: SamplingParams) -> Iterator[Chunk]:
        self.script.params = params
        if self.script.stream_error is not None:
            raise self.script.stream_error
        usage = Usage(prompt_tokens=len(prompt), completion_tokens=len(self.script.pieces) * params.n)
        for place, piece in enumerate(self.script.pieces):
            for index in range(params.n):
                is_last = place + 1 == len(self.script.pieces)
                ends = is_last and index + 1 == params.n
                yield Chunk(
                    index=index,
                    text=piece,
                    token_ids=(place,),
                    finish_reason=self.script.finish_reason if is_last else None,
                    logprobs=(self._logprob(piece),) if params.logprobs else None,
                    usage=usage if ends else None,
                    budget_cap=self.script.budget_cap if ends else None,
                )

    @staticmethod
    def _logprob(piece: str) -> TokenLogprob:
        other = TokenLogprob(token_id=9, token="?", token_bytes=b"?", logprob=-2.0)
        return TokenLogprob(token_id=1, token=piece, token_bytes=piece.encode(), logprob=-0.5, top=(other,))

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.script.closed = True
